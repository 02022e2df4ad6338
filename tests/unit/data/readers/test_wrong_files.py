"""Wrong and hostile files of every format: a DataError of one line, before memory is taken."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from PIL import Image

import elasticml as em
from elasticml.data.readers import files, images
from elasticml.data.readers.npz import read_npz
from elasticml.data.source import load_all
from elasticml.data.storage import untrusted_files
from elasticml.data.storage.block_files import map_block
from elasticml.errors import ConfigError, DataError
from elasticml.models.loading import load_model
from tests.unit.data.readers.test_reader_contract import NAMES, idx, parquet

Y = np.array([0.0, 1.0, 0.0])


def refused(source: Any, *words: str) -> str:
    """Check that a source is refused in one line with these words; return the line."""
    with pytest.raises(DataError) as caught:
        load_all(source)
    message = caught.value.message
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# --- text -----------------------------------------------------------------------------------------

LINES = {
    "x 1:2": "line 3, column 1: label is 'x', wanted one finite number",
    "1,2 1:2": "line 3, column 1: label is '1,2', wanted one",
    "nan 1:2": "line 3, column 1: label is 'nan', wanted one finite number",
    "1 2:3 -1:3": "line 3, column 7: feature index is -1, wanted an integer of at least 1",
    "1 0:3": "line 3, column 3: feature index is 0 in a file taken as one-based",
    "1 3": "line 3, column 3: found '3', wanted index:value",
    "1 1.5:3": "line 3, column 3: found '1.5:3', wanted index:value",
    "1 1:": "line 3, column 3: value is ",
    "1 1:2 2:nan": "line 3, column 7: value is 'nan' in '2:nan', wanted a finite number; impute",
    "1 1:1e999": "line 3, column 5: value is '1e999'",
    "1 1:1_000": "line 3, column 3: value is '1_000'",
    "1 1:0x10": "line 3, column 3: value is '0x10'",
    "1 1:1e": "line 3, column 3: value is '1e'",
    "1 99999999999:1": "feature index is 99999999999, wanted at most 2147483647",
    f"1 {'9' * 300}:1": f"feature index is {'9' * 37}..., wanted at most 2147483647",
    "1 2:1 1:3 2:2 5:1": "line 3: feature index 2 occurs twice",
    "1 qid:7 2:1 qid:7 2:2 5:1": "line 3: feature index 2 occurs twice",
    "1 1:1\r 2:1\v3:1 2:2": "line 3: feature index 2 occurs twice",
}
#: A text longer than this is parsed by other code than a short one.
LONG = "\n#" + "-" * 2**19 + "\n"


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(("n_bytes", "tail"), [(2**23, ""), (8, ""), (2**23, LONG)])
def test_a_wrong_line_of_svmlight_is_named(tmp_path, monkeypatch, line, n_bytes, tail) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", n_bytes)
    path = tmp_path / "data.svm"
    path.write_bytes(f"1 1:2\n# comment\n{line}\n1 2:3\n{tail}".encode())
    refused(em.read_svmlight(path, zero_based=False), "data.svm, ", LINES[line])


CELLS = {
    b"d,y\n2013-01-01,0\n\n2013-02-30,1\n": "line 4, column 'd': value is '2013-02-30', wanted",
    b"a,b,y\n1,2,1\n\n3,1\n": "a.csv, line 4: 2 fields, wanted 3",
    b"a,b,y\n1,2,1\n3,inf,1\n": "line 3, column 'b': value is inf, wanted a finite number",
    b"a,b,y\n1,,1\n3,NA,1\n": "a.csv has 2 missing values, the first in line 2",
    b"a,b,y\n1,2,1\n\n3,4,?\n": "a.csv has 1 missing values, the first in line 4",
    b"a,a,y\n1,2,1\n": "line 1: column 'a' is in the header twice",
    b"x,y\nb,0\ncaf\xe9,1\n": "a.csv, line 3: byte 0xe9 is not UTF-8; convert the",
    "x,y\n1,0\n".encode("utf-16"): "a.csv is no UTF-8 text",
}


@pytest.mark.parametrize("text", CELLS)
def test_a_wrong_cell_of_csv_is_named(tmp_path, text) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    refused(em.read_csv(tmp_path / "a.csv", "y"), CELLS[text])


def test_a_line_or_a_cell_without_end_is_refused_and_cut(tmp_path, monkeypatch) -> None:
    lines = ["y,a", "1,2", '0,"1', *['0,""1'] * 20_000, '0,"1', ""]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    source = em.read_csv(tmp_path / "a.csv", "y", numeric=["a"])
    assert len(refused(source, "a.csv, line 3, column 'a': value is '1")) < 500
    for module in (files, untrusted_files):
        monkeypatch.setattr(module, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(files, "READ_BYTES", 256)
    monkeypatch.setattr(files, "BLOCK_BYTES", 600)
    good, long = b"1 1:2\n" * 200, b"1 " + b"1:2 " * 1000
    (tmp_path / "a.svm").write_bytes(good + long)
    refused(em.read_svmlight(tmp_path / "a.svm"), "a.svm", "is longer than 1000 bytes")
    (tmp_path / "a.svm.gz").write_bytes(gzip.compress(long))
    refused(em.read_svmlight(tmp_path / "a.svm.gz"), "line 1 is longer than 1000 bytes")


def test_what_expands_without_end_is_refused_by_its_size_alone(tmp_path, monkeypatch) -> None:
    text = b"y,a\n" + b"1,2\n" * 10**5
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((3, 300_000)), y=Y)
    pq.write_table(pa.table({"y": np.zeros(10**5), "a": np.zeros(10**5)}), tmp_path / "a.parquet")
    sources = {
        "a.csv.gz: the file expands from": em.read_csv(tmp_path / "a.csv.gz", "y"),
        "X.npy expands from": read_npz(str(tmp_path / "a.npz")),
        "row group 0 expands": em.read_parquet(tmp_path / "a.parquet", "y"),
    }
    for source in sources.values():
        assert load_all(source)
    monkeypatch.setattr(untrusted_files, "EXPANDED_BYTES_FREE", 1000)
    monkeypatch.setattr(untrusted_files, "EXPANSION_MAX", 2)
    for words, source in sources.items():
        refused(source, words)


# --- Parquet --------------------------------------------------------------------------------------


def test_wrong_parquet_files_are_refused(tmp_path) -> None:
    content = bytearray(parquet())
    for at in range(10, 200, 7):
        content[at] ^= 0x55
    (tmp_path / "damaged").write_bytes(bytes(content))
    refused(em.read_parquet(tmp_path / "damaged", "y", ignore=NAMES[1:]), "damaged")
    (tmp_path / "none").write_bytes(b"no parquet file")
    refused(em.read_parquet(tmp_path / "none", "y"), "none: cannot be read (ArrowInvalid")
    for table, *words in (
        (pa.table({"x": [1.0, None, np.nan], "y": [1, 2, 3]}), "2 missing values, the first in ro"),
        (pa.table({"x": [[1.0]], "y": [1]}), "column 'x' of ", " holds list<"),
        (pa.table({"x": pa.array([], pa.float64()), "y": []}), "a holds no rows"),
    ):
        pq.write_table(table, tmp_path / "a")
        refused(em.read_parquet(tmp_path / "a", "y"), *words)


# --- arrays ---------------------------------------------------------------------------------------

CSR: dict[str, Any] = {
    "data": np.ones(4),
    "indices": np.array([0, 2, 1, 3]),
    "indptr": np.array([0, 2, 2, 4]),
    "shape": np.array([3, 4]),
    "y": Y,
}


def npz(folder: Path, **arrays: Any) -> Any:
    np.savez(folder / "a.npz", **arrays)
    return read_npz(str(folder / "a.npz"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indices": np.array([0, 2, 1, 9])}, "is no valid sparse matrix"),
        ({"indices": np.array([0, 2, 1, -1])}, "is no valid sparse matrix"),
        ({"indices": np.array([0.5, 2, 1, 3])}, "that are no numbers, or no whole ones"),
        ({"data": np.array(list("1234"))}, "that are no numbers"),
        ({"indptr": np.array([0, 3, 2, 4])}, "is no valid sparse matrix"),
        ({"indptr": np.array([0, 3, 2, 0])}, "is no valid sparse matrix"),
        ({"indptr": np.array([1, 2, 2, 4])}, "cannot be read (ValueError"),
        ({"indptr": np.array([0, 2, 2, 2**62])}, "cannot be read (ValueError"),
        ({"indptr": np.array([0, 4])}, "cannot be read (ValueError"),
        ({"data": np.ones(3)}, "cannot be read (ValueError"),
        ({"data": np.ones((2, 2))}, "cannot be read (ValueError"),
        ({"shape": np.array([3, 2**40])}, "1099511627776 columns"),
        ({"shape": np.array([-3, 4])}, "cannot be read (ValueError"),
        ({"shape": np.array(3)}, "cannot be read"),
        ({"data": np.ones(4) * 1j}, "data.npy holds complex numbers, wanted real numbers"),
        ({"y": Y + 1j}, "y.npy holds complex numbers"),
    ],
)
def test_sparse_arrays_are_checked_before_scipy_sees_them(tmp_path, changes, words) -> None:
    assert load_all(npz(tmp_path, **CSR))
    refused(npz(tmp_path, **{**CSR, **changes}), "a.npz", words)


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
    buffer = io.BytesIO()
    np.save(buffer, Y)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        archive.writestr("y.npy", buffer.getvalue())
    refused(read_npz(str(tmp_path / "a.npz")), "a.npz", words)


def test_members_that_cannot_be_read_are_named_and_their_names_cut(tmp_path) -> None:
    # In the archive's directory: the field at an offset.
    for offset, value, words in (
        (8, 1, "a.npz, X.npy: cannot be read (RuntimeError"),
        (10, 97, "a.npz, X.npy: cannot be read (NotImplementedError"),
    ):
        source = npz(tmp_path, X=np.eye(3), y=Y)
        data = bytearray((tmp_path / "a.npz").read_bytes())
        struct.pack_into("<H", data, data.index(b"PK\x01\x02") + offset, value)
        (tmp_path / "a.npz").write_bytes(bytes(data))
        refused(source, words)
    for name in ("a\nb.npy", "a" * 500 + ".npy"):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr(name, b"x")
        assert len(refused(read_npz(str(tmp_path / "a.npz")), "a.npz has a member named 'a")) < 300
    (tmp_path / "a.npz").write_bytes(b"no zip file at all")
    refused(read_npz(str(tmp_path / "a.npz")), "a.npz: cannot be read (BadZipFile")
    refused(npz(tmp_path, X=np.eye(3)), "a.npz holds X; wanted y, and X or data")
    np.savez(tmp_path / "model.npz", coef=np.ones((1, 3)) * 1j, intercept=np.zeros(1))
    with pytest.raises(DataError, match="is not a model file, or is damaged"):
        load_model(tmp_path / "model.npz")


def descending() -> Any:
    """A matrix without values whose pointers SciPy does not check: reading it crashed."""
    S = sp.csr_array((3, 4))
    S.indptr = np.array([0, 500_000_000, 500_000_000, 0], np.int32)
    return S


def wide() -> Any:
    return sp.csr_array((np.ones(2), np.array([3, 2**31 + 7]), [0, 1, 2]), shape=(2, 2**31 + 9))


def unsorted() -> Any:
    S = sp.random(5, 4, 0.5, "csr", random_state=0)
    S.indices[0] = 10**6
    return S


@pytest.mark.parametrize(
    ("X", "y", "weights", "words"),
    [
        ([[1.0], [np.nan]], [1, 2], None, r"X, row 1, column 0: value is nan"),
        (sp.csr_array([[0, 1.0], [np.inf, 0]]), [1, 2], None, r"X, row 1, column 0: value is inf"),
        (unsorted(), np.arange(5.0), None, "X is no valid sparse matrix"),
        (descending(), np.arange(3.0), None, "X is no valid sparse matrix: index pointers must"),
        (wide(), [1, 2], None, "X has 2147483657 columns, wanted at most 2147483647"),
        ([[1.0], [2.0]], [1, np.nan], None, r"y of row 1 is nan"),
        ([[1.0], [2.0]], [1, 2, 3], None, r"shape \(2, 1\) and y has 3 labels"),
        ([1.0, 2.0], [1, 2], None, r"wanted two dimensions"),
        (np.empty((0, 2)), [], None, r"at least one row"),
        ([["a"], ["b"]], [1, 2], None, r"X: column 0, row 0 holds 'a', wanted a number; write the"),
        ([[1.0], [2.0]], [0, "yes"], None, "y of row 1 is 'yes', wanted a number; number the clas"),
        ([[1.0], [2.0]], [1, 2], [1, -1], r"weight of row 1 is -1\.0, wanted at least 0"),
        ([[1.0], [2.0]], [1, 2], [1], r"1 weights for 2 rows"),
        (np.eye(2) * 1j, [1, 2], None, "complex128, wanted real numbers"),
        (np.eye(2), [2**53, 2**53 + 1], None, "9007199254740992 and 9007199254740993, which are"),
    ],
)
def test_wrong_arrays_are_refused_with_the_position(X, y, weights, words) -> None:
    y = np.array(y, object) if "yes" in list(y) else y
    with pytest.raises(DataError, match=words):
        em.from_arrays(X, y, weights)


def test_wrong_arrays_by_columns_are_refused() -> None:
    X, y = np.ones((7, 3)), np.ones(7)
    for call, words in (
        (lambda: em.from_arrays(X, y, by="cols"), "by is 'cols', wanted 'rows' or 'columns'"),
        (lambda: em.from_arrays(X, y, by="columns", dtype="float32"), "wanted .float64. by col"),
        (lambda: em.from_arrays(X, y, 0.0 * y, by="columns"), "the weights of all examples are 0"),
        (lambda: em.from_arrays(X[:, :0], y, by="columns"), "no columns"),
        (lambda: em.from_arrays([[1, np.nan]], [1], by="columns"), "row 0, column 1: value is nan"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            call()


# --- images ---------------------------------------------------------------------------------------

PIXELS, DIGITS = np.arange(36, dtype=np.uint8).reshape(3, 4, 3), np.arange(3, dtype=np.uint8)
X, L = idx(PIXELS), idx(DIGITS)
FLOATS = struct.pack(">BBBBII3d", 0, 0, 14, 2, 3, 1, 1.0, np.nan, 2.0)
IDX = {
    "no IDX": (b"\x89PNG\r\n", L, "x begins with 89 50 4e 47, wanted an IDX file"),
    "a type that is not": (b"\0\0\7\1\0\0\0\1\0", L, "x begins with 00 00 07 01, wanted"),
    # The message had the product of the sizes, a number of hundreds of digits.
    "255 dimensions": (b"\0\0\x08\xff" + 1020 * b"\x7f", L, "x begins with 00 00 08 ff, w"),
    "half a header": (X[:9], L, "x begins with 00 00 08 03, wanted an IDX file"),
    "cut short": (X[:-1], L, "x has 51 bytes, wanted 52 for dimensions (3, 4, 3)"),
    "cut and packed": (
        gzip.compress(X[:-13]),
        L,
        "(EOFError: after 1 of 3 examples)",
    ),
    "damaged": (gzip.compress(X)[:-20], L, "x: cannot be read (EOFError"),
    "another checksum": (gzip.compress(X)[:-8] + bytes(8), L, "x: cannot be read (BadGzipFile"),
    "labels of another": (X, gzip.compress(L)[:-8] + bytes(8), "y: cannot be read (BadGzipFile"),
    "more than it says": (gzip.compress(X + b"\0"), L, "x has more data after its 3 examples"),
    "no pixels": (L, L, "x has dimensions (3,), wanted images and their pixels"),
    "no images": (idx(PIXELS[:0]), idx(DIGITS[:0]), "x has dimensions (0, 4, 3), wanted images"),
    "too few labels": (X, idx(DIGITS[:2]), "y has dimensions (2,), wanted one label for each"),
    "not a number": (FLOATS, L, "x, example 1, value 0: nan, wanted a finite number"),
    "a bomb": (gzip.compress(b"\0\0\x08\3" + b"\x7f" * 12 + bytes(99)), L, "x: the file expands"),
}


@pytest.mark.parametrize("case", IDX)
def test_wrong_idx_files_are_named(tmp_path, case) -> None:
    (tmp_path / "x").write_bytes(IDX[case][0])
    (tmp_path / "y").write_bytes(IDX[case][1])
    refused(em.read_images(tmp_path / "x", labels=str(tmp_path / "y")), IDX[case][2])


def test_wrong_pictures_are_named_and_not_decoded(tmp_path, monkeypatch) -> None:
    path = tmp_path / "c" / "0.png"
    path.parent.mkdir()
    good = io.BytesIO()
    Image.fromarray(np.zeros((9, 8, 3), np.uint8)).save(good, "PNG")
    # Another program would be started for the first.
    for content in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"nonsense"):
        path.write_bytes(content)
        refused(em.read_images(tmp_path), "c/0.png cannot be decoded", "does not know its format")
    path.write_bytes(good.getvalue() + bytes(10_000))
    assert load_all(em.read_images(tmp_path))
    with monkeypatch.context() as limited:
        limited.setattr(images, "IMAGE_BYTES_MAX", 5000)
        refused(em.read_images(tmp_path), "0.png", "5000")
    monkeypatch.setattr(images, "PIXELS_MAX", 20)
    refused(em.read_images(tmp_path), "c/0.png", "8 x 9 pixels, more than 20")


def test_only_regular_files_are_opened(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/x.png", "b.npz", "c.chunks"):
        os.mkfifo(tmp_path / name)
    refused(em.read_images(tmp_path), "x.png is a pipe, a socket or a device")
    refused(read_npz(str(tmp_path / "b.npz")), "b.npz")
    refused(em.read_svmlight("/dev/zero"), "/dev/zero")
    with pytest.raises(DataError, match="is a pipe, a socket or a device"):
        map_block(tmp_path / "c.chunks")
