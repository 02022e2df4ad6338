"""``elasticml run`` and handles on real workers: kills, interrupts, dying clients."""

from __future__ import annotations

import json
import signal
import subprocess
import warnings
from collections.abc import Generator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from distributed import Client
from sklearn.exceptions import ConvergenceWarning

import elasticml as em
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.report.run_reader import read_run
from tests.run_command import WAIT_S, end_run, start_run
from tests.waiting import until

pytestmark = pytest.mark.cluster

JOB = {
    "name": "small",
    "data": {"format": "synthetic_splice", "rows": 600, "length": 30, "test": {"seed": 9}},
    "algorithm": {
        "name": "batch_gradient",
        "l2": 1e-3,
        "optimizer": "gd",
        "intercept": False,
        "tolerance": 0,
    },
    "cluster": {"workers": 3},
    "stop": {"rounds": 12},
}
ENDLESS = {**JOB, "stop": {"rounds": 1_000_000}}


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def start(folder: Path, job: dict, *options: str) -> subprocess.Popen[str]:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return start_run(folder, str(path), "--out", "run", *options)


def run(folder: Path, job: dict, *options: str) -> tuple[int, str, str]:
    return end_run(start(folder, job, *options))


def until_round(process: subprocess.Popen[str], folder: Path, number: int) -> list[psutil.Process]:
    """Wait until a round has ended; return all processes of the run."""
    story = folder / "run" / "story.jsonl"
    assert process.stderr is not None
    for _ in process.stderr:  # a line every few seconds: the wait has no timeout of its own
        if story.exists() and story.read_text().count('"RoundEnded"') > number:
            break
    return psutil.Process(process.pid).children(recursive=True)


def test_a_run_with_a_kill_and_a_return_leaves_everything_in_its_directory(tmp_path: Path) -> None:
    job = {
        **JOB,
        "faults": [{"round": 4, "lose": 1}, {"round": 8, "return": 1}],
        "evaluate": {"every": 4},
    }
    code, out, err = run(tmp_path, job, "--json")
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["rounds"], summary["lost"], summary["returned"]) == (12, 1, 1)
    assert summary["examples"] == 600
    assert set(summary["test"]) == {"accuracy", "roc_auc", "average_precision", "neg_log_loss"}
    seen = read_run(tmp_path / "run")
    assert seen.state == "finished"
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    scored = seen.history.column("test_accuracy")
    assert {8, 12} <= set(np.flatnonzero(np.isfinite(scored)).tolist()) <= {1, 4, 8, 12}
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert model["coef"].shape == (1, summary["features"])
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    again = yaml.safe_load((tmp_path / "run" / "job.yaml").read_text())
    assert (again["cluster"]["workers"], again["faults"][0]["lose"]) == (3, 1)


@pytest.mark.parametrize(
    "signal_number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_is_usable_and_nothing_is_left(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    process = start(tmp_path, ENDLESS)
    family = until_round(process, tmp_path, 2)
    process.send_signal(signal_number)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert "interrupted" in err.splitlines()[-1]
    seen = read_run(tmp_path / "run")
    assert seen.state == "cancelled"
    assert seen.history.n_rows > 2
    assert (tmp_path / "run" / "model.npz").exists()
    assert (tmp_path / "run" / "report.html").exists()
    assert psutil.wait_procs(family, timeout=WAIT_S)[1] == []


def test_a_job_outlives_its_client_and_another_attaches(client: Client) -> None:
    data = synthetic_splice(600, seed=0, length=30)
    job = em.Job(
        em.BatchGradient(intercept=False, tolerance=0.0, scale="none"),
        data,
        test=data,
        stop=em.Stop(rounds=8),
        name="mine",
    )
    with Client(client.scheduler.address, set_as_default=False) as first:
        job_id = job.start(first).job_id
    handle = em.Job.attach(client, job_id)
    events = [record["event"] for record in handle]
    result = handle.result()
    assert (events[0], events[-1], events.count("RoundEnded")) == ("JobStarted", "JobEnded", 8)
    assert handle.status().state == "done"
    assert result.summary["test"]["accuracy"] == result.summary["train"]["accuracy"]
    handle.forget()
    with pytest.raises(em.errors.ConfigError, match="no job"):
        em.Job.attach(client, job_id)


def test_a_cancelled_job_keeps_what_it_had_reached(client: Client) -> None:
    data = synthetic_splice(600, seed=0, length=30)
    slow = em.BatchGradient(optimizer="gd", intercept=False, tolerance=0.0, scale="none")
    handle = em.Job(slow, data, stop=em.Stop(rounds=1_000_000)).start(client)
    for record in handle:
        if record["event"] == "RoundEnded" and record["round"] == 3:
            handle.cancel()
    result = handle.result()
    assert handle.status().state == "cancelled"
    assert len(result.history) > 3
    assert result.model is not None


def test_only_a_job_that_misses_its_tolerance_warns(client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    data = em.from_arrays(X, (X[:, 0] + rng.normal(size=300) > 0).astype(float))

    def start(rounds: int, **settings: object) -> em.Handle:
        algorithm = em.BatchGradient(l2=1e-2, **settings)
        return em.Job(algorithm, data, stop=em.Stop(rounds=rounds)).start(client)

    with pytest.warns(ConvergenceWarning, match="^not converged: .* after 2 rounds") as caught:
        start(2).result()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(2, tolerance=0.0).result()
        assert start(100).result().summary["converged"]
        endless = start(10**6, optimizer="gd", step="constant", step_size=1e-9, tolerance=1e-300)
        until(lambda: endless.status().round > 1, "rounds")
        endless.cancel()
        endless.result()
