"""The table of pre-empted containers, as the command line prints it."""

from __future__ import annotations

from typing import Any

from elasticml.report.preemptions import preemption_table
from elasticml.story.records import StoryRecord, record_from_json


def record(t: float, event: str, **fields: Any) -> StoryRecord:
    return record_from_json({"t": t, "event": event, "round": 0, "cause": "", **fields})


STARTED = [record(1.0, "RoundStarted")]


def asked(t: float, marked: str, given: str) -> StoryRecord:
    return record(t, "Reclaimed", marked=marked, given=given, grace_s=4.0, why="cheapest")


def test_without_preemptions_there_is_no_table():
    assert preemption_table([*STARTED, record(2.0, "RoundEnded", idle=False)]) == ""


def test_one_line_per_container_with_its_times_and_fate():
    story = [
        *STARTED,
        asked(10.0, "0.1", "3.1"),
        record(10.6, "MemberLost", member="3.1", reason="released", chunks=0),
        record(11.0, "RoundEnded", idle=False),
        record(12.0, "ContainerStopping", member="2.1", grace_s=0.25),
        record(12.3, "MemberLost", member="2.1", reason="preempted", chunks=3),
        record(12.4, "ChunksAbsent", group=1, chunks=3, members=["2.1"], examples=12),
        record(13.0, "RoundEnded", idle=False),
        record(21.0, "MemberActive", member="3.2", chunks=2, examples=8),
    ]
    assert preemption_table(story) == (
        "member  what               notice  SIGTERM  chunks safe   lost  stand-in  round   back\n"
        "0.1     asked for, stayed   10.00        –            –      –         –  11.00      –\n"
        "3.1     given for 0.1       10.00        –        10.00  10.60         –  11.00  21.00\n"
        "2.1     gone                    –    12.00            –  12.30     12.40  13.00      –\n"
    )


def test_a_marked_member_may_be_released_for_another():
    story = [
        *STARTED,
        asked(10.0, "0.1", "1.1"),
        asked(10.0, "2.1", "0.1"),
        asked(10.0, "0.1", "0.1"),
    ]
    whats = [line.split("  ")[2].strip() for line in preemption_table(story).splitlines()[1:]]
    assert whats == ["asked for, left, given for 2.1", "was to go for 0.1", "asked for, stayed"]
