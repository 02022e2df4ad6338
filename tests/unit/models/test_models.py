"""Models are functions of rows: any container, one file, the same predictions."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from click.testing import CliRunner
from sklearn.metrics import d2_tweedie_score

import elasticml as em
from elasticml.cli.predict import predict
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import survey_all
from elasticml.errors import ConfigError, DataError
from elasticml.models.file_format import HEADER
from elasticml.models.loading import load_model, model_of_job, read_model
from elasticml.models.model import KMeansModel, LinearModel, Model, NetworkModel
from elasticml.models.row_input import RowInput

N = 300
BINARY = {"name": "batch_gradient", "loss": "logistic"}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "carrier": rng.choice(["AA", "UA", "9E"], N),
            "tail": [f"N{i % 40}" for i in rng.integers(0, 1000, N)],
            "delay": rng.normal(size=N),
            "gate": rng.integers(0, 4, N),
            "when": pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 300, N), "D"),
            "late": rng.choice(["no", "yes"], N),
        }
    )
    table.loc[::7, "delay"] = np.nan
    table.loc[::11, "carrier"] = None
    return table


OPTIONS: dict[str, Any] = {
    "missing": "median",
    "missing_indicator": True,
    "max_categories": 10,
    "categorical": ["gate"],
}


@pytest.fixture(scope="module")
def folder(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    frame.to_csv(folder / "rows.csv", index=False)
    pq.write_table(
        pa.Table.from_pandas(frame, preserve_index=False),
        folder / "rows.parquet",
        row_group_size=70,
    )
    return folder


def trained(folder: Path, algorithm: dict[str, Any] = BINARY, **options: Any) -> Model:
    """A model of the table with random parameters."""
    source = survey_all(read_csv(str(folder / "rows.csv"), "late", **{**OPTIONS, **options}))
    facts = merge_summaries([source.read(b.index, None, 1)[1] for b in source.blocks()])
    rng = np.random.default_rng(1)
    arrays = {"coef": rng.normal(size=(1, facts.n_columns)), "intercept": np.array([0.3])}
    arrays["coef"][0, -5:] *= 1e-4  # days are large
    if algorithm["name"] == "async_sgd":
        arrays = {"centres": rng.normal(size=(3, facts.n_columns))}
    model = model_of_job(algorithm, facts, arrays)
    assert model is not None
    return model


class Exporting:
    """A frame of another library, which exports Arrow."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_every_container_gives_the_same_predictions(frame: pd.DataFrame, folder: Path) -> None:
    dd = pytest.importorskip("dask.dataframe")
    model = trained(folder)
    want = model.decision_function(frame)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    lazy = dd.from_pandas(frame, npartitions=4)
    for X in (
        frame.drop(columns="late"),
        frame[frame.columns[::-1]].astype({"carrier": "category"}),
        table,
        Exporting(table),
        frame.drop(columns="late").to_numpy(object),
        str(folder / "rows.csv"),
        folder / "rows.parquet",
        lazy,
    ):
        np.testing.assert_array_equal(np.asarray(model.decision_function(X)), want)
    margins = [float(model.decision_function(frame.iloc[[i]])[0]) for i in range(0, N, 37)]
    assert margins == want[::37].tolist()
    predicted = model.predict(lazy).compute()
    pd.testing.assert_index_equal(predicted.index, frame.index)
    assert predicted.tolist() == model.predict(frame).tolist()
    assert set(model.predict(frame)) == {"no", "yes"}
    np.testing.assert_array_equal(model.predict_proba(lazy).compute(), model.predict_proba(frame))
    assert (
        model.score(frame) == model.score(folder / "rows.csv") == model.score(frame, frame["late"])
    )


def test_a_saved_model_predicts_the_same(frame: pd.DataFrame, folder: Path) -> None:
    model = trained(folder)
    model.save(folder / "model.npz")
    again = load_model(folder)  # a run's directory
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert repr(again) == repr(model)
    assert "classes no / yes" in repr(model)
    assert again.classes_.tolist() == ["no", "yes"]
    assert (
        pickle.loads(pickle.dumps(model)).predict(frame).tolist() == model.predict(frame).tolist()
    )


