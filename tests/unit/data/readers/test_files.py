"""Files through fsspec: what identifies a version, and how often metadata are requested."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

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
