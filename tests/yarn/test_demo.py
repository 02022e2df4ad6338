"""The demonstration on its own YARN: half of a job's containers are pre-empted and return."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from elasticml.report.preemptions import containers
from elasticml.report.run_reader import read_run

pytestmark = [pytest.mark.yarn, pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "yarn.mini", "demo", "--json"]


def test_half_of_a_jobs_containers_are_pre_empted_and_return(mini_yarn, tmp_path):
    out = tmp_path / "run"
    done = subprocess.run(
        [*COMMAND, "--out", str(out), "--seconds", "90", "--rows", "10000"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["stopped_by"] == "90 seconds"
    run = read_run(out)
    lost = [c for c in containers(run.records) if c.lost_s is not None]
    taken = [c for c in lost if c.reason in ("preempted", "released")]

    assert len(taken) == 3
    assert all(c.notice_s < c.lost_s < c.return_s for c in taken)
    (killed,) = [c for c in lost if c not in taken]
    assert (killed.reason, killed.status, killed.notice_s) == ("killed", 137, None)
    assert killed.lost_s < killed.stand_in_s
    assert all(c.rounds_lost == 0 for c in lost)
    # It kept converging while they were absent, and afterwards. The end of the job may come in a
    # round, whose row then has scores only.
    columns = map(run.history.column, ("seconds", "objective"))
    rows = [(t, value) for t, value in zip(*columns, strict=True) if not math.isnan(value)]
    moments = (max(c.lost_s for c in taken), max(c.return_s for c in taken), math.inf)
    full, absent, last = ([value for t, value in rows if t <= end][-1] for end in moments)
    assert full >= absent >= last
    assert full > last
    assert done.stderr.count(" given for ") + done.stderr.count("asked for, left") >= 1
