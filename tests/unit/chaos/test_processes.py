"""A campaign on processes that is interrupted reports the jobs that have ended."""

from __future__ import annotations

from collections import Counter

import pytest

from elasticml.chaos import processes


def test_an_interrupted_campaign_returns_the_jobs_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(run: processes._Run) -> list[str]:
        if run.seed == 8:
            raise KeyboardInterrupt
        run.rounds, run.faults = 5, Counter(kill=2)
        return []

    monkeypatch.setattr(processes._Run, "play", play)
    said: list[str] = []
    totals = processes.run_on_processes(7, 9, None, None, said.append, ("local",))
    assert (totals.jobs, totals.rounds, totals.faults["kill"], totals.wrong) == (1, 5, 2, [])
    assert said[-1] == "interrupted: the job that was running does not count"
