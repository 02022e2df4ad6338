"""DuHL on out-of-core chunks: passes read those with most of the gap, and each chunk sometimes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from elasticml.algorithms.cocoa.duhl import EVERY, DuhlSelection
from elasticml.algorithms.cocoa.permutation import VisitOrder
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.ids import ChunkId
from tests.unit.algorithms.cocoa.local_problem import on_disk, problem


def chunks(n: int) -> list[Chunk]:
    return [dense_chunk(ChunkId("s", 0, k), np.zeros(8), np.zeros((8, 4))) for k in range(n)]


def named(some: Sequence[Chunk], gaps: Sequence[float]) -> dict[ChunkId, float]:
    return {chunk.id: gap for chunk, gap in zip(some, gaps, strict=True)}


def selection_after_certificate(
    some: Sequence[Chunk], gaps: Sequence[float]
) -> tuple[DuhlSelection, dict[ChunkId, float]]:
    """Return the selection after a pass over all chunks and a certificate."""
    turns = DuhlSelection()
    assert turns.next(some, {}, set()).all()
    return turns, named(some, gaps)


def ten(turns: DuhlSelection, some: Sequence[Chunk], known: dict[ChunkId, float]) -> list[int]:
    return np.flatnonzero(turns.next(some, known, set())).tolist()


def test_a_pass_reads_the_chunks_that_hold_most_of_the_gap() -> None:
    some = chunks(10)
    gaps = [0.1, 50.0, 0.1, 39.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.8]
    turns, known = selection_after_certificate(some, gaps)
    assert ten(turns, some, known) == [1, 3, 9]
    # Chunks in memory are visited, too, and count with their share.
    turns, known = selection_after_certificate(some, gaps)
    staying = {some[0].id, some[1].id}
    assert np.flatnonzero(turns.next(some, known, staying)).tolist() == [0, 1, 3, 9]


def test_a_visited_chunk_counts_for_less_until_the_next_certificate() -> None:
    some = chunks(10)
    turns, known = selection_after_certificate(some, [100.0, 20.0, *[0.5] * 8])
    assert ten(turns, some, known) == [0, 1]
    # 10, 2 and eight times 0.5 are left: 90 % of it takes more than half of them, so all.
    assert ten(turns, some, known) == list(range(10))
    assert ten(turns, some, dict(known)) == [0, 1]


def test_every_chunk_is_visited_within_a_few_passes() -> None:
    some = chunks(40)
    turns, _ = selection_after_certificate(some, [0.0] * 40)
    last = [0] * 40
    for number in range(1, 30):
        # Before each pass a certificate gives all of the gap to one chunk.
        chosen = turns.next(some, named(some, [1.0, *[0.0] * 39]), set())
        assert chosen[0]
        for k in np.flatnonzero(chosen):
            assert number - last[k] <= EVERY
            last[k] = number
    assert min(last) >= 29 - EVERY


@pytest.mark.parametrize(
    "gaps", [[0.0] * 10, [np.nan] * 10, [np.inf, *[0.0] * 9], [-1e-12] * 10, [1.0, *[np.nan] * 9]]
)
def test_a_gap_that_is_not_a_number_leaves_nothing_out(gaps: list[float]) -> None:
    some = chunks(10)
    turns, known = selection_after_certificate(some, gaps)
    assert ten(turns, some, known) == list(range(10))


def test_a_pass_reads_only_the_selected_chunks(tmp_path: Path) -> None:
    p = on_disk(problem("csr", "hinge"), tmp_path)
    here = p.pieces[0].chunk.out_of_core
    assert here is not None
    orders = {skips: VisitOrder(skips=skips) for skips in (False, True)}
    for each in orders.values():
        each.bind(p.pieces, 8)

    def seen(skips: bool, serial: int, **given: bool) -> set[int]:
        parts = list(orders[skips].epoch((3, serial, 0), 1.0, **given))
        return {int(visit) >> 32 for part in parts for visit in part}

    assert seen(True, 1) == {0, 1, 2, 3}
    here.set_importance({piece.chunk.id: float(k == 2) for k, piece in enumerate(p.pieces)})
    before = here.streamed_bytes
    assert seen(True, 2) == {2}
    assert here.streamed_bytes - before == p.pieces[2].chunk.nbytes
    assert seen(False, 3) == {0, 1, 2, 3}
    assert seen(True, 4, whole=True) == {0, 1, 2, 3}


def test_a_solver_that_repeats_a_pass_reads_all_chunks(tmp_path: Path) -> None:
    p = on_disk(problem("csr", "hinge"), tmp_path, batch_bytes=1)
    here, solver = p.pieces[0].chunk.out_of_core, p.solver(shrink=False)
    assert here is not None
    v = p.run(solver, np.zeros(p.X.shape[1]), 0).dv
    gaps = [0.03, 0.03, 1.0, 0.03]
    here.set_importance(named([piece.chunk for piece in p.pieces], gaps))
    assert [p.run(solver, v, 1).visited for _ in range(2)] == [60, 230]


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_passes_that_leave_chunks_out_reach_the_optimum(tmp_path: Path, loss: str) -> None:
    p = on_disk(problem("csr", loss), tmp_path, batch_bytes=1)
    here, solver, v = p.pieces[0].chunk.out_of_core, p.solver(), np.zeros(p.X.shape[1])
    assert here is not None
    visited = []
    for serial in range(240):
        # With wrong shares, too: chunks that are left out return all the same.
        here.set_importance(
            {piece.chunk.id: float(k == serial % 2) for k, piece in enumerate(p.pieces)}
        )
        update = p.run(solver, v, serial)
        v = v + update.dv
        visited.append(update.visited)
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-12 * np.abs(v).max())
    assert p.primal(v) - p.dual() < 1e-9
    assert min(visited[1:]) < 70
