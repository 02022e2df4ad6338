"""The member's solver: numpy's sums for any rows, anywhere; caches that change no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.batch_gradient.solver import BatchGradientSolver
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.errors import LocalProtocolError
from elasticml.ids import ExchangeId
from elasticml.protocol.events import ExchangeHeader
from tests.reference import LOSSES
from tests.serial_world import facts_of, split_rows
from tests.unit.algorithms.cocoa.local_problem import SerialExecutor

RNG = np.random.default_rng(5)
X = np.where(RNG.random((60, 6)) < 0.4, RNG.integers(1, 4, (60, 6)), 0).astype(float)
Y = np.where(RNG.random(60) < 0.3, 2.0, 0.0)
S = RNG.uniform(0.5, 2.0, 60)
W, P = RNG.normal(size=(2, 7))
KINDS: dict[str, Any] = {
    "dense": X,
    "csr": sp.csr_matrix(X),
    "binary_csr": sp.csr_matrix((X > 0).astype(float)),
}


def ask(
    solver: BatchGradientSolver,
    chunks: list[Chunk],
    operation: str,
    model: dict[str, Any],
    parallel: Any = None,
    returns: Any = (),
    **parameters: Any,
) -> Any:
    work = ExchangeHeader(
        exchange=ExchangeId(1),
        operation=operation,
        model=model,
        parameters=parameters,
        returns=dict(returns),
    )
    return solver.compute(work, chunks, parallel or Serial())


def make(data: Any = X, **settings: Any) -> tuple[BatchGradientSolver, list[Chunk]]:
    chunks = split_rows(data, Y, 1, weights=S, chunk_rows=7)[0]
    settings = {"loss": "logistic", "intercept": True, **settings}
    return BatchGradientSolver(settings, facts_of(chunks)), chunks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "smoothed_hinge", "squared"])
@pytest.mark.parametrize("where", ["memory", "threads", "disk"])
def test_every_operation_sums_what_numpy_does(
    kind: str, loss: str, where: str, tmp_path: Path
) -> None:
    solver, chunks = make(KINDS[kind], loss=loss)
    assert chunks[0].layout.kind == kind
    if where == "disk":
        chunks = OutOfCoreStore(2**30, tmp_path, lambda: 0).settle(chunks)
    dense = KINDS[kind].toarray() if sp.issparse(KINDS[kind]) else KINDS[kind]
    rows, y = np.column_stack([dense, np.ones(60)]), Y if loss == "squared" else Y - 1.0
    value, slope = LOSSES[loss]

    def of(operation: str, model: dict[str, Any], **given: Any) -> Any:
        parallel = SerialExecutor(3) if where == "threads" else Serial()
        return ask(solver, chunks, operation, model, parallel, **given)

    def close(found: Any, expected: Any, rtol: float = 1e-12) -> None:
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())

    shapes = {"loss": (), "gradient": (7,), "weight": ()}
    for point, w in enumerate((W, W + P)):  # a step later all is at the new point
        z = rows @ w
        found = of("gradient", {"w": w}, point=point, returns=shapes)
        close(found["loss"], S @ value(z, y))
        close(found["gradient"], (S * slope(z, y)) @ rows)
        close(found["weight"], S.sum())
        steps = np.array([0.0, 0.5, 1.0])
        found = of("probe", {"direction": P, "steps": steps}, point=point, direction=2 * point)
        assert found["uncached"] == 0.0
        close(found["values"], [S @ value(z + t * (rows @ P), y) for t in steps])
        bend = S * (slope(z + 1e-6, y) - slope(z - 1e-6, y)) / 2e-6
        found = of("curvature", {"direction": P}, point=point, direction=2 * point + 1)
        close(found["curvature"], bend @ (rows @ P) ** 2, 1e-7)
        close(of("product", {"v": P}, point=point)["hv"], (bend * (rows @ P)) @ rows, 1e-7)
    basis = np.linalg.qr(RNG.normal(size=(7, 3)))[0].T.copy()
    shapes = {"products": basis.shape, "majorant": (7,)}
    found = of("sketch", {"at": W, "basis": basis}, returns=shapes)
    if loss == "squared":
        close(found["products"], basis @ (rows.T * S) @ rows)
        # No Hessian exceeds it.
        close(found["majorant"], (S * rows.sum(axis=1)) @ rows)
    found = of("column_ranges", {})
    np.testing.assert_array_equal(found["largest"], dense.max(axis=0))
    np.testing.assert_array_equal(-found["smallest"], dense.min(axis=0))
    np.testing.assert_array_equal(found["other"] > 0.0, (dense * (1.0 - dense) != 0.0).any(axis=0))
    for weighted, s in ((False, np.ones(60)), (True, S)):
        found = of("column_moments", {"centre": P[:6]}, weighted=weighted)
        close(found["count"], s.sum())
        close(found["total"], s @ (dense - P[:6]))
        close(found["squares"], s @ (dense - P[:6]) ** 2)


def test_a_step_along_the_probed_direction_changes_nothing_however_often_it_is_asked() -> None:
    solver, chunks = make()
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    ask(solver, chunks, "probe", {"direction": P, "steps": np.array([0.5])}, point=0, direction=1)
    step = {"point": 1, "base": 0, "direction": 1, "step": 0.5}
    found, again = (
        ask(solver, chunks, "gradient", {"w": W + 0.5 * P}, **step)["gradient"] for _ in range(2)
    )
    fresh = ask(make()[0], chunks, "gradient", {"w": W + 0.5 * P}, point=1)["gradient"]
    np.testing.assert_allclose(found, fresh, rtol=1e-12)
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_correction_is_of_its_model_and_keeps_the_caches_for_the_next_probe(classes: int) -> None:
    """With several classes margins and slopes share an array.

    The loss was of margins that were overwritten: after a loss without cached anchors, the
    estimated objective of a softmax job was off by a tenth of it.
    """
    y = Y if classes == 2 else np.arange(60) % 3.0
    chunks = split_rows(X, y, 1, weights=S, chunk_rows=7)[0]
    solver = BatchGradientSolver({"loss": "logistic", "intercept": False}, facts_of(chunks))
    w = RNG.normal(size=6 if classes == 2 else 18)
    first = ask(solver, chunks, "gradient", {"w": w}, point=0)
    there = ask(solver, chunks, "gradient", {"w": 2.0 * w}, point=1)
    again = ask(solver, chunks, "gradient", {"w": w}, point=0, scratch=True)
    assert again["loss"] == pytest.approx(float(first["loss"]), rel=1e-13)
    np.testing.assert_allclose(again["gradient"], first["gradient"], rtol=1e-12)
    probe = {"direction": w, "steps": np.array([0.0, -1.0])}
    found = ask(solver, chunks, "probe", probe, point=1, direction=1)
    np.testing.assert_allclose(found["values"], [there["loss"], first["loss"]], rtol=1e-13)
    assert found["uncached"] == 0.0


def test_a_chunk_that_arrived_after_the_gradient_is_counted_as_uncached() -> None:
    solver, chunks = make()
    ask(solver, chunks[1:], "gradient", {"w": W}, point=0)
    probe = {"direction": P, "steps": np.array([1.0])}
    assert ask(solver, chunks, "probe", probe, point=0, direction=1)["uncached"] == 7.0
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    # The direction is not sent again: only chunks that have it take part.
    steps = {"steps": np.array([1.0])}
    assert ask(solver, chunks, "probe", steps, point=0, direction=1)["uncached"] == 7.0
    assert ask(solver, chunks, "probe", probe, point=0, direction=1)["uncached"] == 0.0


def test_an_unknown_operation_is_a_protocol_error() -> None:
    solver, chunks = make()
    with pytest.raises(LocalProtocolError, match="asks for 'spectrum', wanted one of gradient"):
        ask(solver, chunks, "spectrum", {})
