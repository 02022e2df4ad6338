"""DuHL on chunks from a disk: passes read those that matter, and each chunk now and then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from elasticml.algorithms.cocoa.duhl import EVERY, DuhlSelection
from elasticml.algorithms.cocoa.permutation import VisitOrder
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.ids import ChunkId
from tests.unit.algorithms.cocoa.local_problem import problem
from tests.unit.algorithms.cocoa.test_out_of_core_passes import streamed


def chunks(n: int, rows: Sequence[int] | None = None) -> list[Chunk]:
    sizes = [8] * n if rows is None else rows
    return [
        dense_chunk(ChunkId("s", 0, k), np.zeros(size), np.zeros((size, 4)))
        for k, size in enumerate(sizes)
    ]


def named(some: Sequence[Chunk], gaps: Sequence[float]) -> dict[ChunkId, float]:
    return {chunk.id: gap for chunk, gap in zip(some, gaps, strict=True)}


def key(serial: int, epoch: int = 0) -> tuple[int, int, int]:
    return 7, serial, epoch


def begun(
    some: Sequence[Chunk], gaps: Sequence[float]
) -> tuple[DuhlSelection, dict[ChunkId, float]]:
    """Return the selection after a pass over all chunks and a certificate."""
    turns = DuhlSelection()
    assert turns.next(key(0), some, {}, set()).all()
    return turns, named(some, gaps)


def ten(
    turns: DuhlSelection, some: Sequence[Chunk], known: dict[ChunkId, float], serial: int = 1
) -> list[int]:
    return np.flatnonzero(turns.next(key(serial), some, known, set())).tolist()


def test_a_pass_goes_over_those_that_hold_most_of_the_gap() -> None:
    some = chunks(10)
    turns, known = begun(some, [0.1, 50.0, 0.1, 39.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.8])
    assert ten(turns, some, known) == [1, 3, 9]


def test_after_its_turn_a_chunk_counts_for_less_until_the_next_certificate() -> None:
    some = chunks(10)
    turns, known = begun(some, [100.0, 20.0, *[0.5] * 8])
    assert ten(turns, some, known) == [0, 1]
    # 10, 2 and eight times 0.5 are left: 90 % of it takes more than half of them, so all.
    assert ten(turns, some, known, 2) == list(range(10))
    assert ten(turns, some, dict(known), 3) == [0, 1]


def test_a_pass_that_is_repeated_goes_over_the_same_chunks_and_counts_once() -> None:
    some = chunks(10)
    turns, known = begun(some, [100.0, 20.0, *[0.5] * 8])
    for _ in range(EVERY):  # more often than a chunk may wait
        assert [np.flatnonzero(turns.next(key(1, e), some, known, set())).size for e in (0, 1)] == [
            2,
            10,
        ]
    once, _ = begun(some, [100.0, 20.0, *[0.5] * 8])
    for epoch in (0, 1):
        once.next(key(1, epoch), some, known, set())
    again = dict(known)
    for serial in range(2, 12):
        assert ten(turns, some, again, serial) == ten(once, some, again, serial)


def test_a_pass_that_is_undone_is_no_turn_and_its_number_is_kept() -> None:
    some = chunks(10)
    gaps = [100.0, 20.0, *[0.5] * 8]
    turns, known = begun(some, gaps)
    for serial in range(1, 1 + EVERY - 1):
        assert ten(turns, some, known, serial) == [0, 1]
        turns.undo()
    # Nothing of the gap has gone, but the others have waited for as long as they may, and so have
    # these two, whose turns were none.
    assert ten(turns, some, known, EVERY) == list(range(10))


def test_a_pass_that_is_undone_is_undone_again_where_it_is_repeated() -> None:
    some = chunks(10)
    turns, known = begun(some, [100.0, 20.0, *[0.5] * 8])
    for _ in range(EVERY):
        assert ten(turns, some, known) == [0, 1]
        turns.undo()
    assert ten(turns, some, known, 2) == [0, 1]


@pytest.mark.parametrize("is_undone", [False, True])
def test_orders_take_the_turns_of_their_last_epoch_back(tmp_path: Path, is_undone: bool) -> None:
    p = streamed(problem("csr", "hinge"), tmp_path)
    orders, here = VisitOrder(8, skips=True), p.pieces[0].chunk.out_of_core
    orders.bind(p.pieces)
    assert here is not None

    def visited(serial: int, share: float = 1.0) -> set[int]:
        order = orders.epoch((3, serial, 0), share)
        return {int(visit) >> 32 for part in order for visit in part}

    assert len(visited(0)) == len(p.pieces)
    here.set_importance(
        {piece.chunk.id: 100.0 if k == 1 else 2.0 for k, piece in enumerate(p.pieces)}
    )
    assert visited(1) == {1}
    if is_undone:
        orders.undo()
    visited(2, 0.5)  # of chunks at random, which is no turn: there is nothing to take back
    orders.undo()
    assert visited(3) == ({1} if is_undone else set(range(len(p.pieces))))


def test_a_pass_that_is_repeated_over_other_chunks_has_a_choice_of_its_own() -> None:
    some = chunks(10)
    turns, known = begun(some, [100.0, 50.0, *[0.5] * 8])
    assert ten(turns, some, known) == [0, 1]
    assert turns.next(key(1), some, known, set(), whole=True).all()
    assert ten(turns, some[1:], known) == [0]
    # What the discarded attempts went over has not had its turn.
    assert ten(turns, some, known) == [0, 1]


def test_where_all_matter_alike_nothing_is_left_out() -> None:
    some = chunks(10)
    turns, known = begun(some, [1.0] * 10)
    for serial in range(1, 6):
        assert ten(turns, some, known, serial) == list(range(10))


def test_every_chunk_has_its_turn_in_one_of_a_few_passes() -> None:
    some = chunks(40)
    turns, _ = begun(some, [0.0] * 40)
    last = [0] * 40
    for number in range(1, 30):
        # A certificate before each pass says that one chunk alone matters.
        chosen = turns.next(key(number), some, named(some, [1.0, *[0.0] * 39]), set())
        assert chosen[0]
        for k in np.flatnonzero(chosen):
            assert number - last[k] <= EVERY
            last[k] = number
    assert min(last) >= 29 - EVERY


def test_what_is_in_memory_has_its_turn_and_counts_for_what_it_holds() -> None:
    some = chunks(10)
    turns, known = begun(some, [0.0, 95.0, 0.0, 4.0, 1.0, *[0.0] * 5])
    staying = {some[0].id, some[1].id}
    assert np.flatnonzero(turns.next(key(1), some, known, staying)).tolist() == [0, 1, 3]


def test_small_chunks_come_before_large_ones_of_the_same_share() -> None:
    some = chunks(6, [8, 800, 8, 8, 8, 800])
    turns, known = begun(some, [30.0, 30.0, 30.0, 30.0, 0.0, 0.0])
    known[some[1].id] = 10.0
    assert ten(turns, some, known) == [0, 2, 3]


@pytest.mark.parametrize(
    "gaps", [[0.0] * 10, [np.nan] * 10, [np.inf, *[0.0] * 9], [-1e-12] * 10, [1.0, *[np.nan] * 9]]
)
def test_a_gap_that_is_no_number_leaves_nothing_out(gaps: list[float]) -> None:
    some = chunks(10)
    turns, known = begun(some, gaps)
    assert ten(turns, some, known) == list(range(10))


def test_chunks_that_have_come_since_are_not_left_out() -> None:
    some = chunks(10)
    turns, known = begun(some, [100.0, *[0.1] * 9])
    more = chunks(11)
    assert turns.next(key(1), more, known, set()).all()
    assert ten(turns, more, named(more, [100.0, *[0.1] * 10]), 2) == [0]


def test_no_chunks_and_one_chunk() -> None:
    turns = DuhlSelection()
    assert turns.next(key(0), [], {}, set()).size == 0
    (one,) = chunks(1)
    for serial in range(1, 4):
        assert turns.next(key(serial), [one], {one.id: 1.0}, set()).tolist() == [True]


def test_a_pass_reads_only_what_has_its_turn(tmp_path: Path) -> None:
    p = streamed(problem("csr", "hinge"), tmp_path)
    here = p.pieces[0].chunk.out_of_core
    assert here is not None
    orders = {skips: VisitOrder(8, skips=skips) for skips in (False, True)}
    for each in orders.values():
        each.bind(p.pieces)

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


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_passes_that_leave_chunks_out_reach_the_optimum(tmp_path: Path, loss: str) -> None:
    p = streamed(problem("csr", loss), tmp_path, batch_bytes=1)
    here, solver, v = p.pieces[0].chunk.out_of_core, p.solver(), np.zeros(p.X.shape[1])
    assert here is not None
    visited = []
    for serial in range(240):
        # Said wrongly, too: what is left out comes back all the same.
        here.set_importance(
            {piece.chunk.id: float(k == serial % 2) for k, piece in enumerate(p.pieces)}
        )
        update = p.run(solver, v, serial)
        v = v + update.dv
        visited.append(update.visited)
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-12 * np.abs(v).max())
    assert p.primal(v) - p.dual() < 1e-9
    assert min(visited[1:]) < 70
