"""Startup cost of a fresh process up to its first model: imports, cached compiled code, a fit.

    python -m tests.bench first_fit [--repeats 5] [--cold] [--estimators ...]

Each estimator runs in separate processes; medians over repeats (5), in milliseconds: ``import
elasticml``; its class, which imports scikit-learn (the first row is scikit-learn's own import of
the same modules); the first fit of 2000 rows and 20 columns; the second fit of the same rows. The
difference of the two fits is loading time. An extra process runs first, so that compiled code is in
the cache and files are in memory. With ``--cold`` each process has an empty cache instead: the
difference is what is compiled. Times are of the processor, which a busy machine changes less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.bench import harness

MODELS = {
    "LinearSVC": "em.LinearSVC()",
    "LinearSVC hinge": "em.LinearSVC(loss='hinge', C=0.01, tol=1e-2)",
    "LinearSVC hinge n_jobs=2": "em.LinearSVC(loss='hinge', C=0.01, tol=1e-2, n_jobs=2)",
    "LogisticRegression": "em.LogisticRegression()",
    "LogisticRegression n_jobs=2": "em.LogisticRegression(n_jobs=2)",
    "LogisticRegression 3 classes": "em.LogisticRegression()",
    "LogisticRegression L1": "em.LogisticRegression(l1_ratio=1.0, C=0.1)",
    "LogisticRegression L1 3 classes": "em.LogisticRegression(l1_ratio=1.0, C=0.1)",
    "Ridge": "em.Ridge()",
    "Lasso": "em.Lasso(0.05)",
    "ElasticNet": "em.ElasticNet(0.05)",
    "LassoCV": "em.LassoCV(alphas=20)",
    "KMeans": "em.KMeans(random_state=0)",
}

#: Importing scikit-learn's own linear models imports what is measured here, and more.
PEER = """
import time, json
started = time.process_time()
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
print(json.dumps([0.0, 1e3 * (time.process_time() - started), 0.0, 0.0]))
"""

CODE = """
import time, json, warnings
warnings.simplefilter("ignore")
marks = [time.process_time()]
import elasticml as em
marks.append(time.process_time())
model = {made}
marks.append(time.process_time())
import numpy as np
rng = np.random.default_rng(0)
X = rng.standard_normal((2000, 20))
z = X[:, :5].sum(axis=1) + rng.standard_normal(2000)
y = np.digitize(z, {cuts})
before = time.process_time()
model.fit(X, y)
middle = time.process_time()
model.fit(X, y)
after = time.process_time()
found = [marks[1] - marks[0], marks[2] - marks[1], middle - before, after - middle]
print(json.dumps([1e3 * seconds for seconds in found]))
"""


def times(code, repeats, cold):
    """Medians over processes of the figures that the code prints."""
    env = {**os.environ, **dict.fromkeys(harness.THREADS, "1"), "PYTHONPATH": harness.path()}
    results = []
    for _ in range(repeats + 1):
        with tempfile.TemporaryDirectory() as empty:
            place = {"ELASTICML_CACHE": empty} if cold else {}
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env | place)
        results.append(json.loads(done.stdout))
    return harness.column_medians(results[1:])


def main(*, repeats: int = 5, cold: bool = False, estimators: Sequence[str] = tuple(MODELS)):
    """Print the table."""
    columns = ("import", "class", "first fit", "second fit", "loaded by the first fit")
    harness.head("estimator", *columns)
    rows = {"scikit-learn's base": PEER}
    for name in estimators:
        cuts = [-1.0, 1.0] if "3 classes" in name else [0.0]
        rows[name] = CODE.format(made=MODELS[name], cuts=cuts)
    for name, code in rows.items():
        first = times(code, repeats, cold)
        harness.row(name, *(f"{figure:.0f}" for figure in (*first, first[2] - first[3])))
