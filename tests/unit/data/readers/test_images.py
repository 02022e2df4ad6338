"""IDX files become the written images and labels, in any blocks; wrong files are named."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.readers.images import read_images
from elasticml.data.source import load_all
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.job_spec import JobSpec

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(
        f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.str[1:]], array.ndim, *array.shape
    )
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(folder: Path, name: str, array: np.ndarray, pack=bytes) -> str:
    (folder / name).write_bytes(pack(idx(array)))
    return str(folder / name)


def drawn(n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 4, 3), np.uint8), rng.integers(0, 10, n).astype(np.uint8)


def pixels(chunks) -> np.ndarray:
    return np.concatenate([chunk.values for chunk in chunks])


def labels(chunks) -> list[float]:
    return np.concatenate([chunk.labels for chunk in chunks]).tolist()


@pytest.mark.parametrize("kind", CODES)
def test_every_type_of_value_is_read(tmp_path, kind):
    X = np.array([[1, 2], [3, 100]], kind)
    images_at, labels_at = write(tmp_path, "x", X), write(tmp_path, "y", X[:, 0].copy())
    chunks = load_all(read_images(images_at, labels=labels_at, dtype="float32"))
    assert pixels(chunks).tolist() == X.tolist()
    assert pixels(chunks).dtype == np.float32
    assert labels(chunks) == [1.0, 3.0]


def test_a_job_file_names_images_and_their_labels(tmp_path):
    for name in ("train", "t10k"):
        X, y = drawn(5)
        write(tmp_path, f"{name}-images-idx3-ubyte", X)
        write(tmp_path, f"{name}-labels", y)
    (tmp_path / "job.yaml").write_text(
        "data: {format: images, path: train-images-idx3-ubyte, labels: train-labels,\n"
        "  dtype: float32, test: {path: t10k-images-idx3-ubyte, labels: t10k-labels}}\n"
        "algorithm: {name: batch_gradient}\n"
    )
    file = JobSpec.from_file(tmp_path / "job.yaml")
    assert file.data.spec()["labels"] == str(tmp_path / "train-labels")
    assert file.test.spec()["labels"] == str(tmp_path / "t10k-labels")
    assert file.test.spec()["dtype"] == "float32"
    assert len(file.test.blocks()) == 1


X, Y = drawn(3)
WRONG = {
    "no IDX": (b"\x89PNG\r\n", idx(Y), r"x begins with 89 50 4e 47, wanted an IDX file"),
    "a type that is not": (b"\0\0\7\1\0\0\0\1\0", idx(Y), r"x begins with 00 00 07 01, wanted"),
    # The message had the product of the sizes, a number of hundreds of digits.
    "255 dimensions": (b"\0\0\x08\xff" + 1020 * b"\x7f", idx(Y), r"x begins with 00 00 08 ff, w"),
    "half a header": (idx(X)[:9], idx(Y), r"x begins with 00 00 08 03, wanted an IDX file"),
    "cut short": (idx(X)[:-1], idx(Y), r"x has 51 bytes, wanted 52 for dimensions \(3, 4, 3\)"),
    "cut and packed": (
        gzip.compress(idx(X)[:-13]),
        idx(Y),
        r"x: the data end early or are damaged \(after 1 of 3 examples\)",
    ),
    "damaged": (gzip.compress(idx(X))[:-20], idx(Y), r"x: the data end early or are damaged"),
    "another checksum": (
        gzip.compress(idx(X))[:-8] + bytes(8),
        idx(Y),
        r"x: the data end early or are damaged",
    ),
    "labels of another checksum": (
        idx(X),
        gzip.compress(idx(Y))[:-8] + bytes(8),
        r"y: the data end early or are damaged",
    ),
    "more images than it says": (
        gzip.compress(idx(X) + b"\0"),
        idx(Y),
        r"x has more data after its 3 examples",
    ),
    "no pixels": (idx(Y), idx(Y), r"x has dimensions \(3,\), wanted images and their pixels"),
    "no images": (idx(X[:0]), idx(Y[:0]), r"x has dimensions \(0, 4, 3\), wanted images"),
    "too few labels": (idx(X), idx(Y[:2]), r"y has dimensions \(2,\), wanted one label for each"),
    "not a number": (
        idx(np.array([[1.0], [np.nan], [2.0]])),
        idx(Y),
        r"x, example 1, value 0: nan, wanted a finite number",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_named(tmp_path, case):
    pictures, targets, message = WRONG[case]
    (tmp_path / "x").write_bytes(pictures)
    (tmp_path / "y").write_bytes(targets)
    with pytest.raises(DataError, match=message) as caught:
        load_all(read_images(str(tmp_path / "x"), labels=str(tmp_path / "y")))
    assert "\n" not in str(caught.value)


def test_labels_that_cannot_be_guessed_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.labels is missing, .*, which is not named"):
        read_images("pictures").blocks()
    with pytest.raises(ConfigError, match="labels-idx1-ubyte does not exist"):
        load_all(read_images(write(tmp_path, "a-images-idx3-ubyte", X)))
