"""The out-of-core store: what is read ahead, kept in memory, spilled to files, and freed."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.out_of_core import mapped_memory
from elasticml.data.out_of_core.mapped_memory import disk_room, file_system_of, spill_folder
from elasticml.data.out_of_core.store import (
    FILE_BYTES,
    OutOfCoreStore,
    kept,
    plan_residency,
    row_array,
    stream_chunks,
)
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.chunk_folder import convert
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from tests.unit.data.chunks.test_chunk import mapped_chunk
from tests.waiting import until

MIB = 2**20
#: Around an access, the kernel maps up to this much that it has in its cache (fault-around).
EDGE = 64 * 2**10
#: So another thread may bring pages back around the ends of bodies that were released: here of up
#: to 8, each much larger.
EDGES = 8 * EDGE


def chunk(k: int, rows: int = 4096) -> Chunk:
    made = dense_chunk(ChunkId("s", 0, k), np.arange(rows), np.full((rows, 8), float(k)))
    made.state = {"alpha": np.full(rows, 0.5)}
    made.state_version = k
    return made


def out_of_core(folder: Path, limit: int = 64 * MIB, anonymous: int = 0) -> OutOfCoreStore:
    return OutOfCoreStore(limit, folder, lambda: anonymous)


def resident(body: memoryview) -> int:
    """Return the bytes of a body's pages that are resident in this process."""
    address = np.frombuffer(body, np.uint8).ctypes.data
    for line in Path("/proc/self/smaps").read_text().split("VmFlags")[:-1]:
        head = next(part for part in line.splitlines() if "-" in part.split(" ")[0])
        low, high = (int(x, 16) for x in head.split(" ")[0].split("-"))
        if low <= address < high:
            return next(int(p.split()[1]) << 10 for p in line.splitlines() if p.startswith("Rss"))
    raise AssertionError("no mapping there")


def test_bodies_and_states_are_the_same_in_the_store_and_its_files_have_no_names(
    tmp_path: Path,
) -> None:
    chunks = [chunk(k) for k in range(6)]
    settled = out_of_core(tmp_path).settle(chunks)
    assert [(c.id, bytes(c.body)) for c in settled] == [(c.id, bytes(c.body)) for c in chunks]
    assert all(new.state is old.state for new, old in zip(settled, chunks, strict=True))
    assert [c.state_version for c in settled] == list(range(6))
    assert all(c.is_mapped and c.labels.ctypes.data % 64 == 0 for c in settled)
    assert list(tmp_path.iterdir()) == []


def test_a_pass_yields_all_chunks_in_order_and_releases_them_however_it_ends(
    tmp_path: Path,
) -> None:
    here = out_of_core(tmp_path)
    chunks = here.settle([chunk(k, rows=40_000) for k in range(8)])
    nbytes = chunks[0].nbytes
    here.batch_bytes = 3 * MIB
    assert [c.values[0, 0] for c in stream_chunks(chunks)] == [float(k) for k in range(8)]
    assert resident(chunks[0].body) < EDGES
    # once when the layout was decided
    before = here.streamed_bytes
    assert before == 2 * 8 * nbytes

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        list(here.stages([[c] for c in chunks], fail))
    assert resident(chunks[0].body) < EDGES
    # The first was processed; the one that failed and up to two behind it had been fetched.
    assert 2 <= (here.streamed_bytes - before) / nbytes <= 4
    going: Any = stream_chunks(chunks)
    next(going)
    going.close()
    assert resident(chunks[0].body) < EDGES


def test_the_most_important_chunks_stay_in_memory(tmp_path: Path) -> None:
    here = out_of_core(tmp_path)
    chunks = here.settle([chunk(k) for k in range(8)])
    nbytes = chunks[0].nbytes
    here.limit_bytes = 3 * nbytes + 6 * here.batch_bytes
    here.set_importance({chunks[k].id: float(k % 5) for k in range(8)})
    plan_residency(chunks)
    assert here.resident == {chunks[k].id for k in (3, 4, 2)}
    before = here.streamed_bytes
    assert len(list(stream_chunks(chunks))) == 8
    assert here.streamed_bytes - before == 5 * nbytes


def test_derived_forms_count_towards_memory_with_their_true_size(tmp_path: Path) -> None:
    here = out_of_core(tmp_path)
    chunks = here.settle([chunk(k) for k in range(8)])
    forms = [here.add_form(chunk(k)) for k in range(8)]
    here.limit_bytes = 4 * chunks[0].nbytes + 6 * here.batch_bytes
    plan_residency(chunks)
    assert len(here.resident) == 2
    assert len(list(stream_chunks(forms))) == 8
    # Batches of one chunk: of its two forms, the larger one counts.
    here = out_of_core(tmp_path)
    chunks = here.settle([chunk(k) for k in range(6)])
    here.batch_bytes, here.limit_bytes = 1, 9 * chunks[0].nbytes
    plan_residency(chunks)
    assert len(here.resident) == 3
    here.add_form(chunk(5, rows=8000))
    plan_residency(chunks)
    assert here.resident == frozenset()


