"""A stock scheduler is killed: its job resumes on another one, with data from the hosts' cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import elasticml as em
from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from tests.run_command import end_run, start_run
from tests.stock_cluster import StockCluster, stock_cluster
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WORKERS = ("a", "b")
ALGORITHM = {"name": "cocoa", "loss": "hinge", "l2": 1e-4, "intercept": False, "tolerance": 0}
#: A stop rule that is not reached, and one for the resumed job.
NEVER, SOON = {"rounds": 10**6}, {"rounds": 10**6, "gap": 1e-4}


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


def of(story: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in story if record["event"] == event]


def start_workers(cluster: StockCluster, *options: str) -> None:
    for name in WORKERS:
        cluster.worker(name, *options)


def check_resumed(story: list[dict[str, Any]]) -> None:
    """Check that the data were parsed once, and that no round is missing."""
    assert len(of(story, "JobResumed")) == 1
    first, second = (record["parsed_bytes"] for record in of(story, "DataLoaded"))
    assert (first > 0, second) == (True, 0)
    ended = [record["round"] for record in of(story, "RoundEnded")]
    assert ended == list(range(len(ended)))


@pytest.mark.parametrize("options", [(), ("--no-nanny",)])
def test_a_job_resumes_on_a_new_scheduler_at_the_old_address(
    tmp_path: Path, rows: Path, options: tuple[str, ...]
) -> None:
    place = tmp_path / "checkpoint"
    with stock_cluster(tmp_path) as cluster:
        start_workers(cluster, *options)
        with cluster.client() as client:
            cluster.await_workers(client, len(WORKERS))
            algorithm = em.CoCoA(
                loss="hinge", l2=1e-4, intercept=False, tolerance=0.0, scale="none"
            )
            job = em.Job(
                algorithm,
                em.read_svmlight(str(rows)),
                stop=em.Stop(**NEVER),
                checkpoint={"path": str(place), "every": 0},
                cache=tmp_path / "cache",
                evaluate=False,
            )
            handle = job.start(client)
            for record in handle:
                if record["event"] == "CheckpointWritten" and record["checkpoint"] > 2:
                    break
            port = cluster.kill_scheduler()
            with pytest.raises(em.JobFailedError) as caught:
                handle.result()
            assert f'resume it: em.Job.resume(client, "{place}")' in caught.value.message
        cluster.start_scheduler(port)
        with cluster.client() as client:
            handle = em.Job.resume(client, place)
            start_workers(cluster, *options)  # Dask's own end with their scheduler, nannies too
            story = []
            for record in handle:
                story.append(record)
                resumed = of(story, "JobResumed")
                is_new = record["event"] == "RoundEnded" and resumed
                if is_new and record["round"] > resumed[0]["round"] + 3:
                    break
            check_resumed(story)
            handle.cancel()


def test_a_run_resumes_on_another_cluster_after_its_scheduler_was_killed(
    tmp_path: Path, rows: Path
) -> None:
    job = {
        "name": "cut",
        "data": {"format": "svmlight", "path": str(rows), "cache": str(tmp_path / "cache")},
        "algorithm": ALGORITHM,
        "checkpoint": {"path": str(tmp_path / "checkpoint"), "every": 0},
        "stop": NEVER,
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
        settings = [f"cluster.address={cluster.address}", f"stop.gap={SOON['gap']}"]
        options = [word for setting in settings for word in ("--set", setting)]
        process = start_run(tmp_path, "--resume", "run", "--json", *options)
        start_workers(cluster)
        code, out, err = end_run(process)
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["gap"] <= SOON["gap"], summary["attempts"]) == (True, 2)
    check_resumed([json.loads(line) for line in story.read_text().splitlines()])
