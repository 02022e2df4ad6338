"""Files through fsspec: what identifies a version, and how often metadata are requested."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from elasticml.data.readers import files
from elasticml.data.readers.files import once_per_version, read_line
from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import Source, read_block

PATH = "memory://data/a.txt"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch):
    """Make a remote store with this metadata besides file sizes."""
    messages: dict[str, str] = {}
    info = MemoryFileSystem.info
    monkeypatch.setattr(
        MemoryFileSystem,
        "info",
        lambda self, path, **given: {**info(self, path, **given), **messages},
    )
    yield messages
    MemoryFileSystem().rm("/data", recursive=True)


def write(text: str) -> None:
    MemoryFileSystem().pipe_file("/data/a.txt", text.encode())


def values(source: Source, folder: Path) -> list[float]:
    chunks, _ = read_block(source, 0, 2000, 1, folder)
    return chunks[0].values.ravel().tolist()


@pytest.mark.parametrize("key", ["ETag", "Content-MD5", "Last-Modified", "updated", "modify"])
def test_a_changed_file_of_the_same_size_has_another_identity(store, tmp_path, key) -> None:
    source = read_svmlight(PATH)
    for version, value in enumerate((3.0, 4.0)):
        store[key] = f"version {version}"
        write(f"1 1:{value}\n")
        assert values(source, tmp_path) == [value]
    assert len(list(tmp_path.glob("*.chunks"))) == 2


def test_a_file_without_a_version_is_not_remembered(store, tmp_path) -> None:
    source = read_csv(PATH, "y", numeric=["y", "a", "b"])
    write("y,a,b\n1,3,5\n")
    assert values(source, tmp_path) == [3.0, 5.0]
    write("a,y,b\n1,3,5\n")
    assert values(source, tmp_path) == [1.0, 5.0]
    assert list(tmp_path.glob("*.chunks")) == []


def test_a_block_is_read_with_one_request_to_a_remote_file(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    store["ETag"] = "one look"
    write("1 1:2\n" * 100)
    source, opened, begin = read_svmlight(PATH), [], MemoryFileSystem.open

    def watched(self, path, *given, **named):
        opened.append(path)
        return begin(self, path, *given, **named)

    read_block(source, 0, 2000, 1, tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "open", watched)
    read_block(source, 1, 2000, 1, tmp_path)
    assert len(opened) == 1


def test_concurrent_threads_request_metadata_once() -> None:
    reached, release, looks = threading.Event(), threading.Event(), []

    @once_per_version
    def look(path: str, token: str) -> str:
        looks.append(path)
        reached.set()
        release.wait()
        return f"{path} {token}"

    results: list[str] = []
    together = threading.Barrier(3)

    def ask() -> None:
        together.wait()
        results.append(look("a", "1"))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    reached.wait()
    release.set()
    for thread in threads:
        thread.join()
    assert (looks, results) == (["a"], ["a 1"] * 3)
    assert look("a", "2") == "a 2"
    assert [look("b", ""), look("b", "")] == ["b "] * 2
    assert looks == ["a", "a", "b", "b"]


class Remote(AbstractBufferedFile):
    """A file of a remote store that counts the requested bytes."""

    fetched = 0
    content = b"first line\n" + b"x" * 10_000_000 + b"\nlast"

    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fetched += end - start
        return self.content[start:end]


def test_the_end_of_a_line_is_found_without_reading_megabytes() -> None:
    size = len(Remote.content)
    file = Remote(None, "a", cache_type="none", size=size)
    assert read_line(file, "a") == b"first line\n"
    assert file.tell() == 11
    assert file.fetched < 100_000
    assert len(read_line(file, "a")) == 10_000_001
    assert (read_line(file, "a"), read_line(file, "a")) == (b"last", b"")
    assert read_line(io.BytesIO(b"a\nb"), "a") == b"a\n"
