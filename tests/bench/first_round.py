"""Phases of ``elasticml run`` of a small job, from the return key to the first round and the end.

    python -m tests.bench first_round [--repeats 5] [--cold] [--workers 3] [--algorithm cocoa]

2,000 rows of 20 columns in an SVMLight file, and 5 rounds. Medians over repeats (5) of wall
seconds, by phase, and when each ended. With ``--cold`` every run has an empty kernel cache; else
one run goes first, so that compiled code is in the cache and files are in memory. The job's own
phases are from the times of its story, which begin when the scheduler has the job. A second table
has the processor seconds of all processes together.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.bench import harness

#: Runs the command line, and writes when its parts ended.
PROGRAM = """
import json, sys, time
marks = [("interpreter", time.time())]
from elasticml.cli.main import main
marks.append(("imports of the command line", time.time()))
import elasticml.cli.run
from elasticml.clusters.local.cluster import LocalCluster
from elasticml import job
marks.append(("imports of the job", time.time()))

def marked(owner, name, after, before=None):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        if before:
            marks.append((before, time.time()))
        try:
            return inner(*arguments, **named)
        finally:
            marks.append((after, time.time()))
    setattr(owner, name, outer)

marked(job.Job, "check_data", "first rows of the data read and checked")
marked(LocalCluster, "start", "workers started: imports, kernels, registered")
marked(job.Job, "_submitted", "job submitted", "client imported and connected")
marked(job.Job, "run", "result, evaluation and report")
marked(LocalCluster, "shutdown", "cluster ended")
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert not end.code, end.code
marks.append(("process ended", time.time()))
with open(sys.argv[1], "w") as file:
    json.dump(marks, file)
"""
SUBMITTED = "job submitted"


def write_job(folder, algorithm, workers):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 20))
    y = np.where(X[:, :5].sum(axis=1) > 0.0, 1, -1)
    lines = [
        f"{label} " + " ".join(f"{j + 1}:{value:.5f}" for j, value in enumerate(row))
        for label, row in zip(y, X, strict=True)
    ]
    (folder / "data.svm").write_text("\n".join(lines) + "\n")
    job = {
        "data": {"format": "svmlight", "path": "data.svm"},
        "algorithm": {"name": algorithm, "loss": "logistic", "l2": 1e-3},
        "cluster": {"kind": "local", "workers": workers},
        "stop": {"rounds": 5},
    }
    (folder / "job.yaml").write_text(json.dumps(job))


def run_once(folder, cold):
    """Return wall seconds by phase in order, and processor seconds of all processes."""
    with tempfile.TemporaryDirectory() as place:
        out, marks = Path(place) / "run", Path(place) / "marks.json"
        env = {**os.environ, "PYTHONPATH": harness.path()}
        if cold:
            env["ELASTICML_CACHE"] = str(Path(place) / "cache")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.time()
        words = ["run", "job.yaml", "--out", str(out)]
        command = [sys.executable, "-c", PROGRAM, str(marks), *words]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        ends = [(name, end - began) for name, end in json.loads(marks.read_text())]
        story = [json.loads(line) for line in (out / "story.jsonl").read_text().splitlines()]
    first = {}
    for record in story:
        first.setdefault(record["event"], record["t"])
    joined = max(r["t"] for r in story if r["event"] == "MemberJoined" and r["round"] == 0)
    at = next(i for i, (name, _) in enumerate(ends) if name == SUBMITTED)
    # The scheduler has the job when the client's request returns.
    submitted = ends[at][1]
    own = [
        ("members joined", submitted + joined),
        ("data read", submitted + first["DataLoaded"]),
        ("first round ended", submitted + first["RoundEnded"]),
        ("job ended", submitted + first["JobEnded"]),
    ]
    ends[at + 1 : at + 1] = own
    phases, last = {}, 0.0
    for name, end in ends:
        phases[name], last = (end - last, end), end
    processor = sum(getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime"))
    return phases, processor


def main(*, repeats: int = 5, cold: bool = False, workers: int = 3, algorithm: str = "cocoa"):
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), algorithm, workers)
        n_runs = repeats + (not cold)
        runs = [run_once(folder, cold) for _ in range(n_runs)][-repeats:]
    harness.head("phase", "seconds", "ended at")
    for name in runs[0][0]:
        seconds, ends = zip(*(phases[name] for phases, _ in runs), strict=True)
        harness.row(name, f"{np.median(seconds):.2f}", f"{np.median(ends):.2f}")
    processor = np.median([seconds for _, seconds in runs])
    print(f"\nprocessor seconds of the command and its children: {processor:.1f}")
