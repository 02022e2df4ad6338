"""Models are functions of rows: any container, one file, the same predictions everywhere."""

from __future__ import annotations

import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from click.testing import CliRunner
from sklearn.metrics import accuracy_score, d2_tweedie_score

import elasticml as em
from elasticml.cli.predict import predict
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import survey_all
from elasticml.errors import ConfigError, DataError
from elasticml.models.file_format import HEADER
from elasticml.models.loading import load_model, model_of_job, read_model
from elasticml.models.model import KMeansModel, LinearModel, Model, NetworkModel
from elasticml.models.row_input import Batch, RowInput

N = 300
BINARY = {"name": "batch_gradient", "loss": "logistic"}
#: Algorithms whose models are functions of the table below.
KINDS: dict[str, dict[str, Any]] = {
    "logistic": BINARY,
    "hinge": {"name": "cocoa", "loss": "hinge"},
    "poisson": {"name": "batch_gradient", "loss": "poisson"},
    "gamma": {"name": "batch_gradient", "loss": "gamma"},
    "tweedie": {"name": "batch_gradient", "loss": "tweedie", "power": 1.7},
    "kmeans": {"name": "async_sgd", "problem": "kmeans", "k": 3},
}
POWERS = {"poisson": 1.0, "gamma": 2.0, "tweedie": 1.7}
OPTIONS: dict[str, Any] = {
    "missing": "median",
    "missing_indicator": True,
    "max_categories": 10,
    "categorical": ["gate"],
}


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


@pytest.fixture(scope="module")
def folder(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    frame.to_csv(folder / "rows.csv", index=False)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, folder / "rows.parquet", row_group_size=70)
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


# --- a contract of models: rows in any form, saved, pickled, exported -----------------------------


METHODS = {
    "logistic": ("predict", "decision_function", "predict_proba"),
    "hinge": ("predict", "decision_function"),
    "kmeans": ("predict", "transform"),
}


def outputs(model: Any, kind: str, X: Any) -> dict[str, Any]:
    """Everything that a model says of rows."""
    return {name: getattr(model, name)(X) for name in METHODS.get(kind, ("predict",))}


@pytest.mark.parametrize("kind", KINDS)
def test_every_container_gives_the_same_predictions(frame, folder, kind) -> None:
    dd = pytest.importorskip("dask.dataframe")
    model: Any = trained(folder, KINDS[kind])
    X, table = frame.drop(columns="late"), pa.Table.from_pandas(frame, preserve_index=False)
    wanted = outputs(model, kind, X)
    lazy = dd.from_pandas(frame, npartitions=4)
    for rows in (
        frame[frame.columns[::-1]].astype({"carrier": "category"}),
        table,
        Exporting(table),
        X.to_numpy(object),
        str(folder / "rows.csv"),
        folder / "rows.parquet",
        lazy,
    ):
        for name, values in outputs(model, kind, rows).items():
            np.testing.assert_array_equal(np.asarray(values), wanted[name])
    one_by_one = [model.predict(X.iloc[[i]])[0] for i in range(0, N, 37)]
    assert one_by_one == wanted["predict"][::37].tolist()
    pd.testing.assert_index_equal(model.predict(lazy).compute().index, frame.index)


def onnx_outputs(model: Any, inputs: dict[str, Any]) -> list[Any]:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(model.to_onnx().SerializeToString()).run(None, inputs)


