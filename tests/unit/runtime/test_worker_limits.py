"""A member's limits: from its worker and from the job, in memory and on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.registry import memory_use
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.errors import DataError
from elasticml.ids import ChunkId
from elasticml.runtime import worker_limits as budgets
from elasticml.runtime.chunks import chunk_store
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.worker_limits import WorkerLimits

GIB = 2**30


@pytest.fixture(autouse=True)
def _a_process_of_200_mb_and_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "resident_bytes", lambda: 200_000_000)
    for module in ("worker_limits", "chunks.chunk_store"):
        monkeypatch.setattr(f"elasticml.runtime.{module}.disk_room", lambda folder: 10**12)


def chunk(k: int, rows: int = 100, block: int = 0):
    labels = np.arange(float(rows))
    return dense_chunk(ChunkId("s", block, k), labels, np.full((rows, 8), float(k)))


def forms(section: dict[str, str], format: str) -> int:
    return int(memory_use(section, {"format": format})["forms"])


def test_a_worker_offers_its_share_and_the_job_may_request_less() -> None:
    worker = WorkerLimits.of_worker(4 * GIB, Path("/scratch"))
    assert (worker.bodies_bytes, worker.process_bytes) == (int(0.6 * 4 * GIB), int(0.62 * 4 * GIB))
    job = worker.at_most(GIB)
    assert (job.bodies_bytes, job.process_bytes) == (int(0.6 * GIB), GIB)
    small = worker.at_most(GIB // 4)
    assert small.bodies_bytes == int(0.9 * (GIB // 4)) - 200_000_000
    assert worker.at_most(8 * GIB) == worker
    assert worker.at_most(None) is worker


def test_scaled_copies_need_the_same_amount_of_memory_and_disk_again(tmp_path: Path) -> None:
    budget = WorkerLimits.of_worker(4 * GIB, tmp_path)
    rooms = []
    for section in ({"name": "cocoa"}, {"name": "cocoa", "scale": "maxabs"}):
        store = budget.store(forms(section, "svmlight"))
        assert store.room_bytes is not None
        assert store.limit_bytes is not None
        rooms.append((store.limit_bytes, store.room_bytes - store.limit_bytes))
    assert rooms[1] == (rooms[0][0] // 2, rooms[0][1] // 2)
    assert forms({"name": "cocoa", "scale": "auto"}, "svmlight") == 1
    assert forms({"name": "cocoa", "scale": "auto"}, "csv") == 2
    assert forms({"name": "batch_gradient", "scale": "maxabs"}, "csv") == 1
    assert forms({"name": "tests.toy:ALGORITHM"}, "csv") == 1
    # Without a disk nothing else is refused.
    assert WorkerLimits.of_worker(4 * GIB, None).store(2).limit_bytes == int(0.6 * 4 * GIB)


def test_a_process_at_its_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "resident_bytes", lambda: GIB)
    store = WorkerLimits.of_worker(4 * GIB, None).at_most(GIB).store()
    with pytest.raises(DataError, match="its process alone takes as much as it may: use more"):
        store.put([chunk(0)])


def test_a_disk_in_memory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "disk_room", lambda folder: 0)
    assert WorkerLimits.of_worker(GIB, Path("/dev/shm")).folder is None
    assert WorkerLimits.of_worker(GIB, Path("/dev/shm")).store().out_of_core is None


def test_states_of_rows_and_copies_for_scaling_are_in_the_account(tmp_path: Path) -> None:
    room = 7 * chunk(0).nbytes
    went = []
    for forms_, row_bytes in ((1, 0), (1, 40), (3, 0), (1, 200)):
        measured = OutOfCoreStore(GIB, tmp_path, lambda: GIB - room)
        store = ChunkStore(GIB, measured, forms_, row_bytes)
        store.put([chunk(0), chunk(1)])  # they are in the memory that is measured
        went.append(store.is_out_of_core)
    assert went == [False, False, False, True]
    store = ChunkStore(GIB, OutOfCoreStore(GIB, tmp_path, lambda: GIB - room))
    assert not asyncio.run(store.slab([chunk(0).nbytes] * 6)).maps(memoryview(b"0"))
    with_disk = asyncio.run(store.slab([chunk(0).nbytes] * 8))
    assert with_disk.maps(with_disk.take(5))


@pytest.mark.parametrize(("room_in_blocks", "goes_out"), [(0.5, True), (1.5, False)])
def test_the_next_block_is_parsed_beside_the_blocks_that_are_held(
    tmp_path: Path, room_in_blocks: float, goes_out: bool
) -> None:
    block = [chunk(0), chunk(1)]
    room = int(room_in_blocks * sum(one.nbytes for one in block))
    store = ChunkStore(GIB, OutOfCoreStore(GIB, tmp_path, lambda: GIB - room))
    store.put(block)
    assert store.is_out_of_core == goes_out


def test_blocks_that_are_taken_over_are_read_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[list[ChunkId]]()

    def read(source: Any, ids: list[ChunkId], *settings: Any) -> list[Chunk]:
        asked.append(list(ids))
        return [chunk(id.ordinal, block=id.block) for id in ids]

    monkeypatch.setattr(chunk_store, "read_again", read)
    ids = [chunk(k, block=block).id for k in range(2) for block in range(3)]
    store = ChunkStore(3 * chunk(0).nbytes, OutOfCoreStore(GIB, tmp_path, lambda: 0))
    assert store.load(object(), ids, None, 1) == (6 * chunk(0).nbytes, 6 * chunk(0).nbytes)
    assert asked == [[ids[k], ids[k + 3]] for k in range(3)]
    assert set(store.ids()) == set(ids)
    assert store.is_out_of_core
