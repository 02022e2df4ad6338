"""Each peer's fits with increasing effort; the clock covers the fit alone, not the imports.

:class:`LookupError` means that a peer has no such model. Peers get the data in their own format,
converted outside the clock.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.peers.problems import F64, Data, Problem

#: Clocks of fits in this process: elapsed time, or the processor's.
CLOCKS = {"elapsed": time.perf_counter, "cpu": time.process_time}
#: Epochs, or iterations, of one fit after the other.
EFFORTS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40, 55, 75, 100, 150, 200, 300, 500, 1000, 3000)
#: Tolerances of peers that have one.
TOLERANCES = tuple(10.0 ** (-k / 2) for k in range(2, 26))
#: The smallest of ours: if the optimum is 1e-4 of the zero model's objective, still 1e-6 of it.
_OWN_MIN = 1e-10
#: The same for large sets, where a fit takes seconds and a factor of three costs some passes.
FINE_TOLERANCES = tuple(10.0 ** (-k / 8) for k in range(8, 60))
#: Stored values of a large set.
LARGE = 50_000_000
#: Columns from which on a Hessian is too large: 200 MB.
_HESSIAN_MAX = 5000
#: Rows of a file that Spark reads at once.
_BLOCK = 50_000


class Fits:
    """Fits of one problem, by their number; each starts from scratch.

    Parameters
    ----------
    fit : callable
        From an effort's number to the seconds of a fit with it, and its model.
    efforts : int
        Number of efforts.
    are_iterations : bool, optional
        Whether more effort is more iterations, so that a model that no longer changes is the last
        one; several tolerances may give the same model before a smaller one improves it.
    """

    def __init__(
        self,
        fit: Callable[[int], tuple[float, F64]],
        efforts: int,
        are_iterations: bool = True,
    ) -> None:
        self.fit = fit
        self.efforts = efforts
        self.are_iterations = are_iterations


def timed(models: Sequence[Any], X: Any, y: Any, are_iterations: bool = True) -> Fits:
    """Fit estimators; ``$ELASTICML_BENCH_CLOCK`` is the clock."""
    clock = CLOCKS[os.environ.get("ELASTICML_BENCH_CLOCK", "elapsed")]

    def fit(number: int) -> tuple[float, F64]:
        model = models[number]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = clock()
            model.fit(X, y)
            seconds = clock() - began
        w = np.ravel(model.coef_).astype(np.float64)
        has_intercept = getattr(model, "fit_intercept", False)
        return seconds, np.append(w, model.intercept_) if has_intercept else w

    return Fits(fit, len(models), are_iterations)


def elasticml(data: Data, problem: Problem, threads: int) -> Fits:
    """Run ours, in this process, with increasing accuracy."""
    import elasticml as em

    common: dict[str, Any] = {"fit_intercept": problem.intercept}
    if problem.model in ("hinge", "squared_hinge"):
        make: Callable[..., Any] = em.LinearSVC
        common |= {"loss": problem.model, "C": 1.0 / (problem.l2 * data.n)}
    elif problem.model == "logistic":
        make = em.LogisticRegression
        common |= {"C": 1.0 / (problem.l2 * data.n)}
    elif problem.model == "sparse_logistic":
        make = em.LogisticRegression
        common |= {"C": 1.0 / (problem.l1 * data.n), "l1_ratio": 1.0}
    elif problem.model == "ridge":
        make, common = em.Ridge, {**common, "alpha": problem.l2 * data.n}
    else:
        make, common = em.Lasso, {**common, "alpha": problem.l1}
    # A model without threads runs with one, whatever the others have.
    if "n_jobs" in make().get_params():
        common["n_jobs"] = threads
    is_large = data.X.nnz >= LARGE
    tolerances = FINE_TOLERANCES if is_large else [tol for tol in TOLERANCES if tol >= _OWN_MIN]
    models = [make(tol=tol, max_iter=EFFORTS[-1], **common) for tol in tolerances]
    takes_singles = problem.model == "hinge" or (is_large and problem.model == "logistic")
    X = data.X if takes_singles else data.X.astype(np.float64)
    X = X.tocsc() if problem.model == "lasso" else X
    return timed(models, X, data.labels, are_iterations=False)


def cocoa(data: Data, problem: Problem, threads: int) -> Fits:
    """Run passes of CoCoA's local solver, each with a line search: a member alone."""
    from tests.bench.peers.cocoa_passes import LOSSES, CocoaPasses

    if problem.model not in LOSSES or problem.intercept:
        raise LookupError(problem.model)
    clock = CLOCKS[os.environ.get("ELASTICML_BENCH_CLOCK", "elapsed")]
    passes = CocoaPasses(data, problem.model, problem.l2, threads)

    def fit(number: int) -> tuple[float, F64]:
        passes.reset()
        began = clock()
        for _ in range(EFFORTS[number]):
            passes.step()
        return clock() - began, passes.v

    return Fits(fit, len(EFFORTS))


