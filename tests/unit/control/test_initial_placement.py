"""Blocks are read once, by one member each, and the first round waits for all chunks."""

from __future__ import annotations

from typing import Any

from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import (
    Command,
    GiveChunks,
    LoadChunks,
    MergeFacts,
    ReadBlocks,
    StartTrainer,
)
from elasticml.protocol.notices import ContainerMarked
from tests.sim.small_jobs import arrival

A, B = (MemberId(slot, 1) for slot in range(2))


def read(member: MemberId, block: int) -> ev.BlockRead:
    chunk = ChunkInfo(id=ChunkId("s", block, 0), rows=10, nbytes=1)
    return ev.BlockRead(member=member, block=block, chunks=(chunk,))


def reading(n_blocks: int = 2, **settings: Any) -> tuple[Driver, list[Command]]:
    """Let A and B arrive; return the machine and its orders."""
    driver = Driver(DriverSettings(n_blocks=n_blocks, start_members=2, **settings), ())
    driver.handle(arrival(0, slot=0), 0.0)
    return driver, driver.handle(arrival(1, slot=1), 0.0)


def orders(commands: list[Command], kind: type = ReadBlocks) -> dict[MemberId, tuple[Any, ...]]:
    return {
        c.member: c.blocks if kind is ReadBlocks else c.chunks
        for c in commands
        if isinstance(c, kind)
    }


def starts(commands: list[Command]) -> bool:
    return any(isinstance(c, StartTrainer) for c in commands)


def test_a_block_belongs_to_its_reader_and_another_one_that_read_it_holds_a_copy() -> None:
    driver, commands = reading()
    assert orders(commands) == {A: (0,), B: (1,)}
    ledger, chunk = driver.state.ledger, ChunkId("s", 0, 0)
    assert driver.handle(read(B, 0), 0.0) == []
    assert ledger.info == {}
    for _ in range(2):  # a report that comes again
        assert driver.handle(read(A, 0), 0.0) == []
        assert (ledger.owner(chunk), ledger.holders[chunk]) == (A, {A, B})
    (merge,) = driver.handle(read(B, 1), 0.0)
    assert isinstance(merge, MergeFacts)
    assert (ledger.total_rows, merge.survey) == (20, False)


def test_a_survey_that_asks_for_another_one_is_repeated_before_blocks_are_read() -> None:
    driver, _ = reading(1, needs_survey=True)
    (merge,) = driver.handle(read(A, 0), 0.0)
    assert isinstance(merge, MergeFacts)
    assert (merge.survey, driver.state.ledger.info) == (True, {})
    for again in (True, False):
        fixed = ev.FactsFixed(cause="blocks", survey=True, surveys_again=again)
        (order,) = (c for c in driver.handle(fixed, 0.0) if isinstance(c, ReadBlocks))
        assert order.survey == again
        driver.handle(read(A, 0), 0.0)
    assert driver.state.ledger.total_rows == 10


def dealing(n_blocks: int = 2, **settings: Any) -> tuple[Driver, list[Command]]:
    """Let A and B read all blocks; return the machine and the first orders of the placement."""
    driver, commands = reading(n_blocks, **settings)
    for member, blocks in orders(commands).items():
        for block in blocks:
            driver.handle(read(member, block), 0.0)
    return driver, driver.handle(ev.FactsFixed(cause="blocks"), 0.0)


def test_the_first_round_waits_for_owners_that_compile_their_kernels() -> None:
    driver, commands = dealing(warms_up=True)
    assert not starts(commands)
    driver.handle(arrival(2), 0.0)  # a newcomer without chunks is not waited for
    assert not starts(driver.handle(ev.Ready(member=A), 0.0))
    assert starts(driver.handle(ev.Ready(member=B), 0.0))


def test_chunks_that_do_not_arrive_stay_with_their_readers_and_the_first_round_begins() -> None:
    driver, commands = dealing(4)
    given = orders(commands, GiveChunks)
    assert given == {A: (ChunkId("s", 2, 0),), B: (ChunkId("s", 1, 0),)}
    hold_s = driver.state.settings.hold_s_max
    (order,) = (c.order for c in commands if isinstance(c, GiveChunks) and c.member == A)
    driver.handle(ev.Ticked(), 0.0)
    loaded = ev.ChunksLoaded(member=B, chunks=given[A], order=order, nbytes=1)
    driver.handle(loaded, 1.0)
    for now_s in (hold_s, 2 * hold_s - 1.0):
        assert not starts(driver.placement.ticked(now_s))
    assert starts(driver.placement.ticked(2 * hold_s))
    assert driver.state.ledger.owner(given[B][0]) == B


def test_a_member_that_returns_reads_its_chunks_before_a_marked_one_does() -> None:
    """It was taken for lost, so that the marked one, the only other member, had to read them."""
    driver, _ = dealing(warms_up=True, members_min=2)
    driver.handle(ContainerMarked(address="w0", grace_s=5.0, negotiable=True), 0.0)
    commands = driver.handle(arrival(1, slot=1), 0.0)
    assert orders(commands, LoadChunks) == {MemberId(1, 2): (ChunkId("s", 1, 0),)}
