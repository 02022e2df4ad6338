"""What a job may expect of a reader, whatever the format of the data."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticml as em
from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.readers import arrays, files, images
from elasticml.data.readers.files import Listing, text_blocks
from elasticml.data.readers.npz import read_npz
from elasticml.data.source import (
    Source,
    listed_once,
    load_all,
    read_again,
    read_block,
    source_from_spec,
    survey_all,
)
from elasticml.errors import ConfigError, DataError
from examples.libffm import LibFFM, read_libffm
from examples.papers.support.sequences import read_sequences
from tests.unit.data.rows import labels, matrix

N, LENGTH = 60, 6
LETTERS = np.random.default_rng(0).integers(0, 4, (N, LENGTH))
#: A column for each letter at each position: rows that every format can hold.
X = np.eye(4, dtype=np.uint8)[LETTERS].reshape(N, 4 * LENGTH)
Y = np.arange(N)
NAMES = [f"x{j}" for j in range(X.shape[1])]


def svmlight() -> bytes:
    tokens = [[f"{j + 1}:1" for j in np.flatnonzero(row)] for row in X]
    return "".join(f"{y} {' '.join(row)}\n" for y, row in zip(Y, tokens, strict=True)).encode()


def csv() -> bytes:
    lines = [f"{y},{','.join(map(str, row))}" for y, row in zip(Y, X, strict=True)]
    return "\n".join([",".join(["y", *NAMES]), *lines]).encode()


def words() -> list[str]:
    return ["".join("ACGT"[k] for k in row) for row in LETTERS]


def tsv() -> bytes:
    return "".join(f"{y}\tgene\t{word}\n" for y, word in zip(Y, words(), strict=True)).encode()


def fasta() -> bytes:
    rows = zip(Y, words(), strict=True)
    return "".join(f"> chr=1, label={y}\n{word[:4]}\n{word[4:]}\n" for y, word in rows).encode()


def ffm() -> bytes:
    tokens = [[f"{j // 4}:{j}:1" for j in np.flatnonzero(row)] for row in X]
    return "".join(f"{y} {' '.join(row)}\n" for y, row in zip(Y, tokens, strict=True)).encode()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def parquet() -> bytes:
    columns = {"y": Y} | {name: X[:, j] for j, name in enumerate(NAMES)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=7)
    return sink.getvalue().to_pybytes()


def read_letters(path: str) -> Source:
    return read_sequences(path, ngrams=(1, 1))


def read_table(path: str) -> Source:
    return em.read_csv(path, "y", numeric=["y", *NAMES])


@dataclass(frozen=True)
class Format:
    """A format of files: the content of one with the rows above, and its reader."""

    content: Callable[[], bytes]
    read: Callable[[str], Source]
    #: A line to append that is wrong, and the number of it.
    wrong: tuple[bytes, int] | None = None

    def write(self, folder: Path, pack: Callable[[bytes], bytes] = bytes) -> Source:
        (folder / "a-images-idx3-ubyte").write_bytes(pack(self.content()))
        (folder / "a-labels-idx1-ubyte").write_bytes(pack(idx(Y.astype(np.uint8))))
        return self.read(str(folder / "a-images-idx3-ubyte"))


TEXTS = {
    "svmlight": Format(svmlight, em.read_svmlight, (b"1 oops\n", N + 1)),
    "csv": Format(csv, read_table, (b"\n1" + b",oops" * len(NAMES), N + 2)),
    "surveyed csv": Format(csv, lambda path: em.read_csv(path, "y")),
    "tsv": Format(tsv, read_letters),
    "fasta": Format(fasta, read_letters),
    "idx": Format(lambda: idx(X), em.read_images),
    "a user's own": Format(ffm, read_libffm),
}
FORMATS = {**TEXTS, "parquet": Format(parquet, lambda path: em.read_parquet(path, "y"))}


def block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Cut files into blocks of ``size`` bytes, and read them in small pieces."""
    for module in (arrays, files, images):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
    monkeypatch.setattr(files, "READ_BYTES", 50)


def everything(source: Source) -> np.ndarray:
    """Labels and values of all rows, as the members of a job read them."""
    ready = survey_all(source_from_spec(json.loads(json.dumps(source.spec()))))
    assert ready.fingerprint() == survey_all(source).fingerprint()
    parts = [ready.read(block.index, 2**20, 1) for block in ready.blocks()]
    chunks = [chunk for some, _ in parts for chunk in some]
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    for block, (_, summary) in zip(ready.blocks(), parts, strict=True):
        assert block.rows in (None, summary.rows)
    facts = merge_summaries([summary for _, summary in parts])
    assert (facts.n_rows, facts.n_columns) == (N, X.shape[1])
    return np.column_stack([labels(chunks), matrix(chunks)])


