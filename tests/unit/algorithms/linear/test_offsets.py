"""Offsets of jobs: a column that is added to every margin, against scipy's minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize

from elasticml.algorithms.local_runner import train_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import survey_all
from elasticml.errors import ConfigError
from elasticml.estimators.row_table import RowTable
from elasticml.evaluation.evaluator import Evaluator
from elasticml.models.loading import model_of_job
from elasticml.objectives.losses import LOSSES
from elasticml.specification.algorithms import BatchGradient
from tests.unit.algorithms.linear import test_losses_of_jobs

ROWS, L2 = 200, 0.05
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 4))
EXPOSURE = RNG.uniform(0.2, 5.0, ROWS)
X[:, 1] = np.log(EXPOSURE)
FREE = [0, 2, 3]
S = RNG.uniform(0.5, 2.0, ROWS)
Z = X @ [0.4, 1.0, -0.5, 0.2] + 0.3
TARGETS = {
    "poisson": RNG.poisson(np.exp(Z)).astype(float),
    "logistic": np.where(RNG.random(ROWS) < 1 / (1 + np.exp(-Z)), 1.0, -1.0),
    "squared": Z + RNG.normal(size=ROWS),
}


def reference(loss: str, factor: Any = 1.0, shift: Any = 0.0) -> tuple[Any, float]:
    """Minimise over the free columns, scaled, and an intercept; return both and the objective."""
    rows = np.column_stack([(X[:, FREE] - shift) * factor, np.ones(ROWS)])
    slope, y = np.empty(ROWS), TARGETS[loss]

    def value(w: Any) -> Any:
        z = rows @ w + X[:, 1]
        at = LOSSES[loss].value_and_slope(z, y, S, slope) / S.sum()
        gradient = rows.T @ slope / S.sum() + L2 * np.append(w[:3], 0.0)
        return at + 0.5 * L2 * w[:3] @ w[:3], gradient

    options = {"gtol": 1e-12}
    found = scipy.optimize.minimize(value, np.zeros(4), jac=True, method="BFGS", options=options)
    return found.x, found.fun


def trained(job: Any, y: Any, rows: Any = X) -> Any:
    return test_losses_of_jobs.trained(job, y, 500, rows=rows, weights=S).model


@pytest.mark.parametrize("loss", list(TARGETS))
@pytest.mark.parametrize("optimizer", ["lbfgs", "tron"])
def test_an_offset_is_added_to_every_margin(loss: Any, optimizer: Any) -> None:
    job = BatchGradient(
        loss=loss, l2=L2, optimizer=optimizer, intercept=True, offset=1, tolerance=1e-10
    )
    model = trained(job, TARGETS[loss])
    w, objective = reference(loss)
    assert model.arrays["coef"][0, 1] == 1.0
    np.testing.assert_allclose(model.arrays["coef"][0, FREE], w[:3], atol=1e-6)
    assert model.arrays["intercept"][0] == pytest.approx(w[3], abs=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    source = from_arrays(X, TARGETS[loss], S)
    facts = merge_summaries([source.survey(block.index) for block in source.blocks()])
    (score,) = Evaluator(job.section(), facts).score_training(source, [model.arrays])
    assert score.objective == pytest.approx(model.objective, rel=1e-12)
    user = model_of_job(job.section(), facts, model.arrays)
    margins = X @ model.arrays["coef"][0] + model.arrays["intercept"]
    np.testing.assert_allclose(user.decision_function(X), margins, rtol=1e-12)


def test_a_scaled_job_leaves_its_offset_as_it_is() -> None:
    job = BatchGradient(
        loss="poisson", l2=L2, intercept=True, offset=1, scale="standard", tolerance=1e-10
    )
    model = trained(job, TARGETS["poisson"])
    factor = 1.0 / X[:, FREE].std(0)
    w, objective = reference("poisson", factor, X[:, FREE].mean(0))
    assert model.arrays["coef"][0, 1] == 1.0
    np.testing.assert_allclose(model.arrays["coef"][0, FREE], w[:3] * factor, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)


def test_a_tables_offset_is_named_and_needed_for_predictions(tmp_path: Any) -> None:
    table = pd.DataFrame(X, columns=["a", "exposure", "b", "c"])
    table["region"], table["claims"] = np.where(X[:, 0] > 0.0, "north", "south"), TARGETS["poisson"]
    table.to_csv(tmp_path / "claims.csv", index=False)
    source = survey_all(read_csv(str(tmp_path / "claims.csv"), "claims"))
    facts = merge_summaries([source.read(b.index, None, 1)[1] for b in source.blocks()])
    job = BatchGradient(loss="poisson", offset="exposure", intercept=True, tolerance=1e-8)
    chunks = [c for b in source.blocks() for c in source.read(b.index, None, 1)[0]]
    made = (algorithm("batch_gradient"), job.section(), facts, chunks)
    arrays = train_locally(*made, rounds=300, parallel=Serial()).model.arrays
    model = model_of_job(job.section(), facts, arrays)
    assert model.coef_[0, 1] == 1.0
    longer = table.assign(exposure=table["exposure"] + np.log(2.0))
    np.testing.assert_allclose(model.predict(longer), 2.0 * model.predict(table), rtol=1e-12)
    with pytest.raises(Exception, match="exposure"):
        model.predict(table.drop(columns="exposure"))
    with pytest.raises(ConfigError, match="offset is 'region', a column of kind category"):
        algorithm("batch_gradient").trainer({"loss": "poisson", "offset": "region"}, facts, "auto")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offset": 4}, "wanted a number below 4"),
        ({"offset": "exposure"}, "the data have none"),
        ({"offset": 1, "loss": "logistic"}, "wanted none with more than two classes"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(settings: Any, message: str) -> None:
    facts = RowTable(X).chunked.with_labels(np.arange(ROWS) % 3.0, None).facts
    with pytest.raises(ConfigError, match=message):
        algorithm("batch_gradient").trainer({"loss": "squared", **settings}, facts, "auto")
