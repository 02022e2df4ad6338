"""Progress on standard error: few lines in a log, one changing line in a terminal."""

import io

from rich.console import Console

from elasticml.jobs.progress_bar import QUIET_S, ProgressBar
from tests.unit.report.test_live import LIMITED, ended

LOST = {"t": 1.0, "event": "MemberLost", "round": 1, "member": "3.1", "reason": "killed"}
OVER = {"t": 9.0, "event": "JobEnded", "state": "done", "reason": "10 rounds"}


def printed(batches, *, terminal, step_s=1.0, url=None):
    """Return what is printed when a batch comes every ``step_s`` seconds."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, color_system=None)
    times = iter(range(1000))
    with ProgressBar(console, clock=lambda: next(times) * step_s, url=url) as progress:
        for batch in batches:
            progress.on_records(batch)
    return file.getvalue()


def test_a_log_gets_a_line_every_few_seconds_at_most():
    batches = [[LIMITED], *([ended(r, float(r))] for r in range(10)), [OVER]]
    lines = printed(batches, terminal=False).splitlines()
    assert len(lines) == 1 + 10 // QUIET_S  # after 1 and 6 seconds, and at the end
    assert lines[-1].endswith("done after 9.0 s: 10 rounds")


def test_the_end_is_printed_once_and_of_an_immediate_failure_only_the_error():
    assert printed([[LIMITED], [OVER], []], terminal=False, step_s=0.0).count("\n") == 1
    failed = {**OVER, "state": "failed", "reason": "no such label"}
    for url in (None, "http://x"):
        assert printed([[LIMITED], [failed], []], terminal=False, step_s=0.0, url=url) == ""


def test_a_terminal_shows_lost_members_and_a_log_does_not():
    text = printed([[LIMITED], [ended(0, 0.5)], [LOST]], terminal=True)
    assert "round 1: member 3.1 lost (killed)" in text
    assert "lost" not in printed([[LIMITED], [LOST]], terminal=False)


def test_a_terminal_shows_membership_decisions_and_not_every_move():
    decided = {"t": 1.0, "event": "PolicyDecided", "round": 1, "policy": "knee", "why": "a knee"}
    values = [{**decided, "suggestion": kind} for kind in ("Retire", "Move")]
    text = printed([[LIMITED], [ended(0, 0.5)], values], terminal=True)
    assert text.count("round 1: knee: a knee") == 1


def test_the_address_of_the_page_is_printed_once():
    batches = [[LIMITED], *([ended(r, float(r))] for r in range(10)), [OVER]]
    for terminal in (True, False):
        assert printed(batches, terminal=terminal, url="http://x/elasticml").count("http") == 1