def snapml(data: Data, problem: Problem, threads: int) -> Fits:
    """Run Snap ML, whose regulariser is not divided by n."""
    import snapml as snap

    common: dict[str, Any] = {"tol": 1e-30, "n_jobs": threads, "fit_intercept": False}
    _no_intercept(problem)
    if problem.model in ("hinge", "squared_hinge"):
        make, common = snap.SupportVectorMachine, {**common, "loss": problem.model}
    elif problem.model in ("logistic", "sparse_logistic"):
        make = snap.LogisticRegression
    else:
        make = snap.LinearRegression
    if problem.model in ("lasso", "sparse_logistic"):
        common |= {"penalty": "l1", "dual": False, "regularizer": problem.l1 * data.n}
        X = data.X.tocsc()
    else:
        common["regularizer"] = problem.l2 * data.n
        X = data.X
    y = data.labels.astype(np.float32)
    return timed([make(max_iter=k, **common) for k in EFFORTS], X, y)


def _no_intercept(problem: Problem) -> None:
    """Refuse a free intercept, which is a penalised column in Snap ML and LIBLINEAR."""
    if problem.intercept:
        raise LookupError(f"{problem.model} with a free intercept")


def liblinear(data: Data, problem: Problem, threads: int) -> Fits:
    """Run LIBLINEAR's dual solvers, or newGLMNET with an L1 penalty; one thread."""
    return _liblinear(data, problem, dual=problem.model != "sparse_logistic")


def liblinear_primal(data: Data, problem: Problem, threads: int) -> Fits:
    """Run LIBLINEAR's trust-region Newton solvers; one thread."""
    if problem.model not in ("squared_hinge", "logistic"):
        raise LookupError(problem.model)
    return _liblinear(data, problem, dual=False)


def _liblinear(data: Data, problem: Problem, dual: bool) -> Fits:
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    _no_intercept(problem)
    common: dict[str, Any] = {"tol": 1e-14, "fit_intercept": False, "dual": dual}
    if problem.model in ("hinge", "squared_hinge"):
        common |= {"loss": problem.model, "C": 1.0 / (problem.l2 * data.n)}
        make: Callable[..., Any] = LinearSVC
    elif problem.model == "logistic":
        common |= {"solver": "liblinear", "C": 1.0 / (problem.l2 * data.n)}
        make = LogisticRegression
    elif problem.model == "sparse_logistic":
        common |= {"solver": "liblinear", "C": 1.0 / (problem.l1 * data.n), "l1_ratio": 1.0}
        make = LogisticRegression
    else:
        raise LookupError(problem.model)
    models = [make(max_iter=k, **common) for k in EFFORTS]
    return timed(models, data.X.astype(np.float64), data.labels)


def scikit_learn(
    solver: str,
    tol: float = 1e-14,
    ridge: Sequence[dict[str, Any]] = (),
    columns_max: float = math.inf,
) -> Callable[[Data, Problem, int], Fits]:
    """Return a solver of scikit-learn's logistic regression, and of ridge with these settings."""

    def peer(data: Data, problem: Problem, threads: int) -> Fits:
        from sklearn.linear_model import LogisticRegression, Ridge

        if data.d > columns_max:
            raise LookupError(f"a Hessian of {data.d} columns")
        if problem.model == "logistic":
            common: dict[str, Any] = {"C": 1.0 / (problem.l2 * data.n), "solver": solver}
            common |= {"fit_intercept": problem.intercept, "tol": tol}
            models = [LogisticRegression(max_iter=k, **common) for k in EFFORTS]
        elif problem.model == "ridge" and ridge:
            common = {"alpha": problem.l2 * data.n, "fit_intercept": False}
            models = [Ridge(**common, **settings) for settings in ridge]
        else:
            raise LookupError(problem.model)
        are_iterations = problem.model == "logistic" or "max_iter" in ridge[0]
        return timed(models, data.X.astype(np.float64), data.labels, are_iterations)

    return peer


