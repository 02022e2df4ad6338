"""What-if simulation of a run on real workers: under its own rule it equals the run."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from elasticml.cli.what_if import simulate_modes
from elasticml.jobs.progress_bar import ProgressBar
from elasticml.report.run_reader import read_run
from tests.run_command import end_run, start_run

pytestmark = pytest.mark.cluster

JOB = {
    "name": "small",
    "data": {"format": "synthetic_splice", "rows": 2000, "length": 30},
    "algorithm": {"name": "batch_gradient", "l2": 1e-3, "intercept": False, "tolerance": 0},
    "cluster": {"workers": 4},
    "absent": "taylor",
    "stop": {"rounds": 24},
    "faults": [
        {"round": 5, "lose": 2, "how": "kill", "phase": "compute"},
        {"round": 14, "return": 2},
    ],
}


@pytest.mark.slow
def test_simulating_a_killed_runs_own_rule_gives_its_objective_in_every_round(tmp_path):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    code, _, err = end_run(start_run(tmp_path, "job.yaml", "--out", "run"))
    assert code == 0, err
    run = tmp_path / "run"
    _, past = simulate_modes(run, ["taylor", "no-failure"], lambda mode: ProgressBar(label=mode))
    assert (past.lost, past.returned) == (2, 2)
    own, ghost = read_run(run).history, read_run(run / "what-if" / "taylor").history
    assert (own.column("absent_examples") > 0).sum() == 9  # rounds 5 to 13
    assert np.array_equal(ghost.column("absent_examples"), own.column("absent_examples"))
    np.testing.assert_allclose(ghost.column("objective"), own.column("objective"), rtol=1e-9)
    free = read_run(run / "what-if" / "no-failure").history
    assert not free.column("absent_examples").any()
