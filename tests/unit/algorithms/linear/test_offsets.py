"""Offsets of jobs: a column that is added to every margin, against scipy's minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.algorithms.local_runner import train_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import survey_all
from elasticml.errors import ConfigError
from elasticml.estimators.rows import chunk_rows
from elasticml.models.loading import model_of_job
from elasticml.objectives.loss_kernels import loss_named
from elasticml.specification.algorithms import AsyncSGD, BatchGradient, CoCoA, PrimalCoCoA
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
        at = loss_named(loss).value_and_slope(z, y, S, slope) / S.sum()
        gradient = rows.T @ slope / S.sum() + L2 * np.append(w[:3], 0.0)
        return at + 0.5 * L2 * w[:3] @ w[:3], gradient

    options = {"gtol": 1e-12}
    found = scipy.optimize.minimize(value, np.zeros(4), jac=True, method="BFGS", options=options)
    return found.x, found.fun


def trained(job: Any, y: Any, rows: Any = X) -> Any:
    return test_losses_of_jobs.trained(job, y, 500, rows=rows, weights=S).model


@pytest.mark.parametrize("loss", list(TARGETS))
@pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton"])
def test_an_offset_is_added_to_every_margin(loss: Any, optimizer: Any) -> None:
    job = BatchGradient(
        loss=loss,
        l2=L2,
        optimizer=optimizer,
        intercept=True,
        offset=1,
        tolerance=1e-10,
        scale="none",
    )
    model = trained(job, TARGETS[loss])
    w, objective = reference(loss)
    assert model.arrays["coef"][0, 1] == 1.0
    np.testing.assert_allclose(model.arrays["coef"][0, FREE], w[:3], atol=1e-6)
    assert model.arrays["intercept"][0] == pytest.approx(w[3], abs=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    source = from_arrays(X, TARGETS[loss], S)
    facts = merge_summaries([source.survey(block.index) for block in source.blocks()])
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
    job = BatchGradient(
        loss="poisson", offset="exposure", intercept=True, tolerance=1e-8, scale="none"
    )
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


#: Interval of each dual variable, and the curvature of its conjugate.
BOXES = {
    "hinge": (0.0, 1.0, 0.0),
    "squared_hinge": (0.0, np.inf, 0.5),
    "squared": (-np.inf, np.inf, 1.0),
    "huber": (-1.0, 1.0, 1.0),
    "quantile": (-0.3, 0.7, 0.0),
}


def dual_optimum(loss: str, rows: Any, offset: Any, y: Any, weights: Any) -> tuple[Any, float]:
    """Maximise the dual problem with scipy; return the model and the objective there.

    ``sum s (gain(a) - a fold o) / S - |sum s a fold x|^2 / (2 l2 S^2)``: of the losses with a box
    the gain is ``a y - c/2 a^2``, and of the logistic loss the entropy.
    """
    fold = np.ones(len(y)) if loss in ("squared", "huber", "quantile") else y
    linear = (y if loss in ("squared", "huber", "quantile") else 1.0) - fold * offset
    low, high, curvature = BOXES.get(loss, (1e-14, 1.0 - 1e-14, 0.0))
    total, folded = weights.sum(), rows * fold[:, None]

    def negative(a: Any) -> Any:
        image = folded.T @ (weights * a) / total
        gain, slope = a * linear - 0.5 * curvature * a * a, linear - curvature * a
        if loss == "logistic":
            gain = -a * np.log(a) - (1 - a) * np.log1p(-a) - a * fold * offset
            slope = np.log1p(-a) - np.log(a) - fold * offset
        value = weights @ gain / total - image @ image / (2 * L2)
        return -value * total, -weights * (slope - folded @ image / L2)

    bounds = [(None if np.isinf(low) else low, None if np.isinf(high) else high)] * len(y)
    start = np.full(len(y), 0.5 if low == 0.0 or loss == "logistic" else 0.0)
    options = {"maxiter": 20_000, "maxfun": 200_000, "ftol": 1e-16, "gtol": 1e-12, "maxcor": 40}
    found = scipy.optimize.minimize(
        negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return folded.T @ (weights * found.x) / (total * L2), -found.fun / total


def primal_value(loss: str, w: Any, rows: Any, offset: Any, y: Any, weights: Any) -> float:
    parameters = {"quantile": {"quantile": 0.7}}.get(loss, {})
    margins, slope = rows @ w + offset, np.empty(len(y))
    value = loss_named(loss, parameters).value_and_slope(margins, y, weights, slope)
    return float(value / weights.sum() + 0.5 * L2 * w @ w)


@given(
    loss=st.sampled_from([*BOXES, "logistic"]),
    kind=st.sampled_from(["dense", "sparse", "indicators"]),
    scale=st.sampled_from(["none", "maxabs"]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None)
def test_cocoa_certifies_a_model_with_an_offset(
    loss: Any, kind: str, scale: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(12, 60))
    rows, weights = rng.normal(size=(n, 5)), rng.uniform(0.2, 2.0, n)
    if kind != "dense":
        rows *= rng.random((n, 5)) < 0.5
    if kind == "indicators":
        rows = (rows != 0.0).astype(float)
    rows[:2] = 1.0  # no column is empty
    fixed = int(rng.integers(5))
    free = [j for j in range(5) if j != fixed]
    real = rows @ rng.normal(size=5) + rng.normal(size=n)
    is_class = loss not in ("squared", "huber", "quantile")
    y = np.where(real > np.median(real), 1.0, -1.0) if is_class else real
    job = CoCoA(
        loss=loss,
        l2=L2,
        offset=fixed,
        scale=scale,
        intercept=True,
        tolerance=1e-9,
        seed=seed,
        **({"quantile": 0.7} if loss == "quantile" else {}),
    )
    data = rows if kind == "dense" else sp.csr_array(rows)
    model = test_losses_of_jobs.trained(job, y, 20_000, rows=data, weights=weights).model
    factor = 1.0 / np.abs(rows[:, free]).max(0) if scale == "maxabs" else np.ones(4)
    trained_rows = np.column_stack([rows[:, free] * factor, np.ones(n)])
    problem = (trained_rows, rows[:, fixed], y, weights)
    coef, intercept = model.arrays["coef"][0], model.arrays["intercept"]
    own = primal_value(loss, np.append(coef[free] / factor, intercept), *problem)
    best, dual = dual_optimum(loss, *problem)
    assert coef[fixed] == 1.0
    assert model.objective == pytest.approx(own, rel=1e-12)
    assert model.gap <= 1e-9
    assert dual - 1e-12 <= own <= primal_value(loss, best, *problem) + 1e-9
    if loss not in ("hinge", "quantile"):  # scipy stops early where the conjugate is linear
        assert own <= dual + 1e-8


def test_cocoa_starts_from_a_model_with_an_offset() -> None:
    made = {"loss": "squared", "l2": L2, "offset": 1, "scale": "standard"}
    first = trained(CoCoA(**made, tolerance=1e-12), TARGETS["squared"])
    start = {name: value.ravel().tolist() for name, value in first.arrays.items()}
    section = CoCoA(**made, tolerance=1e-10).section() | {"warm_start": start}
    data = chunk_rows(X).with_labels(TARGETS["squared"], S)
    given_to = (algorithm("cocoa"), section, data.facts, data.chunks)
    again = train_locally(*given_to, rounds=1, parallel=Serial()).model
    assert again.gap <= 1e-10
    np.testing.assert_allclose(again.arrays["coef"], first.arrays["coef"], atol=1e-5)


def test_cocoas_offsets_that_do_not_fit_are_refused() -> None:
    facts = chunk_rows(X).with_labels(TARGETS["squared"], None).facts
    made = {"loss": "squared", "offset": 1}
    with pytest.raises(ConfigError, match=r"'freeze' with algorithm\.offset"):
        algorithm("cocoa").trainer(made, facts, "freeze")
    with pytest.raises(ConfigError, match="cuda has no kernels for an offset"):
        CoCoA(loss="squared", offset=1, device="cuda")
    with pytest.raises(ConfigError, match="no member has whole rows"):
        PrimalCoCoA(offset=1)
    with pytest.raises(ConfigError, match="belongs to problem: linear"):
        AsyncSGD(k=2, offset=1)


def test_the_gap_of_a_job_of_counts_holds_with_an_offset() -> None:
    job = BatchGradient(loss="poisson", l2=L2, offset=1, tolerance=1e-10, scale="none")
    data = chunk_rows(X).with_labels(TARGETS["poisson"], S)
    made = (algorithm("batch_gradient"), job.section(), data.facts, data.chunks)
    _, least = reference("poisson")
    for rounds in range(1, 12):
        model = train_locally(*made, rounds=rounds, parallel=Serial()).model
        assert model.objective - least <= model.gap + 1e-12
    assert model.gap <= 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offset": 4}, "wanted a number below 4"),
        ({"offset": "exposure"}, "the data have none"),
        ({"offset": 1, "loss": "logistic"}, "wanted none with more than two classes"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(settings: Any, message: str) -> None:
    facts = chunk_rows(X).with_labels(np.arange(ROWS) % 3.0, None).facts
    with pytest.raises(ConfigError, match=message):
        algorithm("batch_gradient").trainer({"loss": "squared", **settings}, facts, "auto")
