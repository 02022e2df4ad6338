"""Progress on standard error: few lines where nobody watches, one that changes in a terminal."""

import io

from rich.console import Console

from elasticml.jobs.progress_bar import QUIET_S, ProgressBar
from tests.unit.jobs.test_status import STARTED, ended

LOST = {"t": 1.0, "event": "MemberLost", "round": 1, "member": "3.1", "reason": "killed"}
OVER = {"t": 9.0, "event": "JobEnded", "state": "done", "reason": "10 rounds"}


def shown(batches, *, terminal, step_s=1.0):
    """What is printed when a batch comes every ``step_s`` seconds."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, color_system=None)
    times = iter(range(1000))
    with ProgressBar(console, clock=lambda: next(times) * step_s) as progress:
        for batch in batches:
            progress.record(batch)
    return file.getvalue()


def test_a_log_gets_a_line_every_few_seconds_at_most():
    batches = [[STARTED], *([ended(r, float(r))] for r in range(10)), [OVER]]
    lines = shown(batches, terminal=False).splitlines()
    assert len(lines) == 1 + 10 // QUIET_S  # after 1 and 6 seconds, and at the end
    assert lines[-1].endswith("done after 9.0 s: 10 rounds")


def test_the_end_is_told_once():
    lines = shown([[STARTED], [OVER], []], terminal=False, step_s=0.0).splitlines()
    assert len(lines) == 1


def test_what_fails_at_once_is_told_by_its_error_alone():
    failed = {**OVER, "state": "failed", "reason": "no such label"}
    assert shown([[STARTED], [failed], []], terminal=False, step_s=0.0) == ""


def test_a_terminal_shows_who_was_lost():
    text = shown([[STARTED], [ended(0, 0.5)], [LOST]], terminal=True)
    assert "round 1: member 3.1 lost (killed)" in text


def test_a_log_is_spared_the_single_losses():
    assert "lost" not in shown([[STARTED], [LOST]], terminal=False)


def test_a_terminal_shows_what_policies_do_to_members_and_not_every_chunk_that_moves():
    decided = {"t": 1.0, "event": "PolicyDecided", "round": 1, "policy": "knee", "why": "a knee"}
    told = [{**decided, "suggestion": kind} for kind in ("Retire", "Move")]
    text = shown([[STARTED], [ended(0, 0.5)], told], terminal=True)
    assert text.count("round 1: knee: a knee") == 1
