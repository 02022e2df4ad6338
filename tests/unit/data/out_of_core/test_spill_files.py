"""Spill files: freed when nothing refers to them, and behaviour on a full disk."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticml.data.out_of_core.store import FILE_BYTES, OutOfCoreStore, plan_residency
from tests.unit.data.chunks.test_lazy_body import mapped_chunk
from tests.unit.data.out_of_core.test_store import chunk

FULL = os.strerror(errno.ENOSPC)


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
def test_a_closed_store_leaves_no_file_once_nothing_refers_to_its_arrays(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**30, tmp_path, lambda: 0)
    kept, dropped = out_of_core.row_array(1000), out_of_core.row_array(1000)
    del dropped
    out_of_core.close()
    assert n_mapped(tmp_path) == 1
    del kept
    out_of_core.close()
    assert n_mapped(tmp_path) == 0


@pytest.mark.usefixtures("no_collector")
def test_an_unreferenced_store_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    out_of_core = OutOfCoreStore(2**30, tmp_path, lambda: 0)
    chunks = out_of_core.settle([chunk(0), mapped_chunk(chunk(1))])
    assert len(list(out_of_core.stream_chunks(chunks))) == 2
    out_of_core.row_array(1000)
    threads = [t for t in threading.enumerate() if t not in before and "em-out-of-core" in t.name]
    assert threads
    lost = weakref.ref(out_of_core)
    del out_of_core, chunks
    assert lost() is None
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert n_mapped(tmp_path) == 0


def limit_file_size(
    nbytes: int, monkeypatch: pytest.MonkeyPatch, seen: list[int] | None = None
) -> None:
    """Make the disk refuse files from this size on."""
    allocate = os.posix_fallocate

    def take(descriptor: int, offset: int, size: int) -> None:
        if seen is not None:
            seen.append(size)
        if size >= nbytes:
            raise OSError(errno.ENOSPC, FULL)
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", take)


def test_a_nearly_full_disk_takes_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_file_size(FILE_BYTES, monkeypatch)
    out_of_core = OutOfCoreStore(2**30, tmp_path, lambda: 0)
    (settled,) = out_of_core.settle([chunk(0)])
    assert out_of_core.maps(memoryview(settled.body))
    assert out_of_core.maps(memoryview(out_of_core.row_array(1000)))


def test_a_full_disk_is_asked_once_between_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    out_of_core = OutOfCoreStore(2**30, tmp_path, lambda: 0)
    chunks = out_of_core.settle([chunk(0)])
    limit_file_size(0, monkeypatch, asked)
    for _ in range(20):
        assert not out_of_core.maps(memoryview(out_of_core.row_array(1000)))
    assert len(asked) == 2  # for a large file, and for one of the array's size
    monkeypatch.undo()
    plan_residency(chunks)
    assert out_of_core.maps(memoryview(out_of_core.row_array(1000)))
