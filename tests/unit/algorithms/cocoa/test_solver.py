"""The member's solver: updates applied once, missing states filled, repeatable exchanges."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassRequest, PassResult
from elasticml.algorithms.cocoa.scaled_chunks import scaled_chunk
from elasticml.algorithms.cocoa.solver import CocoaSolver
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import ExchangeId
from elasticml.protocol.events import ExchangeHeader
from tests.serial_world import facts_of, split_rows

RNG = np.random.default_rng(3)
X = np.where(RNG.random((60, 5)) < 0.5, RNG.normal(size=(60, 5)), 0.0)
Y = np.sign(RNG.normal(size=60))
L2 = 0.1


def make(**settings: Any) -> tuple[CocoaSolver, list[Chunk]]:
    chunks = split_rows(X, Y, 1, chunk_rows=12)[0]
    return CocoaSolver({"loss": "hinge", "l2": L2, **settings}, facts_of(chunks)), chunks


def ask(
    solver: CocoaSolver, chunks: list[Chunk], operation: str, v: np.ndarray, **given: Any
) -> dict[str, np.ndarray]:
    more, parallel = given.pop("model", {}), given.pop("parallel", Serial())
    parameters = {
        "gamma": 0.0,
        "fill": "zero",
        "damping": 1.0,
        "sigma": 0.0,
        "sigma_per_member": 0.0,
        "local_epochs": 1.0,
        "seed": 0,
        "weight": 60.0,
        "exact": False,
        **given,
    }
    work = ExchangeHeader(
        exchange=ExchangeId(1),
        operation=operation,
        model={"v": v, "sent": v, **more},
        parameters=parameters,
        returns={},
        members=3,
    )
    return dict(solver.compute(work, chunks, parallel))


def image(chunks: list[Chunk]) -> np.ndarray:
    parts = (c.values.T @ (c.labels * c.state["alpha"]) for c in chunks)
    return np.asarray(sum(parts)) / (L2 * 60)


ZERO = np.zeros(5)


def solver_after_two_passes(
    **settings: Any,
) -> tuple[CocoaSolver, list[Chunk], dict[str, np.ndarray]]:
    """Return a solver after a certificate and passes with serials 1 and 2."""
    solver, chunks = make(**settings)
    ask(solver, chunks, "certify", ZERO, serial=1, settle=0)
    return solver, chunks, ask(solver, chunks, "pass", ZERO, serial=2, settle=1)


def test_a_step_is_taken_once_with_the_scale_of_the_next_exchange() -> None:
    # Without shrinking both make the same visits: a repeated pass visits all rows.
    solver, chunks, partial = solver_after_two_passes(shrink=False)
    assert all(not chunk.state["alpha"].any() for chunk in chunks)
    sent = [chunk.state for chunk in chunks]
    before = copy.deepcopy(sent)
    settings = {"serial": 3, "settle": 2, "gamma": 0.4}
    one, two = (ask(solver, chunks, "pass", 0.4 * partial["dv"], **settings) for _ in range(2))
    np.testing.assert_equal(one, two)
    np.testing.assert_allclose(image(chunks), 0.4 * partial["dv"], rtol=1e-12, atol=1e-15)
    assert float(one["unset"]) == 0.0
    assert {int(chunk.state["serial"][0]) for chunk in chunks} == {3}
    # A state that is being sent does not change.
    np.testing.assert_equal(sent, before)
    sums = {"serial": 4, "settle": 3, "gamma": 1.0}
    np.testing.assert_equal(*(ask(solver, chunks, "certify", ZERO, **sums) for _ in range(2)))


@pytest.mark.parametrize("aggregation", ["fixed", "line_search"])
def test_a_pass_knows_whether_a_line_search_follows(
    aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, run = [], LocalSolver.run

    def recorded(self: LocalSolver, v: Any, request: PassRequest, parallel: Any) -> PassResult:
        requests.append(request)
        return run(self, v, request, parallel)

    monkeypatch.setattr(LocalSolver, "run", recorded)
    solver_after_two_passes(aggregation=aggregation)
    assert [request.searches for request in requests] == [aggregation == "line_search"]


def test_a_certificate_keeps_recent_duals_and_maps_the_others_from_the_model() -> None:
    solver, chunks, _ = solver_after_two_passes()
    v = RNG.normal(size=5)
    chunks[0].state.clear()
    kept = chunks[1].state["alpha"] = np.full(12, 0.25)
    settings = {"settle": 4, "gamma": 1.0, "fill": "map"}
    partial = ask(solver, chunks[:2], "certify", v, serial=5, **settings)
    assert float(partial["unset"]) == 24.0
    margins = chunks[0].labels * (chunks[0].values @ v)
    np.testing.assert_array_equal(chunks[0].state["alpha"], (margins < 1.0) * 1.0)
    np.testing.assert_array_equal(chunks[1].state["alpha"], kept)
    # Two exchanges later they are worse than those from the model.
    chunks[1].state["serial"][0] = 2
    ask(solver, chunks[:2], "certify", v, serial=8, **{**settings, "settle": 7})
    margins = chunks[1].labels * (chunks[1].values @ v)
    np.testing.assert_array_equal(chunks[1].state["alpha"], (margins < 1.0) * 1.0)


def test_sparse_rows_are_scaled_and_shifted_as_dense_ones() -> None:
    factor, shift = np.arange(1.0, 6.0), np.array([0.0, 3.0, 0.0, -1.0, 0.0])
    chunks = [split_rows(rows, Y, 1, chunk_rows=12)[0][0] for rows in (X, csr_array(X))]
    dense, sparse = (scaled_chunk(chunk, factor, shift) for chunk in chunks)
    rows = csr_array((sparse.values, sparse.indices, sparse.indptr), dense.values.shape)
    np.testing.assert_allclose(rows.toarray(), dense.values)
