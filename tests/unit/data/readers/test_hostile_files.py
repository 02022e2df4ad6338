"""Files that attack their readers: each is a DataError of one line, before memory is taken."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from PIL import Image

from elasticml.data.chunks import body as body_format
from elasticml.data.chunks.chunk import Chunk, binary_csr_chunk, sequence_chunk
from elasticml.data.chunks.ngrams import sequence_layout
from elasticml.data.dataset_stats import summarise
from elasticml.data.readers import files, images
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.chunk_folder import read_chunks
from elasticml.data.readers.images import read_images
from elasticml.data.readers.npz import read_npz
from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.readers.tabular import read_csv, read_parquet
from elasticml.data.source import load_all
from elasticml.data.storage import untrusted_files
from elasticml.data.storage.block_file import map_block, write_block
from elasticml.errors import DataError
from elasticml.ids import ChunkId
from elasticml.models.loading import load_model
from tests.unit.data.readers.test_reader_contract import NAMES, parquet

Y = np.array([0.0, 1.0, 0.0])
CSR: dict[str, Any] = {
    "data": np.ones(4),
    "indices": np.array([0, 2, 1, 3]),
    "indptr": np.array([0, 2, 2, 4]),
    "shape": np.array([3, 4]),
    "y": Y,
}


def refused(source: Any, *words: str) -> str:
    """Check that a source is refused in one line with these words; return the line."""
    with pytest.raises(DataError) as caught:
        load_all(source)
    message = caught.value.message
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def npz(folder: Path, **arrays: Any) -> Any:
    np.savez(folder / "a.npz", **arrays)
    return read_npz(str(folder / "a.npz"))


# --- archives of arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indices": np.array([0, 2, 1, 9])}, "indices from 0 to 9 for 4 columns"),
        ({"indices": np.array([0, 2, 1, -1])}, "indices from -1 to 2 for 4 columns"),
        ({"indices": np.array([0.5, 2, 1, 3])}, "indices has dtype float64"),
        ({"indptr": np.array([0, 3, 2, 4])}, "row pointers do not ascend"),
        ({"indptr": np.array([1, 2, 2, 4])}, "row pointers do not ascend"),
        ({"indptr": np.array([0, 2, 2, 2**62])}, "row pointers do not ascend"),
        ({"indptr": np.array([0, 4])}, "2 row pointers, 4 indices and 4 values for 3 rows"),
        ({"data": np.ones(3)}, "4 indices and 3 values"),
        ({"data": np.ones((2, 2))}, "data has dtype float64 and 2 dimensions"),
        ({"shape": np.array([3, 2**40])}, "shape is [3, 1099511627776]"),
        ({"shape": np.array([-3, 4])}, "shape is [-3, 4]"),
        ({"shape": np.array(3)}, "shape has dtype int64 and 0 dimensions"),
        ({"data": np.ones(4) * 1j}, "data.npy holds complex numbers, wanted real numbers"),
    ],
)
def test_sparse_arrays_are_checked_before_scipy_sees_them(tmp_path, changes, words) -> None:
    assert load_all(npz(tmp_path, **CSR))
    refused(npz(tmp_path, **{**CSR, **changes}), "a.npz", words)


def test_complex_numbers_are_refused_and_not_halved(tmp_path) -> None:
    refused(npz(tmp_path, X=np.eye(3) * 1j, y=Y), "X.npy holds complex numbers")
    refused(npz(tmp_path, X=np.eye(3), y=Y + 1j), "y.npy holds complex numbers")
    for X, y in ((np.eye(3) * 1j, Y), (np.eye(3), Y + 0j)):
        with pytest.raises(DataError, match="complex128, wanted real numbers"):
            from_arrays(X, y)


def with_header(folder: Path, header: bytes, content: bytes = b"") -> Any:
    """Write an archive with an array X of any header."""
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("X.npy", raw)
        buffer = io.BytesIO()
        np.save(buffer, Y)
        archive.writestr("y.npy", buffer.getvalue())
    return read_npz(str(folder / "a.npz"))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 8)}\n", "hold"),
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 8)}\n", "has shape (-1, 8)"),
        (b"{'descr': '|V0', 'fortran_order': False, 'shape': (9999999999,)}\n", "holds dtype"),
        (b"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}\n", "holds dtype object"),
        (b"{'descr': 7}\n", "cannot be read"),
        (b"(" * 9000, "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_header_is_compared_with_the_bytes_behind_it(tmp_path, header, words) -> None:
    message = refused(with_header(tmp_path, header), "a.npz")
    assert words in message or "not a readable .npz file" in message


def patched(path: Path, offset: int, form: str, value: int) -> None:
    """Change a field of the first entry of an archive's directory."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.index(b"PK\x01\x02") + offset, value)
    path.write_bytes(bytes(data))