def facts_of(source: Any) -> DatasetStats:
    ready = survey_all(source)
    parts = [ready.read(block.index, None, 1)[1] for block in ready.blocks()]
    return merge_summaries(parts, name=source.path)


def message_of(source: Source) -> str:
    with pytest.raises((ConfigError, DataError)) as caught:
        facts_of(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pack", "size"),
    [
        *[(bytes, size) for size in (7, 100, 2**23)],
        *[(gzip.compress, 64), (bz2.compress, 1000), (lzma.compress, 100)],
    ],
)
@pytest.mark.parametrize("form", TEXTS.values(), ids=TEXTS)
def test_every_row_is_in_exactly_one_block(tmp_path, monkeypatch, form, pack, size) -> None:
    block_bytes(monkeypatch, size)
    np.testing.assert_array_equal(everything(form.write(tmp_path, pack)), np.column_stack([Y, X]))


def test_row_groups_and_arrays_are_blocks(tmp_path, monkeypatch) -> None:
    block_bytes(monkeypatch, 1000)
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    sources = (
        FORMATS["parquet"].write(tmp_path),
        em.from_arrays(X, Y),
        read_npz(f"{tmp_path}/a.npz"),
    )
    assert [len(source.blocks()) for source in sources] == [9, 12, 1]
    wanted = np.column_stack([Y, X])
    for source in sources:
        np.testing.assert_array_equal(np.column_stack(rows_of(source)), wanted)


def rows_of(source: Source) -> tuple[list[float], np.ndarray]:
    chunks = load_all(source)
    return labels(chunks), matrix(chunks)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_chunks_have_at_most_the_requested_size_or_one_row_and_are_the_same_each_time(
    tmp_path, form
) -> None:
    source = survey_all(form.write(tmp_path))
    again = source_from_spec(json.loads(json.dumps(source.spec())))
    for size in (1, 1500):
        chunks, summary = source.read(0, size, 1)
        same, _ = again.read(0, size, 9)
        assert [(c.id, c.content_id) for c in same] == [(c.id, c.content_id) for c in chunks]
        assert [chunk.id.ordinal for chunk in chunks] == list(range(len(chunks)))
        assert all(chunk.nbytes <= size or chunk.n_rows == 1 for chunk in chunks)
        assert sum(chunk.n_rows for chunk in chunks) == summary.rows
    assert len(chunks) < summary.rows
    single = read_again(again, [chunks[-1].id], 1500, 1)
    assert [bytes(chunk.body) for chunk in single] == [bytes(chunks[-1].body)]
    with pytest.raises(DataError, match="has no chunk"):
        read_again(again, [chunks[-1].id._replace(ordinal=9999)], 1500, 1)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize("form", TEXTS.values(), ids=TEXTS)
