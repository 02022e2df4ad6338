"""Run directories of simulated jobs: one loses half of its members, one is scaled in at a knee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import elasticml as em
from elasticml.jobs.follow import follow
from elasticml.jobs.simulated_job import SimulatedJob

#: Rounds of the elastic run: the loss, the return, the end.
LOSS, RETURN, END = 20, 40, 60


def points(rows: int, seed: int) -> Any:
    """Make two noisy classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 8))
    return em.from_arrays(X, np.sign(X @ np.arange(1.0, 9.0) + rng.normal(size=rows)))


def _write(path: Path, job: em.Job, workers: int, **simulated: Any) -> Path:
    record = job.record(f"{job.name}-1", workers) | {"simulate": simulated}
    follow(SimulatedJob(record, job.source), run_dir=path)
    return path


def write_elastic_run(path: Path, *, absent: Any = "taylor", faults: bool = True) -> Path:
    """Run 14 members without a certificate; 7 are killed in round 20 and return in round 40."""
    job = em.Job(
        em.BatchGradient(optimizer="gd", l2=0.0, tolerance=0.0),
        points(700, seed=0),
        test=points(100, seed=1),
        name=f"two-classes-{absent}",
        absent=absent,
        evaluate={"every": 5},
        stop=em.Stop(rounds=END),
        chunk_size=1024,
        faults=[{"round": LOSS, "lose": 7}, {"round": RETURN, "return": 7}] if faults else [],
    )
    return _write(path, job, 14, compute_s=0.01)


def write_certified_run(path: Path) -> Path:
    """Run CoCoA on 4 members, of which one is slow; a policy releases three at a knee."""
    job = em.Job(
        em.CoCoA(loss="hinge", l2=1e-3, tolerance=0.0),
        points(600, seed=0),
        name="svm",
        evaluate=False,
        stop=em.Stop(rounds=60, gap=1e-4),
        chunk_size=1024,
        policies=["rebalance", {"name": "knee", "to": [1]}],
    )
    return _write(path, job, 4, latency_s=0.001, slow={3: 1.9})


def edit_story(path: Path, change: Any) -> None:
    """Change each record of a run's story."""
    story = [json.loads(line) for line in (path / "story.jsonl").read_text().splitlines()]
    for record in story:
        change(record)
    (path / "story.jsonl").write_text("".join(json.dumps(record) + "\n" for record in story))


def edit_summary(path: Path, **changes: Any) -> None:
    """Change a run's summary."""
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | changes))
