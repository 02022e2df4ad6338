"""Inputs of estimators besides arrays: Dask collections, files by name, and sources."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, make_classification

import elasticml as em
from elasticml.data.readers.chunk_folder import convert
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.errors import ConfigError, DataError

MODELS = {
    "svm": lambda: em.LinearSVC(tol=1e-8),
    "logistic": lambda: em.LogisticRegression(tol=1e-10),
    "l1": lambda: em.LogisticRegression(l1_ratio=1.0, tol=1e-10),
    "ridge": lambda: em.Ridge(),
    "lasso": lambda: em.Lasso(0.01, tol=1e-10),
    "elastic net": lambda: em.ElasticNet(0.01, tol=1e-10),
    "lasso path": lambda: em.LassoCV(cv=3, alphas=5),
    "elastic net path": lambda: em.ElasticNetCV(cv=3, alphas=5),
}


def data():
    X, y = make_classification(120, 6, random_state=0)
    return X, y.astype(float), np.random.default_rng(0).integers(1, 4, 120).astype(float)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The rows of :func:`data` in every format."""
    path = tmp_path_factory.mktemp("inputs")
    X, y, weights = data()
    np.save(path / "X.npy", X)
    np.save(path / "y.npy", y)
    np.save(path / "weights.npy", weights)
    np.savez(path / "all.npz", X=X, y=y, sample_weight=weights)
    with (path / "rows.svm").open("wb") as file:
        dump_svmlight_file(X, y, file, zero_based=False)
    names = [f"x{j}" for j in range(6)]
    table = pandas.DataFrame(X, columns=names).assign(label=y)
    table.to_csv(path / "last.csv", index=False)
    table[["label", *names]].to_csv(path / "first.csv.gz", index=False)
    table.to_parquet(path / "last.parquet", index=False)
    convert(em.read_svmlight(str(path / "rows.svm")), path / "rows.chunks")
    return path


def same(ours, other):
    np.testing.assert_allclose(ours.coef_, other.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, other.intercept_, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_dask_arrays_are_computed(name):
    dask_array = pytest.importorskip("dask.array")
    X, y, weights = data()
    parts = [dask_array.from_array(a, chunks=50) for a in (X, y, weights)]
    ours = MODELS[name]().fit(*parts[:2], sample_weight=parts[2])
    known = MODELS[name]().fit(X, y, sample_weight=weights)
    same(ours, known)
    assert np.array_equal(ours.predict(parts[0]).compute(), known.predict(X))
    assert ours.score(*parts) == pytest.approx(known.score(X, y, weights), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_files_are_read_by_name(name, folder):
    X, y, weights = data()
    known = MODELS[name]().fit(X, y)
    for value in [
        (str(folder / "X.npy"), folder / "y.npy"),
        (folder / "X.npy", y),
        (folder / "rows.svm",),
        (folder / "rows.chunks",),
        (folder / "last.csv",),
        (folder / "last.parquet", "label"),
        (folder / "first.csv.gz", 0),
        (em.read_csv(str(folder / "first.csv.gz"), "label"),),
        (em.read_svmlight(str(folder / "rows.svm")), y),
    ]:
        same(MODELS[name]().fit(*value), known)
    weighted = MODELS[name]().fit(X, y, sample_weight=weights)
    same(MODELS[name]().fit(folder / "all.npz"), weighted)
    same(MODELS[name]().fit(folder / "X.npy", y, sample_weight=folder / "weights.npy"), weighted)


def test_a_score_of_a_file_takes_the_columns_of_a_fitted_frame_by_their_names(tmp_path):
    X, y, _ = data()
    frame = pandas.DataFrame(X[:, :3], columns=["a", "b", "c"])
    model = em.LogisticRegression().fit(frame, y)
    table = frame.assign(other="x", label=np.where(y == model.classes_[1], "yes", "no"))
    table = table[["other", "c", "label", "a", "b"]]
    table.to_csv(tmp_path / "rows.csv", index=False)
    words = em.LogisticRegression().fit(frame, table["label"])
    assert words.score(tmp_path / "rows.csv", "label") == words.score(frame, table["label"])
    table.assign(label=y).to_parquet(tmp_path / "rows.parquet")
    source = em.read_parquet(str(tmp_path / "rows.parquet"), "label")
    assert model.score(source) == model.score(frame, y) > 0.6
    table.drop(columns="b").to_csv(tmp_path / "lacks.csv", index=False)
    with pytest.raises(DataError, match="lacks column 'b'"):
        model.score(tmp_path / "lacks.csv", "label")


def test_a_file_of_fewer_or_more_columns_fits_the_model(tmp_path):
    X, y, _ = data()
    model = em.LinearSVC().fit(X, y)
    for width in (4, 9):
        rows = sp.random_array((20, width), density=0.7, rng=np.random.default_rng(0)).tocsr()
        rows.data[-1] = 1.0
        path = tmp_path / f"{width}.svm"
        dump_svmlight_file(rows, np.zeros(20), str(path), zero_based=False)
        dense = np.zeros((20, 6))
        dense[:, : min(width, 6)] = rows.toarray()[:, :6]
        np.testing.assert_allclose(
            model.decision_function(path), model.decision_function(dense), atol=1e-12
        )


def test_clusters_are_found_in_files_and_dask_arrays(folder):
    dask_array = pytest.importorskip("dask.array")
    X, _, _ = data()
    known = em.KMeans(3, random_state=0).fit(X)
    for rows in (folder / "X.npy", dask_array.from_array(X, chunks=50)):
        ours = em.KMeans(3, random_state=0).fit(rows)
        assert np.array_equal(ours.cluster_centers_, known.cluster_centers_)
        assert np.array_equal(np.asarray(ours.predict(rows)), known.predict(X))
        assert np.array_equal(np.asarray(ours.transform(rows)), known.transform(X))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (("nowhere.svm",), ConfigError, "nowhere.svm does not exist"),
        (("rows.text",), ConfigError, "rows.text does not imply a format"),
        (("last.csv", np.zeros(120)), ConfigError, "y of .*last.csv is a ndarray, wanted the name"),
        (("X.npy", "labels"), ConfigError, "wanted an array or the path of an .npy file"),
        (("broken.npy", np.zeros(3)), DataError, "broken.npy: cannot be read"),
        (("X.npy",), ValueError, "requires y to be passed"),
        (("header.csv",), DataError, "header.csv holds no examples, wanted at least one"),
        (("words.csv",), DataError, "y of row 0 is 'yes', wanted a number"),
    ],
)
def test_unreadable_inputs_are_one_line_errors(value, error, message, folder):
    (folder / "broken.npy").write_bytes(b"no numbers")
    (folder / "header.csv").write_text("a,b,c\n")
    (folder / "words.csv").write_text("a,b,c\n1,2,yes\n2,3,no\n")
    with pytest.raises(error, match=message):
        em.Lasso().fit(folder / value[0], *value[1:])