def test_encrypted_and_unknown_members_are_named(tmp_path) -> None:
    source = npz(tmp_path, X=np.eye(3), y=Y)
    patched(tmp_path / "a.npz", 8, "<H", 1)
    refused(source, "a.npz: X.npy is encrypted")
    source = npz(tmp_path, X=np.eye(3), y=Y)
    patched(tmp_path / "a.npz", 10, "<H", 97)
    refused(source, "a.npz: X.npy is compressed in a way that Python cannot read (method 97)")


def test_names_of_members_do_not_break_messages(tmp_path) -> None:
    for name in ("a\nb.npy", "a" * 500 + ".npy"):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr(name, b"x")
        assert len(refused(read_npz(str(tmp_path / "a.npz")), "a.npz has a member named 'a")) < 300
    (tmp_path / "chunks.json").write_bytes(b"\xff" * 10**5)
    assert len(refused(read_chunks(str(tmp_path)), "chunks.json")) < 600


def test_a_bomb_of_zeros_is_refused_by_its_size_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(untrusted_files, "EXPANDED_BYTES_FREE", 10_000)
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((3, 300_000)), y=Y)
    refused(read_npz(str(tmp_path / "a.npz")), "X.npy expands from", "wanted at most 200 times")


def test_a_model_file_is_read_with_the_same_checks(tmp_path) -> None:
    np.savez(tmp_path / "model.npz", coef=np.ones((1, 3)) * 1j, intercept=np.zeros(1))
    with pytest.raises(DataError, match="is not a model file, or is damaged"):
        load_model(tmp_path / "model.npz")


def test_sparse_matrices_in_memory_are_checked_too() -> None:
    S = scipy.sparse.random(5, 4, 0.5, "csr", random_state=0)
    S.indices[0] = 10**6
    with pytest.raises(DataError, match="X is no valid sparse matrix"):
        from_arrays(S, np.arange(5.0))


# --- text -----------------------------------------------------------------------------------------


