"""Following a job: an interrupt when the job is over and its models are being evaluated."""

from __future__ import annotations

import json

import pytest

from elasticml.jobs import follow as module
from elasticml.jobs.wire import Outcome

STORY = [
    {"t": 0.1, "event": "RoundEnded", "round": 0, "objective": 1.0},
    {"t": 0.2, "event": "JobEnded", "state": "done", "reason": "1 rounds"},
]
RECORD = {"name": "toy", "data": {"format": "npz"}, "algorithm": {"name": "batch_gradient"}}


class Ended:
    """A job that is over, and is not cancelled any more."""

    spec, source, test = RECORD, None, None

    def batches(self, since=0):
        yield STORY[since:]

    def outcome(self):
        return Outcome(
            arrays={},
            snapshots={},
            history=[{"round": 0}],
            summary={"name": "toy"},
            facts=None,
            state="done",
            error=None,
        )

    def cancel(self):
        raise AssertionError("the job is over")


def test_interrupt_while_models_are_evaluated_keeps_what_the_job_has_come_to(tmp_path, monkeypatch):
    # Its history was final, and was to be appended to: an internal error instead of exit 130.
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        module.follow(Ended(), run_dir=tmp_path / "run", cancels=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["reason"] == "interrupted"
    assert (tmp_path / "run" / "report.html").exists()