def onnx_inputs(frame: pd.DataFrame) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for name in ("carrier", "tail", "gate"):
        values = ["" if pd.isna(value) else str(value) for value in frame[name]]
        inputs[name] = np.array(values, dtype=object)[:, None]
    inputs["delay"] = frame[["delay"]].to_numpy()
    days = (frame[["when"]] - pd.Timestamp("1970-01-01")) / pd.Timedelta(1, "D")
    inputs["when"] = days.to_numpy()
    return inputs


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_a_pickled_and_an_exported_model_say_the_same(
    frame, folder, tmp_path, kind
) -> None:
    model: Any = trained(folder, KINDS[kind])
    X = frame.drop(columns="late")
    wanted = outputs(model, kind, X)
    model.save(tmp_path / "model.npz")
    saved = load_model(tmp_path)  # a run's directory
    assert repr(saved) == repr(model)
    for again in (saved, pickle.loads(pickle.dumps(model))):
        for name, values in outputs(again, kind, X).items():
            np.testing.assert_array_equal(values, wanted[name])
    pipeline = pickle.loads(pickle.dumps(model.to_sklearn()))
    for missing in (None, np.nan):
        for name in ("carrier", "tail"):
            values = [missing if pd.isna(value) else value for value in frame[name]]
            X[name] = pd.Series(values, dtype=object)
        for name, values in outputs(pipeline, kind, X).items():
            if values.dtype.kind in "OU":
                assert values.tolist() == wanted[name].tolist()
            else:
                np.testing.assert_allclose(values, wanted[name], rtol=1e-6, atol=1e-9)
    first, *others = onnx_outputs(model, onnx_inputs(frame))
    if kind in POWERS:
        np.testing.assert_allclose(first[:, 0], wanted["predict"], rtol=1e-10)
        return
    assert first.tolist() == wanted["predict"].tolist()
    other = others[0][:, 1] if kind == "hinge" else others[0]
    np.testing.assert_allclose(other, [*wanted.values()][-1], atol=1e-8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kmeans"])
def test_scores_are_scikit_learns(frame, folder, kind) -> None:
    model: Any = trained(folder, KINDS[kind])
    X = frame.drop(columns="late")
    y, weights = frame["late"], np.arange(N) % 3
    if kind in POWERS:
        y = np.random.default_rng(2).gamma(2.0, size=N)
        wanted = d2_tweedie_score(y, model.predict(X), power=POWERS[kind])
    else:
        wanted = accuracy_score(y, model.predict(X))
        assert model.score(frame) == model.score(folder / "rows.csv") == wanted
        by_weight = accuracy_score(y, model.predict(X), sample_weight=weights)
        assert model.score(X, y, weights) == pytest.approx(by_weight)
    assert model.score(X, y) == pytest.approx(wanted, rel=1e-12)
    assert model.to_sklearn().score(X, y) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("one_against_rest", [False, True])
def test_models_of_numbers_are_exported_too(one_against_rest: bool) -> None:
    rng = np.random.default_rng(2)
    X, arrays = (
        rng.normal(size=(30, 4)),
        {"coef": rng.normal(size=(3, 4)), "intercept": np.eye(3)[0]},
    )
    model = LinearModel(arrays, list("abc"), loss="logistic", one_against_rest=one_against_rest)
    labels, probabilities = onnx_outputs(model, {"X": X})
    assert labels.tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(probabilities, model.predict_proba(X), atol=1e-12)
    line = LinearModel({"coef": arrays["coef"][:1], "intercept": np.ones(1)}, None)
    np.testing.assert_allclose(line.to_sklearn().predict(X), line.predict(X), atol=1e-12)
    assert line.outputs(X)["prediction"].tolist() == line.predict(X).tolist()


def test_the_command_predicts_files(frame, folder, tmp_path) -> None:
    model: Any = trained(folder)
    model.save(tmp_path / "m.npz")
    before = (tmp_path / "m.npz").read_bytes()

    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(predict, [str(tmp_path / "m.npz"), *map(str, arguments)])

    for name in ("rows.csv", "rows.parquet"):
        assert run(folder / name, "--out", tmp_path / "out.parquet").exit_code == 0
        table = pq.read_table(tmp_path / "out.parquet").to_pandas()
        assert table["prediction"].tolist() == model.predict(frame).tolist()
        assert table["probability_yes"].tolist() == model.predict_proba(frame)[:, 1].tolist()
        assert run(folder / name, "--out", tmp_path / "out.csv", "--keep", "tail").exit_code == 0
        assert pd.read_csv(tmp_path / "out.csv")["tail"].tolist() == frame["tail"].tolist()
    assert not list(tmp_path.glob(".*.part"))
    for number, file in enumerate((folder / "rows.csv", tmp_path / "m.npz")):
        linked = tmp_path / f"{number}.linked.csv"  # what is read is not replaced
        linked.hardlink_to(file)
        done = run(folder / "rows.csv", "--out", linked)
        assert "is the file to read; give another name" in done.output
    assert (tmp_path / "m.npz").read_bytes() == before


# --- names and rows -------------------------------------------------------------------------------


def test_a_model_names_its_columns_as_scikit_learn_does(folder, tmp_path) -> None:
    model: Any = trained(folder)
    names = model.get_feature_names_out()
    assert model.feature_names_in_.tolist() == ["carrier", "tail", "delay", "gate", "when"]
    assert names.shape == model.coef_.shape[1:]
    assert names[:2].tolist() == ["carrier=9E", "carrier=AA"]
    assert "classes no / yes" in repr(model)
    assert model.classes_.tolist() == ["no", "yes"]
    numbers = LinearModel({"coef": np.ones((1, 2)), "intercept": np.zeros(1)}, None)
    assert not hasattr(numbers, "feature_names_in_")
    assert numbers.get_feature_names_out().tolist() == ["x0", "x1"]
    rows = RowInput(n_columns=1, names=("plot=" + "long ago " * 100,))
    told = repr(LinearModel({"coef": np.ones((1, 1)), "intercept": np.zeros(1)}, None, rows=rows))
    assert "largest: plot=long ago long ago long ago long ag… +1" in told
    # pandas names the column of an index without a name otherwise than a file.
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 1]}).to_csv(path)
    source = survey_all(read_csv(str(path), "y", missing="mean"))
    arrays = {"coef": np.array([[1.0, -1.0]]), "intercept": np.zeros(1)}
    other: Any = model_of_job(BINARY, merge_summaries([source.read(0, None, 1)[1]]), arrays)
    assert other.feature_names_in_.tolist() == ["", "a"]
    assert other.predict(pd.read_csv(path)).tolist() == other.predict(path).tolist()


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.array([[0.0, np.nan]]), "X has 1 values that are NaN or infinite"),
        (scipy.sparse.csr_array([[0.0, np.inf]]), "X has 1 values that are NaN or infinite"),
        (np.array([["a", "b"]]), "X holds something else than numbers"),
        (pd.Series([1.0, 2.0]), "cannot be read as a table|wanted rows and columns"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "cannot be read as a table"),
        ("none.npy", "^data file none.npy does not exist"),
        ("memory://models/none.npy", "^data file memory://models/none.npy does not exist"),
    ],
)
def test_rows_that_are_no_numbers_have_no_prediction(X: Any, message: str) -> None:
    model = LinearModel({"coef": np.ones((1, 2)), "intercept": np.zeros(1)}, [0, 1])
    with pytest.raises((ConfigError, DataError), match=message):
        model.predict(X)
    with fsspec.open("memory://models/rows.npy", "wb") as file:
        np.save(file, np.full((1, 2), 1e308))  # the sum is infinite
    assert model.predict("memory://models/rows.npy").tolist() == [1]


