"""The cache of parsed blocks: exact hits, damage, changed files, concurrent and killed
processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticml.data.readers.svmlight import SvmlightSource, read_svmlight
from elasticml.data.source import Source, pin_blocks, read_block
from elasticml.data.storage import block_files
from elasticml.data.storage.block_files import PINNED_S_MAX, unpin
from elasticml.errors import ConfigError, DataError
from tests.waiting import until


def text(folder: Path, name: str = "a.svm") -> SvmlightSource:
    (folder / name).write_text("".join(f"{i} 1:{i} 2:0.5 7:3\n" for i in range(400)))
    return read_svmlight(str(folder / name))


def read(source: Source, folder: Path | bool | None, size: int = 2000) -> list[bytes]:
    chunks, _ = read_block(source, 0, size, 4, folder)
    return [bytes(chunk.body) for chunk in chunks]


def cached_chunk_sizes(folder: Path) -> list[str]:
    """Return the chunk sizes of the blocks in a cache."""
    return sorted(path.stem.rpartition("-")[2] for path in folder.glob("*.chunks"))


def test_a_damaged_cache_is_parsed_again(tmp_path: Path) -> None:
    data, folder = text(tmp_path), tmp_path / "cache"
    chunks = read(data, folder)
    (path,) = folder.glob("*.chunks")
    whole = path.read_bytes()
    other_rows = whole.replace(b'"rows": 400', b'"rows": 900')
    damaged = whole[:-200] + b"x" + whole[-199:]
    for raw in (b"", whole[:100], whole[:-64], damaged, other_rows):
        path.write_bytes(raw)
        assert read(data, folder) == chunks
        assert path.read_bytes() == whole


def test_nothing_is_kept_of_a_failed_parse_nor_of_a_file_that_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = text(tmp_path), tmp_path / "cache"
    (tmp_path / "bad.svm").write_text("1 1:2\n1 1:x\n")
    with pytest.raises(DataError, match="line 2"):
        read(read_svmlight(str(tmp_path / "bad.svm")), folder)
    parse = SvmlightSource.read

    def changing(self: SvmlightSource, *given: object) -> block_files.Block:
        block = parse(self, *given)
        Path(self.path).write_text("1 1:1\n")
        return block

    monkeypatch.setattr(SvmlightSource, "read", changing)
    read(source, folder)
    assert cached_chunk_sizes(folder) == []


def test_without_room_or_a_usable_folder_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = text(tmp_path), tmp_path / "cache"
    wanted = read(source, False)
    (tmp_path / "file").write_text("in the way")
    assert read(source, tmp_path / "file" / "cache") == wanted
    monkeypatch.setenv("ELASTICML_CACHE_SIZE", "1 KiB")
    assert read(source, folder) == wanted
    assert not folder.exists()
    monkeypatch.setenv("ELASTICML_CACHE_SIZE", "many")
    with pytest.raises(ConfigError, match="ELASTICML_CACHE_SIZE is 'many', wanted a size"):
        read(source, folder)
    monkeypatch.delenv("ELASTICML_CACHE_SIZE")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(block_files.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 10**8))
    assert read(source, folder) == wanted
    assert cached_chunk_sizes(folder) == []


def test_a_full_cache_evicts_the_least_recently_used_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = text(tmp_path), tmp_path / "cache"
    for i, size in enumerate((2000, 2001, 2002)):
        read(data, folder, size)
        (path,) = folder.glob(f"*-{size}.chunks")
        os.utime(path, (i, i))
    read(data, folder, 2000)  # from the cache, which counts as a use
    room = 3 * path.stat().st_size - 1
    monkeypatch.setenv("ELASTICML_CACHE_SIZE", str(room))
    read(data, folder, 2003)
    assert cached_chunk_sizes(folder) == ["2000", "2003"]
    assert sorted(path.name for path in folder.glob("*.lock")) == sorted(
        f"{data.fingerprint()}-0-{size}.lock" for size in (2000, 2003)
    )


@pytest.mark.parametrize("setting", [None, True])
def test_the_environment_names_the_cache_or_switches_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: bool | None
) -> None:
    source, folder = text(tmp_path), tmp_path / "here"
    monkeypatch.setenv("ELASTICML_CACHE", str(folder))
    assert block_files.cache_directory() == folder
    assert block_files.cache_directory(tmp_path) == tmp_path
    read(source, False)
    assert not folder.exists()
    read(source, setting)
    assert cached_chunk_sizes(folder) == ["2000"]
    monkeypatch.setenv("ELASTICML_CACHE", "off")
    read(source, setting, 2001)
    assert cached_chunk_sizes(folder) == ["2000"]
    read(source, folder, 2001)
    assert cached_chunk_sizes(folder) == ["2000", "2001"]
    monkeypatch.delenv("ELASTICML_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    read(source, setting)
    assert cached_chunk_sizes(tmp_path / ".cache" / "elasticml") == ["2000"]


READER = """
import resource, sys
from elasticml.data.readers import files
from elasticml.data.source import read_block
from elasticml.data.readers.svmlight import SvmlightSource, read_svmlight
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
files.BLOCK_BYTES = 100
source = read_svmlight(sys.argv[1])
blocks = [info.index for info in source.blocks()]
assert len(blocks) > 64
for block in blocks:
    read_block(source, block, 2000, 4, sys.argv[2])
