"""MLflow, TensorBoard and Weights & Biases: the files of a real run, read back."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import elasticml as em
from elasticml.callbacks import numbers_in
from elasticml.cli.jobs import jobs

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROUNDS = 6


def followed(client: Client, callbacks, **settings) -> em.Result:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    data = em.from_arrays(X, (X[:, 0] + 0.3 * rng.normal(size=200) > 0).astype(float))
    job = em.Job(
        em.BatchGradient(l2=1e-2, intercept=False, tolerance=0.0, scale="none"),
        data,
        name="toy",
        stop=em.Stop(rounds=ROUNDS),
    )
    return job.run(client, callbacks=callbacks, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trackers")


@pytest.fixture(scope="module")
def tracked(folder: Path):
    """The result of one job, and the callbacks that followed it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    patch.setenv("WANDB_SILENT", "true")
    patch.setenv("WANDB_ERROR_REPORTING", "false")
    mlflow = em.callbacks.MLflowCallback(tracking_uri=(folder / "mlflow").as_uri())
    board = em.callbacks.TensorBoardCallback(folder / "board")
    wandb = em.callbacks.WandbCallback(project="toys", mode="offline", dir=str(folder))
    rows: list[dict] = []
    callbacks = [mlflow, board, wandb, rows.append]
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        result = followed(client, callbacks, run_dir=folder / "run")
        options = ["--scheduler", cluster.scheduler_address]
        listed = [CliRunner().invoke(jobs, [*options, *more]).output for more in ([], ["--json"])]
    patch.undo()
    assert not [note for note in result.summary["notes"] if note.startswith("callback")]
    assert [row["round"] for row in rows] == list(range(ROUNDS))
    return result, mlflow, listed


def test_the_jobs_of_the_scheduler_are_listed(tracked):
    result, _, (text, line) = tracked
    (job,) = json.loads(line)
    assert job["job"] == result.summary["job"]
    assert (job["algorithm"], job["state"]) == ("batch_gradient", "done")
    assert text.split()[:3] == ["job", "algorithm", "state"]
    assert result.summary["job"] in text


def test_mlflow_has_settings_metrics_and_files(tracked, folder: Path):
    import mlflow

    result, callback, _ = tracked
    client = mlflow.MlflowClient(callback.tracking_uri)
    run = client.get_run(callback.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "toy")
    assert run.data.params["algorithm.l2"] == "0.01"
    told = client.get_metric_history(callback.run_id, "objective")
    expected = {row["round"]: row["objective"] for row in result.history}
    assert {one.step: one.value for one in told} == pytest.approx(expected)
    files = {one.path for one in client.list_artifacts(callback.run_id)}
    assert {"job.yaml", "history.csv", "model.npz", "report.html"} <= files


def test_tensorboard_has_scalars_and_the_job(tracked, folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result, _, _ = tracked
    events = EventAccumulator(str(folder / "board"))
    events.Reload()
    for name, value in numbers_in(result.history[-1]).items():
        last = events.Scalars(name)[-1]
        assert (last.step, last.value) == (ROUNDS, pytest.approx(value))
    assert [one.step for one in events.Scalars("objective")] == list(range(ROUNDS + 1))
    (text,) = events.Tensors("job")
    assert b"batch_gradient" in text.tensor_proto.string_val[0]


def wandb_records(path: Path):
    """Yield the records of an offline run: LevelDB's log format after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # the end of a block
            at += 2**15 - at % 2**15
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            return
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_weights_and_biases_has_the_history_offline(tracked, folder: Path):
    result, _, _ = tracked
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    objectives = []
    for record in wandb_records(path):
        for item in record.history.item:
            if [item.key, *item.nested_key][-1] == "objective":
                objectives.append(float(item.value_json))
    assert objectives == pytest.approx([row["objective"] for row in result.history])
