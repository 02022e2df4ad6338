"""The member's solver: exact sums, caches without effect on results, any chunk kind, any
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tests.serial_world import facts_of, split_rows

RNG = np.random.default_rng(5)
X = np.where(RNG.random((60, 6)) < 0.4, RNG.integers(1, 4, (60, 6)), 0).astype(float)
Y = np.where(RNG.random(60) < 0.3, 2.0, 0.0)
S = RNG.uniform(0.5, 2.0, 60)
W = RNG.normal(size=7)
P = RNG.normal(size=7)
BINARY = sp.csr_matrix((X > 0).astype(float))
KINDS: dict[str, Any] = {"dense": X, "csr": sp.csr_matrix(X), "binary_csr": BINARY}


class Threads:
    """Split the work as if there were three threads."""

    n_threads = 3

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [function(item) for item in items]


def ask(
    solver: BatchGradientSolver, chunks: list[Chunk], operation: str, model: dict, **parameters
):
    work = ExchangeHeader(
        exchange=ExchangeId(1), operation=operation, model=model, parameters=parameters, returns={}
    )
    return solver.compute(work, chunks, Serial())


def make(data: Any, **settings: Any) -> tuple[BatchGradientSolver, list[Chunk]]:
    chunks = split_rows(data, Y, 1, weights=S, chunk_rows=7)[0]
    settings = {"loss": "logistic", "intercept": True, **settings}
    return BatchGradientSolver(settings, facts_of(chunks)), chunks


def by_hand(dense: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray]:
    y = np.where(Y == 2.0, 1.0, -1.0)
    margins = dense @ w[:6] + w[6]
    slope = S * -y / (1 + np.exp(y * margins))
    value = float(np.sum(S * np.logaddexp(0, -y * margins)))
    return value, np.append(dense.T @ slope, slope.sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallel", [Serial(), Threads()], ids=["serial", "threads"])
def test_loss_gradient_and_weight_are_the_sums_over_the_chunks(kind: str, parallel: Any) -> None:
    solver, chunks = make(KINDS[kind])
    assert chunks[0].layout.kind == kind
    dense = KINDS[kind].toarray() if sp.issparse(KINDS[kind]) else KINDS[kind]
    work = ExchangeHeader(
        exchange=ExchangeId(1),
        operation="gradient",
        model={"w": W},
        parameters={"point": 0},
        returns={"loss": (), "gradient": (7,), "weight": ()},
    )
    partial = solver.compute(work, chunks, parallel)
    value, gradient = by_hand(dense, W)
    np.testing.assert_allclose(partial["loss"], value, rtol=1e-13)
    np.testing.assert_allclose(partial["gradient"], gradient, rtol=1e-12)
    np.testing.assert_allclose(partial["weight"], S.sum(), rtol=1e-14)


def test_a_step_along_the_probed_direction_changes_nothing() -> None:
    solver, chunks = make(X)
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    ask(solver, chunks, "probe", {"direction": P, "steps": np.array([0.5])}, point=0, direction=1)
    partial = ask(
        solver, chunks, "gradient", {"w": W + 0.5 * P}, point=1, base=0, direction=1, step=0.5
    )
    fresh = ask(make(X)[0], chunks, "gradient", {"w": W + 0.5 * P}, point=1)
    np.testing.assert_allclose(partial["gradient"], fresh["gradient"], rtol=1e-12)


def test_the_same_exchange_computed_twice_gives_the_same_bits() -> None:
    solver, chunks = make(X)
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    ask(solver, chunks, "probe", {"direction": P, "steps": np.array([0.5])}, point=0, direction=1)
    step = {"point": 1, "base": 0, "direction": 1, "step": 0.5}
    first = ask(solver, chunks, "gradient", {"w": W + 0.5 * P}, **step)
    again = ask(solver, chunks, "gradient", {"w": W + 0.5 * P}, **step)
    np.testing.assert_array_equal(first["gradient"], again["gradient"])


def test_a_correction_keeps_the_caches_for_the_next_probe() -> None:
    solver, chunks = make(X)
    ask(solver, chunks, "gradient", {"w": W}, point=3)
    there = ask(solver, chunks, "gradient", {"w": P}, point=2, scratch=True)
    np.testing.assert_allclose(there["gradient"], by_hand(X, P)[1], rtol=1e-12)
    probe = {"direction": P, "steps": np.array([0.0, 1.0])}
    partial = ask(solver, chunks, "probe", probe, point=3, direction=1)
    expected = [by_hand(X, W)[0], by_hand(X, W + P)[0]]
    np.testing.assert_allclose(partial["values"], expected, rtol=1e-13)
    assert partial["uncached"] == 0.0


def test_a_chunk_that_arrived_after_the_gradient_is_counted_as_uncached() -> None:
    solver, chunks = make(X)
    ask(solver, chunks[1:], "gradient", {"w": W}, point=0)
    probe = {"direction": P, "steps": np.array([1.0])}
    assert ask(solver, chunks, "probe", probe, point=0, direction=1)["uncached"] == 7.0
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    # The direction is not sent again: only chunks that have it take part.
    steps = {"steps": np.array([1.0])}
    assert ask(solver, chunks, "probe", steps, point=0, direction=1)["uncached"] == 7.0
    partial = ask(solver, chunks, "probe", probe, point=0, direction=1)
    assert partial["uncached"] == 0.0
    np.testing.assert_allclose(partial["values"], [by_hand(X, W + P)[0]], rtol=1e-13)


def test_sums_over_chunks_on_disk_have_the_same_bits(tmp_path: Path) -> None:
    results = []
    here = OutOfCoreStore(2**30, tmp_path, lambda: 0)
    for is_on_disk in (False, True):
        solver, chunks = make(X)
        chunks = here.settle(chunks) if is_on_disk else chunks
        gradient = ask(solver, chunks, "gradient", {"w": W}, point=0)["gradient"]
        curvature = ask(solver, chunks, "curvature", {"direction": P}, point=0, direction=1)
        again = ask(solver, chunks, "curvature", {}, point=0, direction=1)["curvature"]
        hv = ask(solver, chunks, "product", {"v": P}, point=0)["hv"]
        results.append([a.tobytes() for a in (gradient, curvature["curvature"], again, hv)])
    assert results[0] == results[1]


def test_curvature_is_the_second_difference_of_the_loss() -> None:
    solver, chunks = make(X)
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    partial = ask(solver, chunks, "curvature", {"direction": P}, point=0, direction=1)
    h = 1e-4
    values = [by_hand(X, W + t * P)[0] for t in (-h, 0.0, h)]
    expected = (values[0] - 2 * values[1] + values[2]) / h**2
    np.testing.assert_allclose(partial["curvature"], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "smoothed_hinge"])
def test_a_product_with_the_hessian_is_the_gradients_difference(kind: str, loss: str) -> None:
    solver, chunks = make(KINDS[kind], loss=loss)
    ask(solver, chunks, "gradient", {"w": W}, point=0)
    partial = ask(solver, chunks, "product", {"v": P}, point=0)
    assert partial["uncached"] == 0.0
    h = 1e-6
    ends = [
        ask(make(KINDS[kind], loss=loss)[0], chunks, "gradient", {"w": W + t * P}, point=0)
        for t in (-h, h)
    ]
    expected = (ends[1]["gradient"] - ends[0]["gradient"]) / (2 * h)
    np.testing.assert_allclose(
        partial["hv"], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
    )
    # A step later, the second derivatives are those at the new point.
    ask(solver, chunks, "gradient", {"w": W + P}, point=1)
    moved = ask(solver, chunks, "product", {"v": P}, point=1)
    fresh = make(KINDS[kind], loss=loss)[0]
    ask(fresh, chunks, "gradient", {"w": W + P}, point=1)
    np.testing.assert_array_equal(
        moved["hv"], ask(fresh, chunks, "product", {"v": P}, point=1)["hv"]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_column_statistics_match_numpy(kind: str) -> None:
    solver, chunks = make(KINDS[kind])
    dense = KINDS[kind].toarray() if sp.issparse(KINDS[kind]) else KINDS[kind]
    found = ask(solver, chunks, "column_ranges", {})
    np.testing.assert_array_equal(found["largest"], dense.max(axis=0))
    np.testing.assert_array_equal(-found["smallest"], dense.min(axis=0))
    np.testing.assert_array_equal(found["other"] > 0.0, (dense * (1.0 - dense) != 0.0).any(axis=0))
    plain = ask(solver, chunks, "column_moments", {"centre": P[:6]}, weighted=False)
    assert plain["count"] == 60
    np.testing.assert_allclose(plain["total"], (dense - P[:6]).sum(axis=0))
    np.testing.assert_allclose(plain["squares"], ((dense - P[:6]) ** 2).sum(axis=0))
    weighted = ask(solver, chunks, "column_moments", {"centre": P[:6]}, weighted=True)
    np.testing.assert_allclose(weighted["count"], S.sum())
    np.testing.assert_allclose(weighted["squares"], S @ (dense - P[:6]) ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_sketches_and_majorants_are_those_of_the_rows(kind: str) -> None:
    """A sketch is the Hessian's product with each direction; no Hessian exceeds the majorant."""
    solver, chunks = make(KINDS[kind], loss="squared")
    dense = KINDS[kind].toarray() if sp.issparse(KINDS[kind]) else KINDS[kind]
    rows = np.column_stack([dense, np.ones(60)])
    basis = np.linalg.qr(RNG.normal(size=(7, 3)))[0].T.copy()
    work = ExchangeHeader(
        exchange=ExchangeId(1),
        operation="sketch",
        model={"at": W, "basis": basis},
        parameters={},
        returns={"products": basis.shape, "majorant": (7,)},
    )
    found = solver.compute(work, chunks, Serial())
    np.testing.assert_allclose(found["products"], basis @ (rows.T * S) @ rows, rtol=1e-10)
    np.testing.assert_allclose(found["majorant"], (S * rows.sum(axis=1)) @ rows, rtol=1e-12)


def test_a_correction_with_several_classes_has_the_loss_of_its_model() -> None:
    """Its margins and slopes share an array: the loss was of margins that were overwritten.

    After a loss without cached anchors, the estimated objective of a softmax job was off by a tenth
    of it, and so far outside its bound.
    """
    chunks = split_rows(X, np.arange(60) % 3.0, 1, weights=S, chunk_rows=7)[0]
    solver = BatchGradientSolver({"loss": "logistic", "intercept": False}, facts_of(chunks))
    w = RNG.normal(size=18)
    first = ask(solver, chunks, "gradient", {"w": w}, point=0)
    ask(solver, chunks, "gradient", {"w": 2.0 * w}, point=1)
    again = ask(solver, chunks, "gradient", {"w": w}, point=0, scratch=True)
    assert again["loss"] == pytest.approx(float(first["loss"]), rel=1e-13)
    np.testing.assert_allclose(again["gradient"], first["gradient"], rtol=1e-12)


def test_an_unknown_operation_is_a_protocol_error() -> None:
    solver, chunks = make(X)
    with pytest.raises(LocalProtocolError, match="asks for 'spectrum', wanted one of gradient"):
        ask(solver, chunks, "spectrum", {})