def test_a_table_needs_the_name_of_its_label_column(folder):
    X, y, _ = data()
    model = em.Ridge().fit(X, y)
    with pytest.raises(ConfigError, match="was fitted to rows without names: fit it to a table"):
        model.predict(folder / "last.csv")
    with pytest.raises(ConfigError, match="does not say which of its columns holds labels"):
        em.KMeans(2).fit(folder / "last.csv")


@pytest.mark.parametrize("make", [em.Lasso, em.Ridge, em.LinearSVC, em.LogisticRegression])
def test_column_partitioned_features_are_not_taken_for_examples(make):
    X, y, _ = data()
    turned = em.from_arrays(X, y, by="columns")
    with pytest.raises(ConfigError, match=r"the source is by columns, .*leave by='columns' out"):
        make().fit(turned)
    model = make().fit(X, y > 0.0)
    with pytest.raises(ConfigError, match="the source is by columns"):
        model.predict(turned)
    with pytest.raises(ConfigError, match="the source is by columns"):
        em.KMeans(2).fit(turned)


def test_sequences_are_refused_as_numbers():
    with pytest.raises(DataError, match="rows are sequences"):
        em.LinearSVC().fit(synthetic_splice(50))


def test_fitting_arrays_loads_no_more_than_it_needs():
    code = (
        "import sys, numpy as np, elasticml as em\n"
        "X = np.random.default_rng(0).standard_normal((50, 4)); y = (X[:, 0] > 0) * 1.0\n"
        "linear = (em.LogisticRegression(), em.Ridge(), em.Lasso(0.1), em.LinearSVC())\n"
        "for model in (*linear, em.KMeans()):\n"
        "    model.fit(X, y).predict(X)\n"
        "em.LassoCV, em.ElasticNetCV\n"
        "names = ('dask', 'distributed', 'torch', 'fsspec', 'sklearn.model_selection',\n"
        "    'elasticml.job', 'elasticml.algorithms.batch_gradient.trainer')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