def test_a_block_is_parsed_once_and_a_changed_file_again(tmp_path, monkeypatch, form, pack) -> None:
    source = survey_all(form.write(tmp_path, pack))
    if not source.is_costly:
        return
    before = read_block(source, 0, 2000, 1, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(type(source), "read", None)
        chunks, summary = read_block(source, 0, 2000, 1, tmp_path / "cache")
    assert summary == before[1]
    assert [(c.id, bytes(c.body)) for c in chunks] == [(c.id, bytes(c.body)) for c in before[0]]
    monkeypatch.setattr("tests.unit.data.readers.test_reader_contract.Y", Y[::-1].copy())
    changed = survey_all(form.write(tmp_path, pack))
    assert changed.fingerprint() != chunks[0].id.source
    assert labels(read_block(changed, 0, 2000, 1, tmp_path / "cache")[0])[0] == N - 1
    with pytest.raises(DataError, match="the data have changed since chunk"):
        read_again(changed, [chunks[0].id], 2000, 1)


@pytest.mark.parametrize("size", [64, 2**23])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize("name", [name for name, form in TEXTS.items() if form.wrong])
def test_an_error_names_the_line_from_the_start_of_the_file(
    tmp_path, monkeypatch, name, pack, size
) -> None:
    block_bytes(monkeypatch, size)
    form = TEXTS[name]
    line, number = form.wrong
    (tmp_path / "a").write_bytes(pack(form.content() + line))
    message = message_of(form.read(str(tmp_path / "a")))
    assert message.startswith(f"{tmp_path / 'a'}, line {number}")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_file_that_is_missing_empty_or_cut_is_an_error_of_one_line(tmp_path, form) -> None:
    path = tmp_path / "a-images-idx3-ubyte"
    with pytest.raises(ConfigError, match="does not exist"):
        form.read(str(path)).blocks()
    form.write(tmp_path)
    path.write_bytes(b"")
    assert str(path) in message_of(form.read(str(path)))
    path.write_bytes(b"\n\n")
    assert str(path) in message_of(form.read(str(path)))
    path.write_bytes(gzip.compress(form.content())[:-40])
    assert str(path) in message_of(form.read(str(path)))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_files_of_another_file_system_are_read(form) -> None:
    for name, content in (("images-idx3", form.content()), ("labels-idx1", idx(Y.astype("u1")))):
        with fsspec.open(f"memory://contract/a-{name}-ubyte", "wb") as file:
            file.write(content)
    source = form.read("memory://contract/a-images-idx3-ubyte")
    np.testing.assert_array_equal(everything(source), np.column_stack([Y, X]))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_what_was_listed_travels_and_no_folder_is_listed_again(tmp_path, monkeypatch, form) -> None:
    block_bytes(monkeypatch, 100)
    listed = listed_once(form.write(tmp_path))
    blocks = listed.blocks()
    spec = json.loads(json.dumps(listed.spec()))
    assert source_from_spec(spec).fingerprint() == listed.fingerprint()
    (tmp_path / "a-images-idx3-ubyte").unlink()
    there = source_from_spec(spec)
    assert list(there.blocks()) == list(blocks)
    form.write(tmp_path)
    with pytest.raises(DataError, match="has changed since it was listed"):
        survey_all(there).read(0, None, 1)


def blocks_of(some: Any) -> list[files.FileBlock]:
    return [block for file in some for block in text_blocks(file)]


def test_the_listing_of_many_files_is_small_and_says_all_of_them() -> None:
    stamps = np.random.default_rng(0).integers(0, 10**9, 3000).tolist()
    parts = [
        files.DataFile(
            path=f"s3://bucket/part-{k}.csv",
            size=9000 + k % 7,
            token=str(1700000000_000000000 + stamp),
            compression=None,
        )
        for k, stamp in enumerate(stamps)
    ]
    odd = [replace(parts[0], token=token, path=f"/{token}") for token in ("", "00012", "e-tag")]
    for some in (parts, odd, parts[:1]):
        listing = Listing("p", lambda some=some: some, blocks_of)
        assert [part.file for group in listing.groups for part in group] == list(some)
        there = Listing.of_table("p", listing.table)
        assert (there.files, there.groups) == (list(some), listing.groups)
        assert there.blocks == listing.blocks
        assert there.fingerprint({"a": 1}) == listing.fingerprint({"a": 1})
        assert len(listing.table) < 200 + 20 * len(some)
    for damaged in ("", "nonsense", "c-" + listing.table):
        with pytest.raises(ConfigError, match=r"data\.files: no table of files"):
            source_from_spec({"format": "svmlight", "path": "a", "files": damaged or "0"})


def test_a_format_that_is_none_or_cannot_be_imported_is_named() -> None:
    path = "examples.libffm:LibFFM"
    assert type(source_from_spec({"format": path, "path": "a", "zero_based": False})) is LibFFM
    for name, what in (
        ("nowhere:Format", "data.format: got 'nowhere:Format', which cannot be imported"),
        ("examples.libffm:Rows", "data.format: examples.libffm:Rows is no format"),
        (
            "examples.libffm:Other",
            "data.format: got 'examples.libffm:Other', which cannot",
        ),
        ("svmligt", "data.format: got 'svmligt'; did you mean 'svmlight'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            source_from_spec({"format": name, "path": "a"})
        assert str(caught.value).startswith(what)
    with pytest.raises(ConfigError, match=r"data\.zero_base is not a setting; did you mean"):
        source_from_spec({"format": path, "path": "a", "zero_base": True})


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_fewer_columns_are_read_with_a_note_or_refused(tmp_path, form) -> None:
    source = survey_all(form.write(tmp_path))
    np.testing.assert_array_equal(matrix(load_all(source.with_stats(facts_of(source)))), X)
    if form.read is read_letters:
        assert "the training data" in message_of(source.with_columns(5))
        return
    chunks, summary = source.with_columns(5).read(0, None, 1)
    np.testing.assert_array_equal(matrix(chunks, 5), X[: len(labels(chunks)), :5])
    assert "in columns beyond the 5 of the model were dropped" in summary.notes[0]