def test_files_that_are_no_models_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_model(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no model")
    with pytest.raises(DataError, match="not a model file, or is damaged"):
        load_model(tmp_path / "text.npz")
    np.savez(tmp_path / "arrays.npz", coef=[[1.0]], intercept=[0.5])
    with pytest.raises(DataError, match="arrays coef, intercept and no header"):
        load_model(tmp_path / "arrays.npz")
    np.savez(tmp_path / "objects.npz", coef=np.array([None]))
    with pytest.raises(DataError, match="not a model file"):
        load_model(tmp_path / "objects.npz")
    arrays = trained(folder).file_arrays()
    header = json.loads(bytes(arrays[HEADER]))
    for change, message in (
        ({"version": 2, "package": "9.1"}, "version 2, wanted 1; read it with elasticml 9.1"),
        ({"kind": "forest"}, "kind 'forest', wanted linear, kmeans or network"),
        ({"rows": {}}, "damaged header"),
        ({"rows": header["rows"] | {"n_columns": 3}}, "its header 3; save the model again"),
        ({"format": "another"}, "a file of format 'another', wanted 'elasticml model'"),
        ({"classes": ["no"]}, "damaged header .*classes of shape .* for 1 rows of coef"),
        ({"classes": 2}, "damaged header .*classes of shape"),
        (with_first_column(header, kind="forest"), "columns.0.kind: got 'forest'"),
        (with_first_column(header, kind="hash", buckets=-3), "columns.0.buckets: got -3"),
    ):
        text = json.dumps(header | change).encode()
        np.savez(tmp_path / "m.npz", **{**arrays, HEADER: np.frombuffer(text, np.uint8)})
        with pytest.raises(DataError, match=message):
            load_model(tmp_path / "m.npz")
    # More encoded columns than the model has are cut; the names of all would fill the memory.
    many = json.dumps(header | with_first_column(header, kind="hash", buckets=10**12)).encode()
    np.savez(tmp_path / "m.npz", **{**arrays, HEADER: np.frombuffer(many, np.uint8)})
    assert load_model(tmp_path / "m.npz").get_feature_names_out()[-1] == "carrier#20"
    for change, message in (
        ({"intercept": np.zeros(9)}, "1 rows of coef and 9 intercepts"),
        ({"coef": arrays["coef"][None]}, "coef has shape"),
        ({"coef": arrays["coef"].astype(str)}, "coef has shape"),
    ):
        np.savez(tmp_path / "m.npz", **{**arrays, **change})
        with pytest.raises(DataError, match=message):
            load_model(tmp_path / "m.npz")


def with_first_column(header: dict[str, Any], **change: Any) -> dict[str, Any]:
    rows = header["rows"]
    first, *others = rows["encoder"]["columns"]
    encoder = rows["encoder"] | {"columns": [first | change, *others]}
    return {"rows": rows | {"encoder": encoder}}


def test_a_model_names_its_columns_as_scikit_learn_does(folder: Path) -> None:
    model = trained(folder)
    names = model.get_feature_names_out()
    assert model.feature_names_in_.tolist() == ["carrier", "tail", "delay", "gate", "when"]
    assert names.shape == model.coef_.shape[1:]
    assert names[:2].tolist() == ["carrier=9E", "carrier=AA"]
    numbers = LinearModel({"coef": np.ones((1, 2)), "intercept": np.zeros(1)}, None)
    assert not hasattr(numbers, "feature_names_in_")
    assert numbers.get_feature_names_out().tolist() == ["x0", "x1"]


def test_the_repr_of_a_model_cuts_categories_of_long_text() -> None:
    rows = RowInput(n_columns=1, names=("plot=" + "long ago " * 100,))
    told = repr(LinearModel({"coef": np.ones((1, 1)), "intercept": np.zeros(1)}, None, rows=rows))
    assert "largest: plot=long ago long ago long ago long ag… +1" in told


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.array([[0.0, np.nan]]), "X has 1 values that are NaN or infinite"),
        (scipy.sparse.csr_array([[0.0, np.inf]]), "X has 1 values that are NaN or infinite"),
        (np.array([["a", "b"]]), "X holds something else than numbers"),
        (pd.Series([1.0, 2.0]), "cannot be read as a table|wanted rows and columns"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "cannot be read as a table"),
    ],
)
def test_rows_that_are_no_numbers_have_no_prediction(X: Any, message: str) -> None:
    model = LinearModel({"coef": np.ones((1, 2)), "intercept": np.zeros(1)}, [0, 1])
    with pytest.raises(DataError, match=message):
        model.predict(X)
    assert model.predict(np.full((1, 2), 1e308)).tolist() == [1]  # the sum is infinite


