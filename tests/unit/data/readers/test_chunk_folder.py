"""Converted data equal the source: the same rows, statistics and test data, complete or absent."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.chunk_folder import compute_stats, convert, read_chunks
from elasticml.data.readers.svmlight import SvmlightSource, read_svmlight
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import Source, load_all, read_again, source_from_spec, survey_all
from elasticml.data.storage.block_files import files_of
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.errors import ConfigError, DataError
from tests.unit.data.rows import labels, matrix


def svmlight(folder: Path, n: int = 300) -> SvmlightSource:
    text = "".join(f"{(-1) ** i} 1:{i} 2:0.5 {3 + i % 5}:3\n" for i in range(n))
    (folder / "data.svm.gz").write_bytes(gzip.compress(text.encode()))
    return read_svmlight(str(folder / "data.svm.gz"))


def table(folder: Path, name: str, text: str) -> Source:
    (folder / name).write_text(text)
    return read_csv(str(folder / name), label="y", categorical=["city"])


def all_columns(chunks: list[Chunk], width: int) -> np.ndarray:
    return np.column_stack([labels(chunks), matrix(chunks, width)])


X, Y = np.random.default_rng(0).normal(size=(200, 6)), np.arange(200.0)
SOURCES: dict[str, Callable[[Path], Source]] = {
    "svmlight": svmlight,
    "csv": lambda folder: table(folder, "a.csv", "y,a,city\n" + "1,2.5,Rome\n0,3,Oslo\n" * 50),
    "sequences": lambda folder: synthetic_splice(80, length=12, ngrams=(1, 1)),
    "dense": lambda folder: from_arrays(X, Y),
    "weighted": lambda folder: from_arrays(X, Y, Y / 64),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_converted_data_equal_the_source_wherever_they_are_named(tmp_path: Path, kind: str) -> None:
    source = SOURCES[kind](tmp_path)
    ready = survey_all(source)
    want = merge_summaries([ready.read(b.index, None, 1)[1] for b in ready.blocks()])
    made = convert(source, tmp_path / "made", chunk_bytes=2000)
    assert source_from_spec(made.spec()) == made == read_chunks(str(tmp_path / "made"))
    actual = compute_stats(made)
    kept = ("n_rows", "n_columns", "label_counts", "layout", "weight_sum", "vocabularies", "notes")
    for fact in (*kept, "index_base", "classes", "encoder"):
        assert getattr(actual, fact) == getattr(want, fact)
    chunks = load_all(made)
    rows = all_columns(chunks, want.n_columns)
    assert np.array_equal(rows, all_columns(load_all(source), want.n_columns))
    if kind == "weighted":
        assert np.array_equal(np.concatenate([chunk.weights for chunk in chunks]), Y / 64)
    assert all(chunk.is_mapped for chunk in chunks)
    assert {chunk.id.source for chunk in chunks} == {made.fingerprint()}
    assert read_again(made, [chunks[-1].id], None, 5)[0].content_id == chunks[-1].content_id
    assert convert(source, tmp_path / "again", chunk_bytes=2000).fingerprint() == made.fingerprint()
    assert convert(source, tmp_path / "other", chunk_bytes=3000).fingerprint() != made.fingerprint()


def test_columns_and_categories_of_test_data_are_those_of_the_training_data(tmp_path: Path) -> None:
    train = table(tmp_path, "a.csv", "y,a,city\n1,2.5,Rome\n0,3,Oslo\n")
    test = table(tmp_path, "b.csv", "y,a,city\n1,2.5,Rome\n")
    facts = compute_stats(convert(train, tmp_path / "train"))
    with pytest.raises(DataError, match="convert the test data with --like"):
        convert(test, tmp_path / "test").with_stats(facts)
    like = convert(test, tmp_path / "like", like=facts)
    assert load_all(like.with_stats(facts))[0].values.shape == (1, 3)
    made = convert(svmlight(tmp_path), tmp_path / "made", chunk_bytes=2000)
    narrow = made.with_columns(4)
    rows = all_columns(load_all(narrow), 4)
    assert np.array_equal(rows, all_columns(load_all(made), 7)[:, :5])
    facts = compute_stats(narrow)
    assert facts.n_columns == 4
    assert facts.notes == ("180 values in columns beyond the 4 of the model were dropped",)
    assert [c.id for c in load_all(narrow)] == [c.id for c in load_all(made)]


# --- conversions that fail, are killed, or meet another -------------------------------------------


def interrupt(*counts: int) -> None:
    raise KeyboardInterrupt


def test_a_failed_conversion_leaves_nothing_and_an_existing_one_stays(tmp_path: Path) -> None:
    (tmp_path / "bad.svm").write_text("1 1:2\n" * 1000 + "1 1:oops\n")
    (tmp_path / "empty").mkdir()
    bad, good = read_svmlight(str(tmp_path / "bad.svm")), svmlight(tmp_path)
    columns = from_arrays(np.eye(3), np.arange(3.0), by="columns")
    before = sorted(tmp_path.rglob("*"))

    def change(*counts: int) -> None:
        svmlight(tmp_path, n=77)

    for source, name, on_progress, words in (
        (bad, "made", None, "line 1001"),
        (good, "made", interrupt, "^$"),
        (good, "empty", None, "exists already; name another folder"),
        (columns, "made", None, r"the source is by columns, .*leave out by='columns'"),
        (good, "made", change, "changed while being read"),
    ):
        with pytest.raises((ConfigError, DataError, KeyboardInterrupt), match=words):
            convert(source, tmp_path / name, on_progress=on_progress)
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ConfigError, match="wanted a folder on a disk that all members can access"):
        read_chunks("hdfs://nn:8020/made")


_KILLED = """
import os, signal, sys
from pathlib import Path
from elasticml.data.readers.chunk_folder import convert
from elasticml.data.readers.svmlight import read_svmlight
convert(
    read_svmlight(sys.argv[1]),
    Path(sys.argv[2]),
    on_progress=lambda *counts: os.kill(os.getpid(), signal.SIGKILL),
)
"""


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*.part"))


def test_remains_of_a_killed_process_are_removed_by_the_next_attempt(tmp_path: Path) -> None:
    source = svmlight(tmp_path)
    killed = [sys.executable, "-c", _KILLED, source.path, str(tmp_path / "made")]
    assert subprocess.run(killed, check=False, cwd=Path.cwd()).returncode == -signal.SIGKILL
    assert len(parts(tmp_path)) == 1
    (tmp_path / ".other.1.part").mkdir()
    (tmp_path / ".other.1.part" / "file").touch()
    convert(source, tmp_path / "made")
    assert parts(tmp_path) == [".other.1.part"]


def test_an_attempt_in_progress_is_not_removed(tmp_path: Path) -> None:
    source, inner = svmlight(tmp_path), []

    def at_the_same_time(*counts: int) -> None:
        before = parts(tmp_path)
        inner.append(convert(source, tmp_path / "made"))
        assert parts(tmp_path) == before
        assert len(before) == 1

    # The later process finds the folder.
    with pytest.raises(ConfigError, match="made cannot be written: Directory not empty"):
        convert(source, tmp_path / "made", on_progress=at_the_same_time)
    assert len(load_all(inner[0])) > 0
    assert parts(tmp_path) == []


# --- damage ---------------------------------------------------------------------------------------


def flip(path: Path) -> bytes:
    """Change a bit of a file in place; return what it was."""
    content = path.read_bytes()
    with path.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(bytes([content[-100] ^ 1]))
    return content


def loaded(source: Source) -> list[Chunk]:
    """All chunks, verified."""
    chunks = load_all(source)
    for chunk in chunks:
        chunk.load()
    return chunks


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "chunks.json is missing": lambda f: (f / "chunks.json").unlink(),
    "chunks.json: cannot be read .KeyError": lambda f: (f / "chunks.json").write_text("{}"),
    "is of version 9, wanted": lambda f: (f / "chunks.json").write_text('{"version": 9}'),
    "chunks.json": lambda f: (f / "chunks.json").write_bytes(b"\xff" * 10**5),
    "cannot be read: No such file": lambda f: (f / "000000.chunks").unlink(),
    "is damaged: it is cut short": lambda f: (f / "000000.chunks").write_bytes(b"x"),
    "000000.chunks is damaged: chunk": lambda f: flip(f / "000000.chunks"),
    "is of another conversion": lambda f: (f.parent / "other" / "000000.chunks").replace(
        f / "000000.chunks"
    ),
}


@pytest.mark.parametrize("says", DAMAGE)
def test_a_damaged_folder_is_a_one_line_error(tmp_path: Path, says: str) -> None:
    convert(svmlight(tmp_path, n=100), tmp_path / "other")
    made = convert(svmlight(tmp_path), tmp_path / "made")
    DAMAGE[says](tmp_path / "made")
    with pytest.raises((ConfigError, DataError), match=says) as raised:
        loaded(type(made)(path=made.path))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_file_that_is_written_to_while_it_is_mapped_is_verified_again(tmp_path: Path) -> None:
    """What is mapped changes with the file, after its bodies were verified."""
    made, path = convert(svmlight(tmp_path), tmp_path / "made"), tmp_path / "made" / "000000.chunks"
    chunks = loaded(made)
    (file,) = files_of(chunks)
    os.utime(path, (1, 1))
    file.check()
    content = flip(path)
    os.utime(path, (2, 2))  # a clock's tick may be longer than a test
    with pytest.raises(DataError, match=r"000000\.chunks is damaged: chunk .*: its checksum"):
        file.check()
    path.write_bytes(content)
    os.utime(path, (3, 3))
    file.check()
    path.with_suffix(".other").write_bytes(b"x")
    path.with_suffix(".other").replace(path)  # the mapping keeps what it had
    file.check()
    path.unlink()
    file.check()