def test_a_line_without_end_is_refused(tmp_path, monkeypatch) -> None:
    for module in (files, untrusted_files):
        monkeypatch.setattr(module, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(files, "_READ_BYTES", 256)
    good, long = b"1 1:2\n" * 200, b"1 " + b"1:2 " * 1000
    (tmp_path / "a.svm").write_bytes(good + long)
    monkeypatch.setattr(files, "BLOCK_BYTES", 600)
    refused(read_svmlight(str(tmp_path / "a.svm")), "a.svm", "is longer than 1000 bytes")
    (tmp_path / "a.svm.gz").write_bytes(gzip.compress(long))
    refused(read_svmlight(str(tmp_path / "a.svm.gz")), "line 1 is longer than 1000 bytes")


def test_a_gz_bomb_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(untrusted_files, "EXPANDED_BYTES_FREE", 100_000)
    text = b"y,a\n" + b"1,2\n" * 10**6
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    refused(read_csv(str(tmp_path / "a.csv.gz"), "y"), "a.csv.gz: the file expands from")


def test_a_quoted_cell_of_many_lines_is_cut(tmp_path: Path) -> None:
    lines = ["y,a", "1,2", '0,"1', *['0,""1'] * 20_000, '0,"1', ""]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    source = read_csv(str(tmp_path / "a.csv"), "y", numeric=["a"])
    message = refused(source, "a.csv, line 3, column 'a': value is '1")
    assert len(message) < 500


# --- tables ---------------------------------------------------------------------------------------


def test_a_damaged_parquet_file_is_one_line(tmp_path) -> None:
    content = bytearray(parquet())
    for at in range(10, 200, 7):
        content[at] ^= 0x55
    (tmp_path / "a.parquet").write_bytes(bytes(content))
    refused(read_parquet(str(tmp_path / "a.parquet"), "y", ignore=NAMES[1:]), "a.parquet")


def test_a_row_group_that_expands_without_end_is_refused(tmp_path, monkeypatch) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"y": np.zeros(100_000), "a": np.zeros(100_000)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    source = read_parquet(str(tmp_path / "a.parquet"), "y")
    assert load_all(source)
    monkeypatch.setattr(untrusted_files, "EXPANDED_BYTES_FREE", 1000)
    monkeypatch.setattr(untrusted_files, "EXPANSION_MAX", 2)
    refused(source, "row group 0 expands")


# --- images ---------------------------------------------------------------------------------------


def picture() -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_only_regular_files_are_opened(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "x.png")
    refused(read_images(str(tmp_path)), "x.png is a pipe, a socket or a device")
    os.mkfifo(tmp_path / "b.npz")
    refused(read_npz(str(tmp_path / "b.npz")), "b.npz")
    refused(read_svmlight("/dev/zero"), "/dev/zero")
    os.mkfifo(tmp_path / "c.chunks")
    with pytest.raises(DataError, match="is a pipe, a socket or a device"):
        map_block(tmp_path / "c.chunks")


def test_a_huge_image_file_is_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(images, "IMAGE_BYTES_MAX", 5000)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.png").write_bytes(picture() + bytes(10_000))
    refused(read_images(str(tmp_path)), "0.png", "5000")


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(images, "PIXELS_MAX", 20)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.png").write_bytes(picture())
    refused(read_images(str(tmp_path)), "c/0.png", "8 x 9 pixels, more than 20")


def test_a_format_that_starts_another_program_is_not_decoded(tmp_path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    refused(read_images(str(tmp_path)), "c/0.png", "Pillow does not know its format")


def test_an_idx_header_does_not_decide_what_is_allocated(tmp_path) -> None:
    head = bytes([0, 0, 8, 3]) + struct.pack(">III", 2**31, 2**20, 2**10)
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 2**31)
    for name, content in (("t-images-idx3-ubyte.gz", head), ("t-labels-idx1-ubyte.gz", labels)):
        (tmp_path / name).write_bytes(gzip.compress(content + bytes(100)))
    refused(read_images(str(tmp_path / "t-images-idx3-ubyte.gz")), "ubyte.gz: the file expands")


# --- files of chunks ------------------------------------------------------------------------------


def forged(folder: Path, chunk: Chunk, section: str, at: int, form: str, value: int) -> Chunk:
    """Return a chunk from a file in which a value was changed, with a checksum that is right."""
    body = bytearray(chunk.body)
    header = body_format.read_header(chunk.body, "it")
    struct.pack_into(form, body, header.offsets[section] + at, value)
    changed = Chunk(chunk.id, memoryview(bytes(body)))
    summary = summarise(0, [chunk], chunk.layout)
    write_block(folder / "a.chunks", ([changed], summary))
    return map_block(folder / "a.chunks")[0][0]


@pytest.mark.parametrize(
    ("section", "at", "value", "why"),
    [
        ("indices", 4, 10**6, "a column index is not below 5"),
        ("indices", 0, -1, "a column index is not below 5"),
        ("indptr", 4, 99, "row pointers do not ascend"),
        ("indptr", 0, 1, "row pointers do not ascend"),
    ],
)
def test_forged_rows_are_found_before_kernels_see_them(tmp_path, section, at, value, why) -> None:
    indices = np.array([0, 4, 2], np.int32)
    chunk = binary_csr_chunk(ChunkId("s", 0, 0), np.ones(2), np.array([0, 2, 3]), indices, 5)
    assert forged(tmp_path, chunk, "labels", 0, "<d", 1).indices.tolist() == [0, 4, 2]
    read = forged(tmp_path, chunk, section, at, "<i", value)
    with pytest.raises(DataError, match=why):
        read.load()


def test_forged_codes_of_sequences_are_found(tmp_path) -> None:
    layout = sequence_layout("ACG", 4, (1, 2))
    chunk = sequence_chunk(ChunkId("s", 0, 0), np.ones(2), np.zeros((2, 4), np.uint8), layout)
    assert forged(tmp_path, chunk, "codes", 0, "<B", 8).codes[0, 0] == 8
    with pytest.raises(DataError, match="a code of a sequence is out of range"):
        forged(tmp_path, chunk, "codes", 0, "<B", 9).load()