def skglm(data: Data, problem: Problem, threads: int) -> Fits:
    """Run skglm: working sets with proximal Newton steps, and dual coordinate descent."""
    import skglm as peer

    if problem.model == "sparse_logistic":
        make: Callable[..., Any] = peer.SparseLogisticRegression
        common: dict[str, Any] = {"alpha": problem.l1, "max_iter": 100}
    elif problem.model == "hinge":
        make, common = peer.LinearSVC, {"C": 1.0 / (problem.l2 * data.n), "max_iter": 1000}
    else:
        raise LookupError(problem.model)
    _no_intercept(problem)
    models = [make(tol=tol, fit_intercept=False, **common) for tol in TOLERANCES]
    X = data.X.astype(np.float64)
    X = X.tocsc() if problem.model == "sparse_logistic" else X
    return timed(models, X, data.labels, are_iterations=False)


def celer(data: Data, problem: Problem, threads: int) -> Fits:
    """Run celer: working sets by dual extrapolation."""
    import celer as peer

    if problem.model != "sparse_logistic":
        raise LookupError(problem.model)
    C = 1.0 / (problem.l1 * data.n)
    models = [peer.LogisticRegression(C=C, fit_intercept=False, tol=tol) for tol in TOLERANCES]
    return timed(models, data.X.astype(np.float64).tocsc(), data.labels, are_iterations=False)


def coordinate_descent(data: Data, problem: Problem, threads: int) -> Fits:
    """Run scikit-learn's coordinate descent."""
    from sklearn.linear_model import Lasso

    if problem.model != "lasso":
        raise LookupError(problem.model)
    models = [
        Lasso(alpha=problem.l1, fit_intercept=False, max_iter=100_000, tol=tol)
        for tol in TOLERANCES
    ]
    X = data.X.astype(np.float64).tocsc()
    return timed(models, X, data.labels, are_iterations=False)


def vowpal_wabbit(data: Data, problem: Problem, threads: int) -> Fits:
    """Vowpal Wabbit on its own cache file: its L-BFGS where that applies, else plain SGD.

    After 17 passes on ``reuters`` its default steps end 2.6 times as high as plain ones.
    """
    from vowpalwabbit import Workspace

    _no_intercept(problem)
    if problem.model in ("squared_hinge", "sparse_logistic"):
        raise LookupError(problem.model)
    is_smooth = problem.model in ("logistic", "ridge")
    loss = "squared" if problem.model in ("ridge", "lasso") else problem.model
    # Its squared loss has no factor 1/2; its L-BFGS sums losses.
    factor = (2.0 if loss == "squared" else 1.0) * (data.n if is_smooth else 1.0)
    bits = max(10, math.ceil(math.log2(data.d)))  # columns have their own indices
    folder = _scratch()
    words = f"--quiet --noconstant --loss_function {loss} -b {bits} --holdout_off"
    words += f" -d {folder / 'rows'} --cache_file {folder / 'cache'}"
    # Otherwise squares count only outside the range of the targets.
    words += " --min_prediction -1000 --max_prediction 1000" if loss == "squared" else ""
    options = f" --l2 {factor * problem.l2:.17g}" if problem.l2 else ""
    options += f" --l1 {factor * problem.l1:.17g}" if problem.l1 else ""
    options += " --bfgs --termination 1e-14" if is_smooth else f" --sgd -f {folder / 'model'}"
    X, y = data.X, data.labels
    with open(folder / "rows", "w") as file:
        for i in range(data.n):
            low, high = X.indptr[i], X.indptr[i + 1]
            row = zip(X.indices[low:high].tolist(), X.data[low:high].tolist(), strict=True)
            file.write(f"{y[i]:.9g} | " + " ".join(f"{j}:{x:.9g}" for j, x in row) + "\n")
    Workspace(words + " --passes 1 -k", enable_logging=False).finish()

    clock = CLOCKS[os.environ.get("ELASTICML_BENCH_CLOCK", "elapsed")]
    #: Of the columns; the same in all learners.
    places: list[int] = []

    def fit(number: int) -> tuple[float, F64]:
        began, passes = clock(), f" --passes {EFFORTS[number] + 1}"
        learner = Workspace(words + options + passes, enable_logging=False)
        seconds = clock() - began
        if not is_smooth:
            # Penalties are applied to the weights only when they are written to a file.
            learner.finish()
            learner = Workspace(f"--quiet -t -i {folder / 'model'}", enable_logging=False)
        if not places:
            space = learner.hash_space(" ")
            places.extend(learner.hash_feature(str(j), space) for j in range(data.d))
        w = np.array([learner.get_weight(place, 0) for place in places])
        learner.finish()
        return seconds, w

    return Fits(fit, len(EFFORTS), are_iterations=not is_smooth)


