"""The images of the local SGD studies: Fashion-MNIST, CIFAR-10, and a small generated set."""

from __future__ import annotations

import functools
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.cocoa_data import DATA
from support.local_sgd_runs import Images

import elasticml as em
from elasticml.data.source import load_all

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

#: Chunks of the small set: three images each.
_FEW_EXAMPLES = 4096


def fashion() -> Images:
    """70,000 articles of clothing, 28 x 28 grey pixels, 10 classes; 10,000 are for the test."""
    folder = DATA / "fashion_mnist"
    X, y = _read(em.read_images(str(folder / "train-images-idx3-ubyte.gz"), dtype="float32"))
    test = _read(em.read_images(str(folder / "t10k-images-idx3-ubyte.gz"), dtype="float32"))
    return images("fashion", (1, 28, 28), X, y, *test)


def cifar10() -> Images:
    """60,000 photographs, 32 x 32 pixels of three colours, 10 classes; 10,000 for the test."""
    folder = DATA / "cifar10_jpeg"
    X, y = _unpacked(folder / "cifar10_train.tar.xz")
    test = _unpacked(folder / "cifar10_test.tar.xz")
    return images("cifar10", (3, 32, 32), X, y, *test)


def squares() -> Images:
    """960 seeded images of 16 x 16 pixels, four classes by where they are bright."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 4, 1200).astype(float)
    X = rng.standard_normal((1200, 16, 16)).astype(np.float32)
    for number, picture in zip(y.astype(int), X, strict=True):
        down, right = 8 * (number // 2), 8 * (number % 2)
        picture[down : down + 8, right : right + 8] += 0.6
    X = X.reshape(1200, 256)
    whole = images("squares", (1, 16, 16), X[:960], y[:960], X[960:], y[960:])
    return replace(whole, chunk_bytes=_FEW_EXAMPLES)


def images(
    name: str, shape: tuple[int, int, int], X: F32, y: F64, test_X: F32, test_y: F64
) -> Images:
    """Return a data set in memory."""
    return Images(
        name=name,
        shape=shape,
        source=em.from_arrays(X, y, dtype="float32"),
        n_train=len(y),
        test_X=test_X,
        test_y=test_y,
    )


def _unpacked(archive: Path) -> tuple[F32, F64]:
    """Read the pictures of an archive of folders."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
        return _read(em.read_images(folder, dtype="float32"))


def _read(source: Any) -> tuple[F32, F64]:
    chunks = load_all(source)
    return (
        np.concatenate([chunk.values for chunk in chunks]),
        np.concatenate([chunk.labels for chunk in chunks]),
    )


#: Data set -> how it is read.
SETS: dict[str, Callable[[], Images]] = {"fashion": fashion, "cifar10": cifar10, "squares": squares}


@functools.cache
def load(name: str, rows: int | None = None) -> Images:
    """Load one of the sets; ``rows``: this many of its training examples, evenly spread."""
    whole = SETS[name]()
    if rows is None or rows >= whole.n_train:
        return whole
    assert whole.source.rows is not None
    some = np.linspace(0, whole.n_train - 1, rows).astype(int)
    X, y = np.asarray(whole.source.rows.dense)[some], whole.source.rows.labels[some]
    fewer = images(name, whole.shape, X, y, whole.test_X, whole.test_y)
    return replace(fewer, chunk_bytes=whole.chunk_bytes)