def test_unknown_values_and_missing_and_extra_columns_follow_the_settings(frame, folder) -> None:
    model: Any = trained(folder)
    some = frame.drop(columns="late").head(2).assign(gate=[9, 9], more=1)
    model.predict(some)
    strict = trained(
        folder, unknown="error", extra_columns="error", missing_columns="fill", max_categories=50
    )
    strict.predict(frame.drop(columns="delay"))
    hinge: Any = trained(folder, KINDS["hinge"])
    for call, words in (
        (lambda: model.predict(frame.drop(columns="delay")), "X lacks column 'delay', wanted 'car"),
        (lambda: model.predict(np.ones((2, 3))), r"wanted \d+ columns \(5 before encoding\)"),
        (lambda: strict.predict(some), "X has column 'more', which training did not have"),
        (
            lambda: strict.predict(some.drop(columns="more")),
            "column 'gate': value is 9, wanted one",
        ),
        (lambda: hinge.predict_proba(frame), "loss is hinge, which has no probabilities"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            call()


# --- files ----------------------------------------------------------------------------------------


def with_first_column(header: dict[str, Any], **change: Any) -> dict[str, Any]:
    rows = header["rows"]
    first, *others = rows["encoder"]["columns"]
    encoder = rows["encoder"] | {"columns": [first | change, *others]}
    return {"rows": rows | {"encoder": encoder}}


def test_files_that_are_no_models_are_refused(folder, tmp_path) -> None:
    path = tmp_path / "m.npz"
    arrays = trained(folder).file_arrays()
    header = json.loads(bytes(arrays[HEADER]))

    def write(**changes: Any) -> None:
        np.savez(path, **{**arrays, **changes})

    def write_header(change: dict[str, Any]) -> None:
        write(**{HEADER: np.frombuffer(json.dumps(header | change).encode(), np.uint8)})

    with pytest.raises(ConfigError, match="does not exist"):
        load_model(path)
    for damage, message in (
        (lambda: path.write_text("no model"), "not a model file, or is damaged"),
        (lambda: np.savez(path, coef=np.array([None])), "not a model file"),
        (lambda: np.savez(path, coef=[[1.0]], intercept=[0.5]), "coef, intercept and no header"),
        (lambda: write_header({"version": 2, "package": "9.1"}), "2, wanted 1; read it with elast"),
        (lambda: write_header({"kind": "forest"}), "'forest', wanted linear, kmeans or network"),
        (lambda: write_header({"rows": {}}), "damaged header"),
        (lambda: write_header({"rows": header["rows"] | {"n_columns": 3}}), "header 3; save the m"),
        (lambda: write_header({"format": "another"}), "'another', wanted 'elasticml model'"),
        (lambda: write_header({"classes": ["no"]}), "header .*classes of shape .* for 1 rows of c"),
        (lambda: write_header({"classes": 2}), "damaged header .*classes of shape"),
        (lambda: write_header(with_first_column(header, kind="forest")), "kind: got 'forest'"),
        (lambda: write_header(with_first_column(header, kind="hash", buckets=-3)), "got -3"),
        (lambda: write(intercept=np.zeros(9)), "1 rows of coef and 9 intercepts"),
        (lambda: write(coef=arrays["coef"][None]), "coef has shape"),
        (lambda: write(coef=arrays["coef"].astype(str)), "coef has shape"),
    ):
        damage()
        with pytest.raises(DataError, match=message):
            load_model(path)
    # More encoded columns than the model has are cut; the names of all would fill the memory.
    write_header(with_first_column(header, kind="hash", buckets=10**12))
    assert load_model(path).get_feature_names_out()[-1] == "carrier#20"


def test_centres_measure_distances() -> None:
    centres = KMeansModel({"centres": np.array([[0.0, 0.0], [3.0, 4.0]])})
    assert centres.transform(scipy.sparse.csr_array([[3.0, 4.0]])).tolist() == [[5, 0]]
    assert centres.predict([[1.0, 0.0]]).tolist() == [0]
    assert centres.score([[0.0, 1.0]]) == -1.0


def test_a_networks_arrays_are_written_as_safetensors_in_float32(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    facts = merge_summaries([em.from_arrays(np.zeros((2, 4)), [0, 1]).read(0, None, 1)[1]])
    arrays = {"weight": np.arange(6.0).reshape(2, 3).T, "bias": np.array([1 / 3])}
    NetworkModel(arrays, {"name": "local_sgd"}, facts).to_safetensors(tmp_path / "net.safetensors")
    read = safetensors.load_file(tmp_path / "net.safetensors")
    assert {name: (a.dtype, a.tolist()) for name, a in read.items()} == {
        name: (np.float32, a.astype(np.float32).tolist()) for name, a in arrays.items()
    }


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
    header["settings"]["facts"] = facts.to_json()
    header["rows"]["n_columns"] = -1
    arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=f"{path.name} does not fit together"):
        load_model(path, trust="planted_code:net")


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


def test_a_score_holds_the_rows_of_one_batch_at_a_time() -> None:
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    model = em.LogisticRegression().fit(X, y).to_model()
    held: list[weakref.ref[Any]] = []

    class Batches(RowInput):
        def batches(self, *_: Any, **__: Any) -> Any:
            for _ in range(5):
                rows = X.copy()
                held.append(weakref.ref(rows))
                yield Batch(X=rows, labels=y.astype(float))
                del rows
                assert sum(each() is not None for each in held) <= 1  # the caller's last one

    model.rows = Batches(n_columns=3)
    assert model.score("rows.npz") == model.score(X, y)
    assert len(held) == 5
