"""A stock scheduler is killed: its job resumes on another one, with data from the hosts' cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from tests.run_command import end_run, start_run
from tests.stock_cluster import StockCluster, stock_cluster
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WORKERS = ("a", "b")
ALGORITHM = {"name": "cocoa", "loss": "hinge", "l2": 1e-4, "intercept": False, "tolerance": 0}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Write two blocks of text; noise, so that the gap closes slowly."""
    rng = np.random.default_rng(5)
    y, X = np.sign(rng.normal(size=60_000)), rng.normal(size=(60_000, 20))
    lines = [
        " ".join([f"{label:g}", *(f"{j}:{value:.4f}" for j, value in enumerate(row, 1))])
        for label, row in zip(y, X, strict=True)
    ]
    path = tmp_path / "rows.svm"
    path.write_text("\n".join(lines) + "\n")
    return path


def start_workers(cluster: StockCluster) -> None:
    for name in WORKERS:
        cluster.worker(name)


def test_a_run_resumes_on_another_cluster_after_its_scheduler_was_killed(
    tmp_path: Path, rows: Path
) -> None:
    job = {
        "name": "cut",
        "data": {"format": "svmlight", "path": str(rows), "cache": str(tmp_path / "cache")},
        "algorithm": ALGORITHM,
        "checkpoint": {"path": str(tmp_path / "checkpoint"), "every": 0},
        "stop": {"rounds": 10**6},
    }
    run = tmp_path / "run"
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with stock_cluster(tmp_path / "old") as cluster:
        start_workers(cluster)
        with cluster.client() as client:
            cluster.await_workers(client, len(WORKERS))
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "cluster": cluster.address}))
        process = start_run(tmp_path, "job.yaml", "--out", "run")
        story = run / "story.jsonl"
        until(
            lambda: (
                process.poll() is not None
                or (story.exists() and story.read_text().count('"CheckpointWritten"') > 2)
            ),
            "three checkpoints",
        )
        cluster.kill_scheduler()
        code, _, err = end_run(process)
    assert code == 3, err
    (said,) = [line for line in err.splitlines() if line.startswith("elasticml:")]
    assert "partial results of the run are in run; resume it: elasticml run --resume run" in said
    summary = json.loads((run / "summary.json").read_text())
    with np.load(run / "model.npz") as model:
        coef = model["coef"]
    last = read_checkpoint(str(tmp_path / "checkpoint"))  # ahead of the story that the client got
    assert summary["model_round"] == last.round > 0
    np.testing.assert_array_equal(coef.ravel(), last.resume_point.model["coef"].ravel())
    with stock_cluster(tmp_path / "new") as cluster:
        settings = [f"cluster.address={cluster.address}", "stop.gap=1e-4"]
        options = [word for setting in settings for word in ("--set", setting)]
        process = start_run(tmp_path, "--resume", "run", "--json", *options)
        start_workers(cluster)
        code, out, err = end_run(process)
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["gap"] <= 1e-4, summary["attempts"]) == (True, 2)
    records = [json.loads(line) for line in story.read_text().splitlines()]
    assert [record["event"] for record in records].count("JobResumed") == 1
    # The data were parsed once, and no round is missing.
    first, second = (r["parsed_bytes"] for r in records if r["event"] == "DataLoaded")
    assert (first > 0, second) == (True, 0)
    ended = [record["round"] for record in records if record["event"] == "RoundEnded"]
    assert ended == list(range(len(ended)))