SvmlightSource.read = None
held = [read_block(source, block, 2000, 4, sys.argv[2]) for block in blocks]
assert sum(chunk.n_rows for chunks, _ in held for chunk in chunks) == 400
"""


def test_more_blocks_are_mapped_than_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", READER, text(tmp_path).path, str(tmp_path / "cache")]
    subprocess.run(arguments, check=True)


WRITER = """
import sys
from elasticml.data.source import read_block
from elasticml.data.readers.svmlight import read_svmlight
source = read_svmlight(sys.argv[1])
for size in range(10**5, 10**6):
    read_block(source, 0, size, 4, sys.argv[2])
"""


def test_a_killed_writer_leaves_no_wrong_block(tmp_path: Path) -> None:
    line = "1 " + " ".join(f"{j}:0.5" for j in range(1, 200)) + "\n"
    (tmp_path / "a.svm").write_text(line * 5000)
    source, folder = read_svmlight(str(tmp_path / "a.svm")), tmp_path / "cache"
    parts: list[Path] = []
    for _ in range(50):
        arguments = [sys.executable, "-c", WRITER, source.path, str(folder)]
        writer = subprocess.Popen(arguments)
        until(lambda: list(folder.glob("*.part")), "the writer writes a block", look_s=0.0)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        parts = list(folder.glob("*.part"))
        if parts:
            break
    assert parts, "50 writers were killed, none of them while it wrote"
    for path in folder.glob("*.chunks"):
        size = int(path.stem.rpartition("-")[2])
        result = block_files.cached(path.stem, lambda: pytest.fail("it is not whole"), folder)
        assert [bytes(c.body) for c in result[0]] == read(source, False, size)
    read(source, folder, 99_999)
    assert list(folder.glob("*.part")) == []


def test_pinned_blocks_stay_until_they_are_unpinned_or_their_job_never_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, jobs = tmp_path / "cache", ("hdfs://nn/one", "/two")
    kept, other = text(tmp_path), text(tmp_path, "b.svm")
    sizes = iter(range(2100, 9000, 100))

    def is_kept(job: str | None = None, before: Callable[[], object] = lambda: None) -> bool:
        if job:
            pin_blocks(kept, job, folder)
        before()
        read(other, folder, size=next(sizes))  # a new block, for which there is no room
        return block.exists()

    read(kept, folder)
    (block,) = folder.glob("*.chunks")
    monkeypatch.setenv("ELASTICML_CACHE_SIZE", str(block.stat().st_size + 100))
    pin_blocks(kept, jobs[0], folder)
    assert is_kept(jobs[1])
    assert is_kept(before=lambda: unpin(jobs[0], folder))  # the other job still needs it
    assert not is_kept(before=lambda: unpin(jobs[1], folder))
    assert list(folder.glob("*.pin")) == []
    read(kept, folder)
    pin_blocks(kept, "job", folder)
    (mark,) = folder.glob("*.pin")
    long_ago = mark.stat().st_mtime - PINNED_S_MAX - 1
    os.utime(mark, (long_ago, long_ago))
    assert not is_kept()
    assert not mark.exists()
