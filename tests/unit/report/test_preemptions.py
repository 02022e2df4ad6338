"""The times of pre-empted and released containers, from the story alone."""

from __future__ import annotations

from typing import Any

from elasticml.report.lanes import make_lanes
from elasticml.report.preemptions import containers, preemptions, preemptions_table
from elasticml.report.timeline import timeline
from elasticml.story.records import StoryRecord, record_from_json


def record(t: float, event: str, **fields: Any) -> StoryRecord:
    return record_from_json({"t": t, "event": event, "round": 0, "cause": "", **fields})


def start(*more: StoryRecord) -> list[StoryRecord]:
    joined = [record(0.0, "MemberJoined", member=f"{slot}.1", host="h") for slot in range(4)]
    return [*joined, record(1.0, "RoundStarted"), *more]


#: 0.1 is marked, 3.1 is released for it and returns; the mark is withdrawn.
NEGOTIATED = start(
    record(
        10.0, "Reclaimed", marked="0.1", given="3.1", grace_s=4.0, negotiable=True, why="cheapest"
    ),
    record(10.5, "ChunksMoved", source="3.1", target="1.1", chunks=2, bytes=10, seconds=0.1),
    record(10.6, "MemberLost", member="3.1", reason="released", chunks=0),
    record(11.0, "RoundEnded", idle=False),
    record(11.2, "ContainerEnded", member="3.1", container="container_4", reason="released"),
    record(19.0, "ReclaimLifted", member="0.1", address="a", why="withdrawn"),
    record(20.0, "MemberJoined", member="3.2", host="h"),
    record(21.0, "MemberActive", member="3.2", chunks=2, examples=8),
)
#: 2.1 is killed with its chunks after a SIGTERM; no member takes over for two rounds.
TAKEN = start(
    record(5.0, "ContainerStopping", member="2.1", grace_s=0.25),
    record(5.0, "MemberNoticed", member="2.1", grace_s=0.25, reason="terminated"),
    record(5.3, "MemberLost", member="2.1", reason="terminated", chunks=3),
    record(5.4, "ChunksAbsent", group=1, chunks=3, members=["2.1"], examples=12),
    record(5.5, "ContainerEnded", member="2.1", container="c", reason="preempted", status=-102),
    record(6.0, "RoundEnded", idle=True),
    record(7.0, "RoundEnded", idle=True),
    record(8.0, "GroupReturned", group=1, members=["0.1"]),
    record(9.0, "RoundEnded", idle=False),
)


def test_marked_one_stays_and_its_substitute_is_followed_to_its_return():
    stayed, options = containers(NEGOTIATED)
    assert (stayed.member, stayed.role, stayed.round_s) == ("0.1", "stayed", 11.0)
    assert (stayed.notice_s, stayed.lifted_s) == (10.0, 19.0)
    assert (options.member, options.role, options.given_for) == ("3.1", "substitute", "0.1")
    times = (options.notice_s, options.safe_s, options.lost_s, options.round_s, options.return_s)
    assert times == (10.0, 10.5, 10.6, 11.0, 21.0)
    assert (options.container, options.rounds_lost) == ("container_4", 0)


def test_summary_counts_and_times_preemptions():
    report = preemptions(NEGOTIATED)
    counts = {name: report[name] for name in ("asked", "stayed", "given", "lost", "rounds_lost")}
    assert counts == {"asked": 1, "stayed": 1, "given": 1, "lost": 1, "rounds_lost": 0}
    assert report["seconds"]["notice_to_chunks_safe"] == {"min": 0.5, "median": 0.5, "max": 0.5}
    assert report["seconds"]["notice_to_sigterm"] is None
    assert report["seconds"]["loss_to_return"]["max"] == 10.4


def test_loss_with_chunks_has_its_stand_in_its_takeover_and_its_lost_rounds():
    (taken,) = containers(TAKEN)
    assert (taken.reason, taken.status, taken.chunks) == ("preempted", -102, 3)
    assert (taken.notice_s, taken.stopping_s, taken.lost_s) == (5.0, 5.0, 5.3)
    assert (taken.stand_in_s, taken.takeover_s, taken.safe_s) == (5.4, 8.0, 8.0)
    assert (taken.round_s, taken.rounds_lost, taken.return_s) == (9.0, 2, None)
    assert preemptions(TAKEN)["rounds_lost"] == 2


def test_runs_without_preemptions_have_no_section():
    calm = start(record(2.0, "MemberLost", member="1.1", reason="retired", chunks=0))
    assert preemptions(calm) is None
    assert preemptions_table(calm) is None


def test_table_has_a_row_for_each_container():
    table = preemptions_table(NEGOTIATED)
    assert len(table.rows) == 2
    text = "\n".join(cell for row in table.rows for cell in row)
    assert "given for another (0.1)" in text
    assert "10.60 (+0.60)" in text


def test_lanes_have_a_symbol_where_a_container_was_marked():
    marks = [(m.kind, m.slot, m.at_s) for m in make_lanes(NEGOTIATED).marks if m.at_s > 0]
    assert marks == [("marked", 0, 10.0), ("lost", 3, 10.6), ("returned", 3, 20.0)]


def test_timeline_names_substitute_and_marked_member():
    words = " ".join(entry.text for entry in timeline([*NEGOTIATED, *TAKEN[5:]]))
    assert "1 container asked for back within 4 s: 0.1 (3.1 goes for it: cheapest)." in words
    assert "SIGTERM in the container of 2.1." in words
    assert "c of 2.1 (pre-empted, status -102)" in words


def test_a_container_marked_again_is_timed_from_the_new_mark():
    # One that had stayed the first time seemed to take 18 s to be safe the second time.
    again = [
        record(30.0, "Reclaimed", marked="0.1", given="0.1", grace_s=4.0, negotiable=True, why="c"),
        record(30.2, "ChunksMoved", source="0.1", target="1.1", chunks=2, bytes=10, seconds=0.1),
        record(30.3, "MemberLost", member="0.1", reason="preempted", chunks=0),
        record(31.0, "RoundEnded", idle=False),
    ]
    entry = next(c for c in containers([*NEGOTIATED, *again]) if c.member == "0.1")
    times = (entry.notice_s, entry.safe_s, entry.lost_s, entry.round_s, entry.lifted_s)
    assert (entry.role, times) == ("leaver", (30.0, 30.2, 30.3, 31.0, None))


def test_a_marked_member_may_be_released_for_another():
    asks = [("0.1", "1.1"), ("2.1", "0.1"), ("0.1", "0.1")]
    story = [
        record(10.0, "Reclaimed", marked=marked, given=given, grace_s=4.0, why="cheapest")
        for marked, given in asks
    ]
    found = [(c.member, c.role, c.given_for) for c in containers(start(*story))]
    assert found == [("0.1", "leaver", "2.1"), ("1.1", "substitute", "0.1"), ("2.1", "stayed", "")]
