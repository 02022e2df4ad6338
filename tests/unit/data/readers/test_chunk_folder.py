"""Converted data equal the source: the same rows, statistics and test data, complete or absent."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.chunk_folder import (
    ChunkFolder,
    ConversionProgress,
    compute_stats,
    convert,
    read_chunks,
)
from elasticml.data.readers.svmlight import SvmlightSource, read_svmlight
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import Source, load_all, read_again, source_from_spec, survey_all
from elasticml.data.storage.block_file import files_of
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


@pytest.mark.parametrize("kind", ["svmlight", "csv", "sequences", "dense", "weighted"])
def test_converted_data_equal_the_source(tmp_path: Path, kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(200, 6))
    source: Source = {
        "svmlight": lambda: svmlight(tmp_path),
        "csv": lambda: table(tmp_path, "a.csv", "y,a,city\n" + "1,2.5,Rome\n0,3,Oslo\n" * 50),
        "sequences": lambda: synthetic_splice(80, length=12, ngrams=(1, 1)),
        "dense": lambda: from_arrays(X, np.arange(200.0)),
        "weighted": lambda: from_arrays(X, np.arange(200.0), np.arange(200) / 64),
    }[kind]()
    ready = survey_all(source)
    want = merge_summaries([ready.read(b.index, None, 1)[1] for b in ready.blocks()])
    made = convert(source, tmp_path / "made", chunk_bytes=4000)
    actual = compute_stats(made)
    kept = ("n_rows", "n_columns", "label_counts", "layout", "weight_sum", "vocabularies", "notes")
    for fact in (*kept, "index_base", "classes", "encoder"):
        assert getattr(actual, fact) == getattr(want, fact)
    rows = all_columns(load_all(made), want.n_columns)
    assert np.array_equal(rows, all_columns(load_all(source), want.n_columns))
    if kind == "weighted":
        weights = [chunk.weights for chunk in load_all(made)]
        assert np.array_equal(np.concatenate([w for w in weights if w is not None]),
                              np.arange(200) / 64)  # fmt: skip


def test_a_job_names_the_folder_like_any_other_source(tmp_path: Path) -> None:
    made = convert(svmlight(tmp_path), tmp_path / "made", chunk_bytes=2000)
    again = source_from_spec(made.spec())
    assert again == read_chunks(str(tmp_path / "made"))
    chunks = load_all(again)
    assert len(chunks) > 3
    assert all(chunk.is_mapped for chunk in chunks)
    assert {chunk.id.source for chunk in chunks} == {again.fingerprint()}
    assert read_again(again, [chunks[2].id], None, 5)[0].content_id == chunks[2].content_id


def test_the_same_data_have_the_same_name_and_changed_data_another(tmp_path: Path) -> None:
    source = svmlight(tmp_path)
    names = [convert(source, tmp_path / f"made{k}").fingerprint() for k in range(2)]
    other = convert(source, tmp_path / "small", chunk_bytes=2000).fingerprint()
    later = convert(svmlight(tmp_path, n=301), tmp_path / "later").fingerprint()
    assert names[0] == names[1]
    assert len({names[0], other, later}) == 3


def test_an_existing_conversion_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(ConfigError, match="exists already; name another folder"):
        convert(svmlight(tmp_path), tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.svm").write_text("1 1:2\n" * 1000 + "1 1:oops\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match="line 1001"):
        convert(read_svmlight(str(tmp_path / "bad.svm")), tmp_path / "made")
    source = svmlight(tmp_path)

    def interrupt(written: ConversionProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "made", on_progress=interrupt)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "data.svm.gz"])


_KILLED = """
import os, signal, sys
from pathlib import Path
from elasticml.data.readers.chunk_folder import convert
from elasticml.data.readers.svmlight import read_svmlight
convert(
    read_svmlight(sys.argv[1]),
    Path(sys.argv[2]),
    on_progress=lambda written: os.kill(os.getpid(), signal.SIGKILL),
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

    def at_the_same_time(written: ConversionProgress) -> None:
        before = parts(tmp_path)
        inner.append(convert(source, tmp_path / "made"))
        assert parts(tmp_path) == before
        assert len(before) == 1

    # The later process finds the folder.
    with pytest.raises(ConfigError, match="made cannot be written: Directory not empty"):
        convert(source, tmp_path / "made", on_progress=at_the_same_time)
    assert len(load_all(inner[0])) > 0
    assert parts(tmp_path) == []


def test_data_that_change_during_the_conversion_are_not_kept(tmp_path: Path) -> None:
    source = svmlight(tmp_path)
    with pytest.raises(DataError, match="changed while being read"):
        convert(
            source, tmp_path / "made", on_progress=lambda written: svmlight(tmp_path, n=77) and None
        )
    assert not (tmp_path / "made").exists()


def test_test_data_get_the_columns_and_categories_of_the_training_data(tmp_path: Path) -> None:
    train = table(tmp_path, "a.csv", "y,a,city\n1,2.5,Rome\n0,3,Oslo\n")
    test = table(tmp_path, "b.csv", "y,a,city\n1,2.5,Rome\n")
    facts = compute_stats(convert(train, tmp_path / "train"))
    with pytest.raises(DataError, match="convert the test data with --like"):
        convert(test, tmp_path / "test").with_stats(facts)
    like = convert(test, tmp_path / "like", like=facts)
    assert load_all(like.with_stats(facts))[0].values.shape == (1, 3)


def test_columns_beyond_the_models_are_dropped_and_counted(tmp_path: Path) -> None:
    made = convert(svmlight(tmp_path), tmp_path / "made", chunk_bytes=2000)
    narrow = made.with_columns(4)
    rows = all_columns(load_all(narrow), 4)
    assert np.array_equal(rows, all_columns(load_all(made), 7)[:, :5])
    facts = compute_stats(narrow)
    assert facts.n_columns == 4
    assert facts.notes == ("180 values in columns beyond the 4 of the model were dropped",)
    assert [c.id for c in load_all(narrow)] == [c.id for c in load_all(made)]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "chunks.json").unlink(), "chunks.json is missing"),
        (lambda f: (f / "chunks.json").write_text("{}"), "is not a manifest of chunk files"),
        (lambda f: (f / "chunks.json").write_text('{"version": 9}'), "is of version 9, wanted 3"),
        (lambda f: (f / "000000.chunks").unlink(), "cannot be read: No such file"),
        (lambda f: (f / "000000.chunks").write_bytes(b"x"), "is damaged: it is cut short"),
        (lambda f: _flip(f / "000000.chunks"), "000000.chunks is damaged: chunk"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_a_one_line_error(tmp_path: Path, spoil, says: str) -> None:
    made = convert(svmlight(tmp_path), tmp_path / "made")
    spoil(tmp_path / "made")
    with pytest.raises((ConfigError, DataError), match=says) as raised:
        look_at_all(ChunkFolder(path=made.path))
    assert "\n" not in str(raised.value)


def look_at_all(source: ChunkFolder) -> None:
    for chunk in load_all(source):
        chunk.load()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_a_file_that_is_written_to_while_it_is_mapped_is_verified_again(tmp_path: Path) -> None:
    """What is mapped changes with the file, after its bodies were verified."""
    made, path = convert(svmlight(tmp_path), tmp_path / "made"), tmp_path / "made" / "000000.chunks"
    chunks = load_all(made)
    for chunk in chunks:
        chunk.load()
    (file,) = files_of(chunks)
    file.check()
    os.utime(path, (1, 1))
    file.check()
    content = path.read_bytes()
    with path.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(bytes([content[-100] ^ 1]))
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


def test_files_of_two_conversions_do_not_mix(tmp_path: Path) -> None:
    convert(svmlight(tmp_path, n=100), tmp_path / "one")
    made = convert(svmlight(tmp_path, n=120), tmp_path / "two")
    (tmp_path / "one" / "000000.chunks").replace(tmp_path / "two" / "000000.chunks")
    with pytest.raises(DataError, match="is of another conversion"):
        load_all(made)


def test_a_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted a folder on a disk that all members can access"):
        read_chunks("hdfs://nn:8020/made")


def test_features_by_columns_do_not_become_rows(tmp_path: Path) -> None:
    source = from_arrays(np.eye(3), np.arange(3.0), by="columns")
    with pytest.raises(ConfigError, match=r"the source is by columns, .*leave out by='columns'"):
        convert(source, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []
