"""Rows for K-Means benches: image descriptors, clusters, clothes, words, and one-hot tables."""

from __future__ import annotations

import gzip

import numpy as np
import scipy.sparse as sp

from tests.bench import harness

DATA = harness.DATA


def hog():
    """196,000 descriptors of 36 numbers from 0 to 1."""
    with np.load(DATA / "cifar_hog_blocks" / "cifar_hog_blocks_u8.npz") as file:
        return file["descriptors"] / 255.0


def birch1():
    """100,000 points of the plane in 100 clusters on a grid, scaled to the unit square."""
    X = np.loadtxt(DATA / "sipu_clusters" / "birch1.data.gz")
    return X / np.abs(X).max()


def fashion():
    """20,000 images of clothes of 28 x 28 pixels from 0 to 1, drawn at random."""
    with gzip.open(DATA / "fashion_mnist" / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784)
    return images[np.random.default_rng(0).permutation(len(images))[:20_000]] / 255.0


def words():
    """50,000 vectors of 50 numbers, of words by the web pages of ``sector`` that they are in.

    Singular vectors, with norms and noise that make them about as little clustered as trained
    vectors of words are.
    """
    from sklearn.datasets import load_svmlight_file
    from sklearn.utils.extmath import randomized_svd

    names = ("sector.svm.gz", "sector.t.svm.gz")
    parts = [load_svmlight_file(str(DATA / "sector" / n), n_features=55_197)[0] for n in names]
    of_words = sp.vstack(parts).T.tocsr()
    of_words.data[:] = np.log1p(of_words.data)
    pages = np.diff(of_words.indptr)
    most = np.sort(np.argsort(-pages, kind="stable")[:50_000])
    scaled = sp.diags(1.0 / np.sqrt(1.0 + pages[most])) @ of_words[most]
    left, values, _ = randomized_svd(scaled, 50, random_state=0)
    rng = np.random.default_rng(0)
    vectors = left * np.sqrt(values)
    vectors = vectors / vectors.std() + 0.3 * rng.standard_normal(vectors.shape)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths = 4.5 + 0.8 * rng.standard_normal(norms.shape)
    return vectors / norms * lengths + 0.35 * rng.standard_normal(vectors.shape)


def _covtype():
    return np.loadtxt(DATA / "covtype_20k" / "covtype-min.data.gz", delimiter=",")[:, :54]


def covtype():
    """20,000 descriptions of forests by 54 numbers, standardised."""
    X = _covtype()
    deviations = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviations > 0.0, deviations, 1.0)


def one_hot(table, bins):
    """Return columns for each bin of equal counts of each number, and for each category."""
    import pandas as pd

    parts = []
    for name in table:
        column = table[name]
        if pd.api.types.is_numeric_dtype(column):
            column = pd.qcut(column, bins, duplicates="drop", labels=False).fillna(0)
        parts.append(sp.csr_matrix(pd.get_dummies(column.astype(str)).to_numpy(float)))
    return sp.csr_matrix(sp.hstack(parts))


def kdd():
    """49,403 connections of a network, every number in ten bins."""
    import pandas as pd

    file = DATA / "kddcup99" / "kddcup.data_10_percent.gz"
    return one_hot(pd.read_csv(file, header=None).iloc[::10, :41], 10)


def wide():
    """The ten measures of covtype, each in 200 bins."""
    import pandas as pd

    return one_hot(pd.DataFrame(_covtype()[:, :10]), 200)


def a9a():
    """32,561 people as 123 one-hot columns."""
    from sklearn.datasets import load_svmlight_file

    return sp.csr_matrix(load_svmlight_file(str(DATA / "a9a" / "a9a.svm.gz"), n_features=123)[0])


#: Name of a set of the table against scikit-learn, and its rows.
TABLE = {
    "covtype": covtype,
    "hog": lambda: hog()[::4],
    "fashion": lambda: fashion()[:8000],
    "a9a": a9a,
    "kdd": kdd,
    "wide": wide,
}

#: Name of a set, its rows, and the number of clusters to find in it.
SETS = {
    "fashion": (fashion, 50),
    "words": (words, 100),
    "birch1": (birch1, 100),
    "hog": (hog, 50),
}