def test_a_frame_of_pandas_has_the_column_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 1]}).to_csv(path)  # the index has no name
    source = survey_all(read_csv(str(path), "y", missing="mean"))
    facts = merge_summaries([source.read(0, None, 1)[1]])
    arrays = {"coef": np.array([[1.0, -1.0]]), "intercept": np.zeros(1)}
    model = model_of_job(BINARY, facts, arrays)
    assert model is not None
    assert model.feature_names_in_.tolist() == ["", "a"]
    assert model.predict(pd.read_csv(path)).tolist() == model.predict(path).tolist()


@pytest.mark.parametrize("key", ["model", "loss"])
def test_a_file_of_a_network_runs_no_code_that_it_names(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with the network ``os:system`` ran a command when it predicted."""
    monkeypatch.syspath_prepend(tmp_path)
    ran = tmp_path / "ran"
    (tmp_path / "planted_code.py").write_text(f"open({str(ran)!r}, 'w').close()\nnet = print\n")
    np.save(tmp_path / "rows.npy", np.zeros((2, 4)))
    facts = merge_summaries([em.from_arrays(np.zeros((2, 4)), [0, 1]).read(0, None, 1)[1]])
    section = {"name": "local_sgd", key: "planted_code:net"}
    path, out = tmp_path / "model.npz", tmp_path / "out.csv"
    NetworkModel({"weight": np.zeros(3)}, section, facts).save(path)
    refused = "made by planted_code:net, which is code that the file names; if you trust it: "
    for trust in ((), "planted_code:other", [json.dumps]):
        with pytest.raises(ConfigError, match=refused):
            load_model(path, trust=trust)
    of_run = read_model(str(path), section)[0]
    assert isinstance(of_run, NetworkModel)
    for use in (of_run.predict, of_run.decision_function, lambda _: of_run.module):
        with pytest.raises(ConfigError, match=refused):
            use(np.zeros((1, facts.n_columns)))
    done = CliRunner().invoke(predict, [str(path), str(tmp_path / "rows.npy"), "--out", str(out)])
    assert isinstance(done.exception, ConfigError)
    assert "--trust planted_code:net" in done.exception.message
    assert not ran.exists()
    load_model(path, trust="planted_code:net")
    load_model(path, trust=[json.dumps, "planted_code:net"])
    assert not ran.exists()  # not before it predicts
    arrays = dict(np.load(path))
    header = json.loads(bytes(arrays[HEADER]))
    for change in ({"vocabularies": ["a"]}, {"encoder": [1]}, {"encoder": {"classes": 3}}):
        header["settings"]["facts"] = facts.to_json() | change
        arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        np.savez(path, **arrays)
        with pytest.raises(DataError, match="damaged header"):
            load_model(path, trust="planted_code:net")


def test_centres_measure_distances() -> None:
    centres = KMeansModel({"centres": np.array([[0.0, 0.0], [3.0, 4.0]])})
    assert centres.transform(scipy.sparse.csr_array([[3.0, 4.0]])).tolist() == [[5, 0]]
    assert centres.predict([[1.0, 0.0]]).tolist() == [0]
    assert centres.score([[0.0, 1.0]]) == -1.0


def test_unknown_values_and_missing_and_extra_columns_follow_the_settings(
    frame: pd.DataFrame, folder: Path
) -> None:
    model = trained(folder)
    some = frame.drop(columns="late").head(2).assign(gate=[9, 9], more=1)
    model.predict(some)
    with pytest.raises(DataError, match="X lacks column 'delay', wanted 'carrier', 'tail'"):
        model.predict(frame.drop(columns="delay"))
    strict = trained(
        folder, unknown="error", extra_columns="error", missing_columns="fill", max_categories=50
    )
    strict.predict(frame.drop(columns="delay"))
    with pytest.raises(DataError, match="X has column 'more', which training did not have"):
        strict.predict(some)
    with pytest.raises(DataError, match=r"column 'gate': value is 9, wanted one that training saw"):
        strict.predict(some.drop(columns="more"))
    with pytest.raises(DataError, match=r"wanted \d+ columns \(5 before encoding\)"):
        model.predict(np.ones((2, 3)))
    with pytest.raises(ConfigError, match="loss is hinge, which has no probabilities"):
        trained(folder, {"name": "cocoa"}).predict_proba(frame)


@pytest.mark.parametrize("algorithm", [BINARY, {"name": "cocoa", "loss": "hinge"}])
def test_a_pipeline_of_scikit_learn_predicts_the_same(
    frame: pd.DataFrame, folder: Path, algorithm: dict[str, Any]
) -> None:
    model = trained(folder, algorithm)
    pipeline = pickle.loads(pickle.dumps(model.to_sklearn()))
    X = frame.drop(columns="late")
    np.testing.assert_allclose(
        pipeline.decision_function(X), model.decision_function(X), rtol=0, atol=1e-10
    )
    assert pipeline.predict(X).tolist() == model.predict(X).tolist()
    assert pipeline.score(X, frame["late"]) == model.score(frame)


@pytest.mark.parametrize("kind", ["logistic", "kmeans"])
@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_pipeline_takes_none_and_nan_for_missing(
    frame: pd.DataFrame, folder: Path, kind: str, missing: Any
) -> None:
    algorithm = {"name": "async_sgd", "problem": "kmeans", "k": 3}
    model = trained(folder, BINARY if kind == "logistic" else algorithm)
    X = frame.drop(columns="late")
    for name in ("carrier", "tail"):
        X[name] = pd.Series([missing if v is None or v != v else v for v in X[name]], dtype=object)
    assert X["carrier"].isna().any()
    assert model.to_sklearn().predict(X).tolist() == model.predict(frame).tolist()


def test_scores_count_the_weights_in_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"x": rng.normal(size=60), "late": rng.integers(0, 2, 60)})
    table["w"] = rng.uniform(0.1, 4.0, 60)
    table.to_csv(tmp_path / "a.csv", index=False)
    source = read_csv(str(tmp_path / "a.csv"), "late", weight="w")
    estimator = em.LogisticRegression().fit(source)
    model = estimator.to_model()
    right = model.predict(table) == table["late"]
    expected = pytest.approx(np.average(right, weights=table["w"]), rel=1e-12)
    assert expected != right.mean()
    for data in (tmp_path / "a.csv", table, source):
        assert model.score(data) == expected
    assert estimator.score(source) == expected
    assert model.score(table, table["late"]) == right.mean()


@pytest.mark.parametrize("loss", ["poisson", "gamma", "tweedie"])
def test_models_with_the_link_log_score_and_export_as_scikit_learns(
    frame: pd.DataFrame, folder: Path, tmp_path: Path, loss: str
) -> None:
    power = {"poisson": 1.0, "gamma": 2.0, "tweedie": 1.7}[loss]
    section = {"name": "batch_gradient", "loss": loss}
    model = trained(folder, section | ({"power": power} if loss == "tweedie" else {}))
    y = np.random.default_rng(2).gamma(2.0, size=N)
    expected = d2_tweedie_score(y, model.predict(frame), power=power)
    X = frame.drop(columns="late")
    assert model.score(X, y) == pytest.approx(expected, rel=1e-12)
    assert model.to_sklearn().score(X, y) == pytest.approx(expected, rel=1e-9)
    model.save(tmp_path / "m.npz")
    assert load_model(tmp_path / "m.npz").score(X, y) == model.score(X, y)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.to_onnx().SerializeToString())
    (values,) = session.run(None, onnx_inputs(frame))
    np.testing.assert_allclose(values[:, 0], model.predict(frame), rtol=1e-10)


def test_pipelines_of_regression_and_centres(frame: pd.DataFrame, folder: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    line = LinearModel({"coef": np.array([[1.0, 2.0, -1.0]]), "intercept": np.ones(1)}, None)
    np.testing.assert_allclose(line.to_sklearn().predict(X), line.predict(X), atol=1e-12)
    centres = trained(folder, {"name": "async_sgd", "problem": "kmeans", "k": 3})
    pipeline = centres.to_sklearn()
    np.testing.assert_allclose(pipeline.transform(frame), centres.transform(frame), rtol=1e-6)
    assert pipeline.predict(frame).tolist() == centres.predict(frame).tolist()


def onnx_inputs(frame: pd.DataFrame) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for name in ("carrier", "tail", "gate"):
        values = ["" if pd.isna(value) else str(value) for value in frame[name]]
        inputs[name] = np.array(values, dtype=object)[:, None]
    inputs["delay"] = frame[["delay"]].to_numpy()
    days = (frame[["when"]] - pd.Timestamp("1970-01-01")) / pd.Timedelta(1, "D")
    inputs["when"] = days.to_numpy()
    return inputs


@pytest.mark.parametrize("kind", ["logistic", "hinge", "kmeans"])
def test_onnx_predicts_the_same(frame: pd.DataFrame, folder: Path, kind: str) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    algorithm = {
        "logistic": BINARY,
        "hinge": {"name": "cocoa", "loss": "hinge"},
        "kmeans": {"name": "async_sgd", "problem": "kmeans", "k": 3},
    }[kind]
    model = trained(folder, algorithm)
    session = runtime.InferenceSession(model.to_onnx().SerializeToString())
    first, second = session.run(None, onnx_inputs(frame))
    assert first.tolist() == model.predict(frame).tolist()
    if kind == "logistic":
        np.testing.assert_allclose(second, model.predict_proba(frame), atol=1e-10)
    elif kind == "hinge":
        np.testing.assert_allclose(second[:, 1], model.decision_function(frame), atol=1e-8)
    else:
        np.testing.assert_allclose(second, model.transform(frame), atol=1e-8)


@pytest.mark.parametrize("one_against_rest", [False, True])
def test_onnx_predicts_several_classes(one_against_rest: bool) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(2)
    arrays = {"coef": rng.normal(size=(3, 4)), "intercept": rng.normal(size=3)}
    classes, X = ["a", "b", "c"], rng.normal(size=(30, 4))
    model = LinearModel(arrays, classes, loss="logistic", one_against_rest=one_against_rest)
    session = runtime.InferenceSession(model.to_onnx().SerializeToString())
    labels, probabilities = session.run(None, {"X": X})
    assert labels.tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(probabilities, model.predict_proba(X), atol=1e-12)


def run(*arguments: str) -> None:
    done = CliRunner().invoke(predict, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_the_command_predicts_files(frame: pd.DataFrame, folder: Path, name: str) -> None:
    model = trained(folder)
    model.save(folder / "m.npz")
    out = folder / f"{name}.out.parquet"
    run(str(folder / "m.npz"), str(folder / name), "--out", str(out))
    table = pq.read_table(out).to_pandas()
    assert table["prediction"].tolist() == model.predict(frame).tolist()
    assert table["probability_yes"].tolist() == model.predict_proba(frame)[:, 1].tolist()
    written = folder / f"{name}.out.csv"
    run(str(folder / "m.npz"), str(folder / name), "--out", str(written), "--keep", "tail")
    assert pd.read_csv(written)["tail"].tolist() == frame["tail"].tolist()
    assert not list(folder.glob(".*.part"))
    for file in (folder / name, folder / "m.npz"):  # what is read is not replaced
        linked = folder / f"{file.name}.linked.csv"
        linked.hardlink_to(file)
        done = CliRunner().invoke(
            predict, [str(folder / "m.npz"), str(folder / name), "--out", str(linked)]
        )
        linked.unlink()
        assert "is the file to read; give another name" in done.output


def test_rows_of_a_remote_array_are_predicted_and_a_missing_one_is_named() -> None:
    import fsspec

    model = em.Ridge().fit(np.eye(3), [1.0, 2.0, 3.0]).to_model()
    with fsspec.open("memory://models/rows.npy", "wb") as file:
        np.save(file, np.eye(3))
    assert model.predict("memory://models/rows.npy").tolist() == model.predict(np.eye(3)).tolist()
    for missing in ("memory://models/none.npy", "none.npy"):
        with pytest.raises(ConfigError, match=f"^data file {missing} does not exist"):
            model.predict(missing)
