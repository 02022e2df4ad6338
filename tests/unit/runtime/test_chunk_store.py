"""A member's chunks: never beyond its memory, and none after a drop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.chunk_folder import convert
from elasticml.errors import DataError
from elasticml.ids import ChunkId
from elasticml.runtime.chunks.chunk_store import ChunkStore
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.unit.data.chunks.test_chunk import damaged_chunk, mapped_chunk, random_chunk


def chunk(ordinal: int) -> Chunk:
    return dense_chunk(ChunkId("s", 0, ordinal), np.zeros(4), np.zeros((4, 4)))


def test_chunks_that_do_not_fit_are_refused_whole() -> None:
    store = ChunkStore(limit_bytes=3 * chunk(0).nbytes)
    store.put([chunk(0), chunk(1)])
    with pytest.raises(DataError, match="its limit is"):
        store.put([chunk(2), chunk(3)])
    assert (len(store.chunks), store.held_bytes) == (2, 2 * chunk(0).nbytes)
    store.put([chunk(1), chunk(2)])
    assert len(store.chunks) == 3


class Gate(OutOfCoreStore):
    """A disk that accepts bodies only after a release; it reports when a write waits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(2**20, folder, lambda: 0)
        self.reached, self.released = threading.Event(), threading.Event()
        self.thread = 0

    def settle(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        self.thread = threading.get_ident()
        self.reached.set()
        # A blocked event loop would never release it.
        assert self.released.wait(60)
        return super().settle(chunks)


def stateful(ordinal: int) -> Chunk:
    made = chunk(ordinal)
    made.state, made.state_version = {"alpha": np.zeros(4)}, 1
    return made


def change_during_copy(
    tmp_path: Path, meanwhile: Callable[[ChunkStore], object], ordinals: Sequence[int] = (3,)
) -> ChunkStore:
    """A store of three chunks whose next ones do not fit; a function is called while all are
    copied.
    """
    gate = Gate(tmp_path)
    store = ChunkStore(3 * chunk(0).nbytes, gate)
    store.put([stateful(k) for k in range(3)])

    async def both() -> None:
        taking = asyncio.create_task(store.take([stateful(k) for k in ordinals]))
        await asyncio.to_thread(gate.reached.wait, 60)
        assert gate.thread != threading.get_ident()
        meanwhile(store)
        gate.released.set()
        await taking

    asyncio.run(both())
    return store


def test_the_event_loop_continues_while_bodies_are_copied_to_disk(tmp_path: Path) -> None:
    seen: list[object] = []

    def look(store: ChunkStore) -> None:
        seen.extend([store.ids(), store.held_bytes, store.buffer(100).nbytes])

    store = change_during_copy(tmp_path, look)
    assert seen == [[chunk(k).id for k in range(3)], 4 * chunk(0).nbytes, 100]
    assert store.ids() == [chunk(k).id for k in range(4)]
    assert all(c.is_mapped and c.out_of_core is store.out_of_core for c in store.chunks.values())
    assert store.held_bytes == 4 * chunk(0).nbytes
    assert store.is_out_of_core


def test_a_chunk_dropped_during_its_copy_stays_dropped(tmp_path: Path) -> None:
    store = change_during_copy(tmp_path, lambda store: store.drop([chunk(1).id]))
    assert [id.ordinal for id in store.ids()] == [0, 2, 3]
    assert store.held_bytes == 3 * chunk(0).nbytes


def test_a_state_received_during_a_copy_is_kept(tmp_path: Path) -> None:
    new = {"alpha": np.ones(4)}
    store = change_during_copy(tmp_path, lambda store: store.set_state(chunk(1).id, new, 7))
    actual = store.chunks[chunk(1).id]
    assert actual.is_mapped
    assert (actual.state["alpha"].tolist(), actual.state_version) == ([1.0] * 4, 7)


def test_a_chunk_owned_during_its_copy_stays_where_it_is(tmp_path: Path) -> None:
    owned: list[Chunk] = []
    store = change_during_copy(tmp_path, lambda store: owned.extend(store.own([chunk(0).id])))
    assert store.chunks[chunk(0).id] is owned[0]
    assert not owned[0].is_mapped
    assert [store.chunks[chunk(k).id].is_mapped for k in (1, 2, 3)] == [True] * 3


def test_memory_is_freed_when_the_disk_is_full(tmp_path: Path) -> None:
    store = ChunkStore(chunk(0).nbytes, OutOfCoreStore(2**20, tmp_path / "gone", lambda: 0))
    store.put([chunk(0)])
    says = rf"its limit is {chunk(0).nbytes}, and .*gone takes no more .*: use more "
    with pytest.raises(DataError, match=says):
        asyncio.run(store.take([chunk(1)]))
    with pytest.raises(DataError, match=says):
        asyncio.run(store.slab([10**4]))
    assert (store.held_bytes, store.is_out_of_core) == (chunk(0).nbytes, False)
    assert not store.chunks[chunk(0).id].is_mapped
    assert store.buffer(100).nbytes == 100


def test_bodies_in_files_are_verified_and_not_copied_out_of_core(tmp_path: Path) -> None:
    value = [mapped_chunk(random_chunk(k)) for k in range(4)]
    store = ChunkStore(3 * value[0].nbytes, OutOfCoreStore(2**20, tmp_path, lambda: 0))
    store.put(value[:3])
    assert all(chunk.is_loaded and chunk.out_of_core is None for chunk in value[:3])
    asyncio.run(store.take(value[3:]))
    assert store.is_out_of_core
    assert [store.chunks[chunk.id] is chunk for chunk in value] == [True] * 4
    assert not value[3].is_loaded
    assert store.out_of_core is not None
    assert not any(store.out_of_core.maps(chunk.stored) for chunk in value)


def test_a_damaged_body_is_detected_when_it_is_loaded() -> None:
    store = ChunkStore()
    with pytest.raises(DataError, match="a file is damaged: chunk random/0/0: its checksum"):
        store.put([damaged_chunk(0)])
    assert (store.ids(), store.held_bytes) == ([], 0)


def test_a_job_fails_when_a_file_that_it_maps_is_written_to(tmp_path: Path) -> None:
    labels = np.arange(600.0)
    made = convert(from_arrays(np.ones((600, 1)), labels), tmp_path / "made", chunk_bytes=512)
    job = VirtualJob(toy_job(members={"start": 3, "min": 1}), made)
    job.until(lambda: len(job.rows) > 3)
    path = tmp_path / "made" / "000000.chunks"
    byte = path.read_bytes()[-100]
    with path.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(bytes([byte ^ 1]))
    os.utime(path, (1, 1))
    assert job.end().agent.state == "failed"
    assert "000000.chunks is damaged" in job.agent.error["message"]