def _scratch() -> Path:
    """Make a folder that is removed with this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder


def dask_ml(data: Data, problem: Problem, threads: int) -> Fits:
    """dask-ml on a dense Dask array in this process, with as many threads."""
    import dask
    import dask.array as da
    from dask_ml.linear_model import LinearRegression, LogisticRegression

    _no_intercept(problem)
    if problem.model in ("hinge", "squared_hinge", "sparse_logistic"):
        raise LookupError(problem.model)
    if data.n * data.d * 8 > 4e9:
        raise LookupError("dense arrays only, and these would take more than 4 GB")
    dask.config.set(scheduler="threads", num_workers=threads)
    X = da.from_array(data.X.toarray().astype(np.float64), chunks=(-(-data.n // threads), data.d))
    y = data.labels
    make = LinearRegression
    if problem.model == "logistic":
        make, y = LogisticRegression, (y > 0).astype(np.float64)
    lam = problem.l1 if problem.model == "lasso" else problem.l2
    common = {"C": 1.0 / (lam * data.n), "fit_intercept": False, "tol": 1e-14}
    common |= {"penalty": "l1" if problem.model == "lasso" else "l2"}
    common |= {"solver": "proximal_grad" if problem.model == "lasso" else "lbfgs"}
    models = [make(max_iter=k, **common) for k in EFFORTS]
    return timed(models, X, da.from_array(y, chunks=-(-data.n // threads)))


def spark(data: Data, problem: Problem, threads: int) -> Fits:
    """Spark MLlib in local mode, on rows that are cached before the clock starts."""
    from pyspark.ml import classification, regression
    from pyspark.sql import SparkSession

    _no_intercept(problem)
    if problem.model in ("squared_hinge", "sparse_logistic"):
        raise LookupError(problem.model)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master(f"local[{threads}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "8g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    y = data.labels
    if problem.model in ("hinge", "logistic"):
        y = (y > 0).astype(np.float64)
    frame = _frame(session, data, y).repartition(threads).cache()
    frame.count()
    common = {"regParam": problem.l2 or problem.l1, "fitIntercept": False, "tol": 1e-15}
    common["standardization"] = False
    make: Any
    if problem.model == "hinge":
        make = classification.LinearSVC
    elif problem.model == "logistic":
        make = classification.LogisticRegression
    else:
        make = regression.LinearRegression
        common |= {"solver": "l-bfgs", "elasticNetParam": float(problem.model == "lasso")}

    def fit(number: int) -> tuple[float, F64]:
        began = time.perf_counter()
        model = make(maxIter=EFFORTS[number], **common).fit(frame)
        seconds = time.perf_counter() - began
        return seconds, np.asarray(model.coefficients.toArray(), np.float64)

    return Fits(fit, len(EFFORTS))


def _frame(session: Any, data: Data, y: F64) -> Any:
    """Pass rows to Spark in a Parquet file: as Python objects large sets take minutes."""
    import pyarrow as pa
    from pyarrow import parquet
    from pyspark.ml.linalg import SparseVector, VectorUDT
    from pyspark.sql.functions import udf

    X, d = data.X, data.d
    lists = {
        name: pa.ListArray.from_arrays(pa.array(X.indptr.astype(np.int32)), pa.array(values))
        for name, values in (("columns", X.indices), ("values", X.data.astype(np.float64)))
    }
    path = str(_scratch() / "rows.parquet")
    parquet.write_table(pa.table({"label": y, **lists}), path, row_group_size=_BLOCK)
    # Arrow has no type for vectors.
    vector = udf(lambda at, x: SparseVector(d, at, x), VectorUDT(), useArrow=False)
    rows = session.read.parquet(path)
    return rows.select("label", vector("columns", "values").alias("features"))


PEERS: dict[str, Callable[[Data, Problem, int], Fits]] = {
    "elasticml": elasticml,
    "cocoa": cocoa,
    "snapml": snapml,
    "liblinear": liblinear,
    "liblinear-primal": liblinear_primal,
    "newton-cg": scikit_learn("newton-cg"),
    "skglm": skglm,
    "celer": celer,
    "saga": scikit_learn(
        "saga", 1e-30, [{"solver": "saga", "max_iter": k, "tol": 1e-30} for k in EFFORTS]
    ),
    "lbfgs": scikit_learn("lbfgs", ridge=[{"solver": "sparse_cg", "tol": t} for t in TOLERANCES]),
    "cholesky": scikit_learn(
        "newton-cholesky", ridge=[{"solver": "cholesky"}], columns_max=_HESSIAN_MAX
    ),
    "cd": coordinate_descent,
    "vw": vowpal_wabbit,
    "dask-ml": dask_ml,
    "spark": spark,
}
#: Peers that use one thread in any case.
SERIAL = ("liblinear", "liblinear-primal", "newton-cg", "skglm", "celer", "saga", "cd", "vw")
os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