def test_other_memory_evicts_bodies_in_passes_and_those_that_are_accessed_outside(
    tmp_path: Path,
) -> None:
    taken = [0]
    here = OutOfCoreStore(64 * MIB, tmp_path, lambda: taken[0])
    made = convert(from_arrays(np.ones((40_000, 8)), np.ones(40_000)), tmp_path / "m")
    chunks = here.settle([*(chunk(k, rows=40_000) for k in range(4)), *made.read(0, None, 1)[0]])
    plan_residency(chunks)
    assert len(here.resident) == len(chunks)
    states = [row_array(c) for c in chunks]
    for each, state in zip(chunks, states, strict=True):
        state[:] = each.values.sum(axis=1)
    bodies = chunks[0].body, chunks[-1].body, memoryview(states[0])
    assert all(resident(body) > EDGES for body in bodies)
    taken[0] = 68 * MIB  # a twentieth more than the limit
    until(lambda: all(resident(body) < EDGES for body in bodies), "pages released")
    assert [state[-1] for state in states] == [0.0, 8.0, 16.0, 24.0, *[8.0] * (len(chunks) - 4)]
    plan_residency(chunks)
    assert here.resident == frozenset()


# --- files and memory that are freed --------------------------------------------------------------


def test_row_arrays_of_the_store_are_in_files_and_their_space_is_reused(
    tmp_path: Path,
) -> None:
    here = out_of_core(tmp_path)
    (settled,) = here.settle([chunk(0)])
    first = row_array(settled)
    assert here.maps(memoryview(first))
    first[:] = 7.0
    kept_first = first
    second = row_array(settled)
    second[:] = 8.0
    assert (kept_first[0], second[0], first.shape) == (7.0, 8.0, (settled.n_rows,))
    place = second.ctypes.data
    del second
    gc.collect()
    assert row_array(settled).ctypes.data == place
    assert row_array(settled, np.float32).dtype == np.float32
    assert kept(settled, first)[0] == 7.0


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Disable the collector, so that only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def n_mapped(folder: Path) -> int:
    """Return how many files of this folder, named or unlinked, this process maps."""
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


@pytest.mark.usefixtures("no_collector")
def test_a_store_leaves_no_file_and_no_thread_once_nothing_refers_to_it_and_its_arrays(
    tmp_path: Path,
) -> None:
    here = out_of_core(tmp_path)
    kept_array, dropped = here.row_array(1000), here.row_array(1000)
    del dropped
    here.close()
    assert n_mapped(tmp_path) == 1
    del kept_array
    here.close()
    assert n_mapped(tmp_path) == 0
    before = set(threading.enumerate())
    here = out_of_core(tmp_path)
    chunks = here.settle([chunk(0), mapped_chunk(chunk(1))])
    assert len(list(here.stream_chunks(chunks))) == 2
    here.row_array(1000)
    threads = [t for t in threading.enumerate() if t not in before and "em-out-of-core" in t.name]
    assert threads
    lost = weakref.ref(here)
    del here, chunks
    assert lost() is None
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert n_mapped(tmp_path) == 0


# --- a full disk, and folders that are refused ----------------------------------------------------


def limit_file_size(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the disk refuse files from this size on; return the list of sizes asked for."""
    allocate, asked = os.posix_fallocate, []

    def take(descriptor: int, offset: int, size: int) -> None:
        asked.append(size)
        if size >= nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", take)
    return asked


def test_a_full_disk_takes_what_is_needed_is_asked_once_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_file_size(FILE_BYTES, monkeypatch)
    here = out_of_core(tmp_path)
    chunks = here.settle([chunk(0)])
    assert here.maps(memoryview(chunks[0].body))
    assert here.maps(memoryview(here.row_array(1000)))
    monkeypatch.undo()
    asked = limit_file_size(0, monkeypatch)
    here = out_of_core(tmp_path)
    for _ in range(20):
        assert not here.maps(memoryview(here.row_array(1000)))
    assert len(asked) == 2  # for a large file, and for one of the array's size
    full = r"no room for scaled copies .*No space left.*ELASTICML_SPILL"
    with pytest.raises(DataError, match=full):
        out_of_core(tmp_path).add_form(chunk(0))
    monkeypatch.undo()
    chunks = here.settle(chunks)
    plan_residency(chunks)
    assert here.maps(memoryview(here.row_array(1000)))


def test_the_environment_names_a_folder_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTICML_SPILL", raising=False)
    assert spill_folder("/here") == Path("/here")
    for value, wanted in ((str(tmp_path), tmp_path), ("off", None)):
        monkeypatch.setenv("ELASTICML_SPILL", value)
        assert spill_folder("/here") == wanted
    monkeypatch.setenv("ELASTICML_SPILL", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="wanted a folder on a local disk"):
        spill_folder("/here")
    assert file_system_of(Path("/proc")) == "proc"
    assert disk_room(tmp_path) > 0
    monkeypatch.setattr(mapped_memory, "file_system_of", lambda folder: "tmpfs")
    assert disk_room(tmp_path) == 0
