"""The member's solver: updates applied once, missing states filled, repeatable exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.cocoa.scaled_chunks import scaled_chunk
from elasticml.algorithms.cocoa.solver import CocoaSolver
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import LocalProtocolError
from elasticml.ids import ExchangeId
from elasticml.protocol.events import ExchangeHeader
from tests.chunk_states import send_state
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


def test_the_step_is_kept_in_the_chunk_until_the_next_exchange_gives_its_scale() -> None:
    solver, chunks, partial = solver_after_two_passes()
    assert all(not chunk.state["alpha"].any() for chunk in chunks)
    again = ask(solver, chunks, "pass", 0.4 * partial["dv"], serial=3, settle=2, gamma=0.4)
    np.testing.assert_allclose(image(chunks), 0.4 * partial["dv"], rtol=1e-12, atol=1e-15)
    assert float(again["unset"]) == 0.0
    assert {int(chunk.state["serial"][0]) for chunk in chunks} == {3}


def test_a_repeated_exchange_applies_nothing_twice() -> None:
    solver, chunks, partial = solver_after_two_passes()
    settings = {"serial": 3, "settle": 2, "gamma": 0.4}
    first = ask(solver, chunks, "pass", 0.4 * partial["dv"], **settings)
    again = ask(solver, chunks, "pass", 0.4 * partial["dv"], **settings)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    sums = {"serial": 4, "settle": 3, "gamma": 1.0}
    one = ask(solver, chunks, "certify", ZERO, **sums)
    two = ask(solver, chunks, "certify", ZERO, **sums)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_a_chunk_that_missed_the_last_exchange_takes_no_part_in_a_pass() -> None:
    solver, chunks, partial = solver_after_two_passes(shrink=False)
    missed, others = chunks[0], chunks[1:]
    ask(solver, others, "pass", partial["dv"], serial=3, settle=2, gamma=1.0)
    partial = ask(solver, chunks, "pass", partial["dv"], serial=4, settle=3, gamma=1.0)
    assert (float(partial["unset"]), float(partial["visited"])) == (12.0, 48.0)
    assert int(missed.state["serial"][0]) == 2


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


def test_a_moved_state_continues_where_it_was() -> None:
    solver, chunks, partial = solver_after_two_passes()
    moved = [Chunk(chunk.id, chunk.body) for chunk in chunks]
    for chunk, old in zip(moved, chunks, strict=True):
        send_state(old, chunk)
    other = make()[0]
    settings = {"serial": 3, "settle": 2, "gamma": 0.7}
    here = ask(solver, chunks, "pass", partial["dv"], **settings)
    there = ask(other, moved, "pass", partial["dv"], **settings)
    np.testing.assert_array_equal(here["dv"], there["dv"])


def test_an_unknown_operation_is_a_protocol_error() -> None:
    solver, chunks = make()
    with pytest.raises(LocalProtocolError, match="asks for 'gradient', wanted one of pass"):
        ask(solver, chunks, "gradient", ZERO)


# --- scaled rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr"])
@pytest.mark.parametrize("shifted", [False, True])
def test_scaled_chunks_hold_the_scaled_rows(kind: str, shifted: bool) -> None:
    dense = (X != 0.0) * 1.0 if kind == "binary_csr" else X
    (chunk,) = split_rows(dense if kind == "dense" else sp.csr_matrix(dense), Y, 1, chunk_rows=60)[
        0
    ]
    assert chunk.layout.kind == kind
    factor = RNG.uniform(0.5, 2.0, 5)
    shift = RNG.normal(size=5) if shifted else None
    scaled = scaled_chunk(chunk, factor, shift)
    if scaled.layout.kind == "csr":
        rows = sp.csr_matrix((scaled.values, scaled.indices, scaled.indptr), (60, 5)).toarray()
    else:
        rows = scaled.values
    expected = (dense - (0.0 if shift is None else shift)) * factor
    np.testing.assert_allclose(rows, expected, rtol=1e-14)
    assert scaled.id == chunk.id
    assert scaled_chunk(chunk, None, None) is chunk


def states(chunks: list[Chunk]) -> list[dict[str, np.ndarray]]:
    return [{name: a.copy() for name, a in chunk.state.items()} for chunk in chunks]


def test_a_state_that_is_being_sent_does_not_change_in_the_next_pass() -> None:
    solver, chunks, partial = solver_after_two_passes()
    sent, before = [chunk.state for chunk in chunks], states(chunks)
    ask(solver, chunks, "pass", partial["dv"], serial=3, settle=2, gamma=1.0)
    np.testing.assert_equal(sent, before)
