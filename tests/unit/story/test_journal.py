"""The journal's counts for the summary."""

from elasticml.story.history import HistoryRow
from elasticml.story.journal import Journal
from elasticml.story.records import MemberLost, PolicyDecided


def summary(journal):
    return journal.summary(
        reason="gap <= 1e-06",
        converged=True,
        rounds=3,
        seconds=4.0,
        objective=0.5,
        examples=None,
        features=None,
        members=2,
    )


def test_released_members_are_not_lost():
    journal = Journal({"name": "toy", "holders": 2})
    for reason in ("retired", "killed", "retired"):
        journal.write(1.0, MemberLost(member="0.1", reason=reason, chunks=0, pid=1))
    for policy in ("knee", "redeal", "redeal"):
        journal.write(1.0, PolicyDecided(policy=policy, suggestion="Move", why=""))
    report = summary(journal)
    assert (report.lost, report.retired, report.holders) == (1, 2, 2)
    assert report.decisions == {"knee": 1, "redeal": 2}


def test_container_seconds_are_members_times_time():
    journal = Journal({})
    for t, members in ((1.0, 4), (3.0, 2), (3.5, 2)):
        journal.add_row(t, HistoryRow({"round": 0, "members": members}), 0)
    assert summary(journal).container_seconds == 4 * 1.0 + 2 * 2.0 + 2 * 0.5


def test_the_last_gap_is_marked_if_it_is_a_bound():
    journal = Journal({})
    journal.add_row(1.0, HistoryRow({"round": 0, "gap": 0.5, "gap_is_bound": True}), 0)
    assert (summary(journal).gap, summary(journal).gap_is_bound) == (0.5, True)
    journal.add_row(2.0, HistoryRow({"round": 1, "gap": None, "gap_is_bound": True}), 0)
    assert (summary(journal).gap, summary(journal).gap_is_bound) == (None, False)
