"""The status and the figures of a running job: story in, the JSON of the page out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticml.jobs.progress_bar import status_line, waiting_line
from elasticml.report.live import COLUMNS, EVENTS_MAX, POINTS_MAX, LiveJob, read_story
from elasticml.report.panel import panel_html
from elasticml.report.status import JobStatus
from tests.unit.report.runs import LOSS, RETURN

NAME = "<img src=x onerror=alert(1)>"
AT = {name: i for i, name in enumerate(COLUMNS)}


def started(**spec: Any) -> dict[str, Any]:
    spec = {"algorithm": {"name": "cocoa"}, "stop": {"gap": 1e-3}, **spec}
    fields = {"versions": {}, "cpu": "", "blas_threads": 1}
    return {"t": 0.0, "event": "JobStarted", "job": "j", "name": NAME, "spec": spec, **fields}


def joined(member: str, t: float = 0.1) -> dict[str, Any]:
    where = {"host": "h", "address": "a", "pid": 1, "threads": 1, "blas_threads": 1, "cpu": ""}
    return {"t": t, "event": "MemberJoined", "member": member, **where}


def active(member: str, examples: int, t: float = 0.2) -> dict[str, Any]:
    counted = {"chunks": 1, "examples": examples}
    return {"t": t, "event": "MemberActive", "member": member, **counted}


def a_round(number: int, start_s: float, end_s: float, **row: Any) -> list[dict[str, Any]]:
    """A round of two members, one of which computes for a second and the other for three."""
    end = {"t": end_s, "event": "RoundEnded", "round": number, "idle": False, "members": 2}
    sums = {"exchange": number, "operation": "", "phase": "", "contributors": "3", "missing": "0"}
    sums |= {"order": "", "examples": 30, "absent_examples": 0, "compute_s": {"0": 1.0, "1": 3.0}}
    return [
        {"t": start_s, "event": "RoundStarted", "round": number, "rows": {"0": 10, "1": 20}},
        {"t": end_s - 1, "event": "ExchangeEnded", "round": number, "start_t": start_s + 1, **sums},
        {**end, "objective": 0.5, "gap": 1e-2, "absent_examples": 0, **row},
    ]


BEGUN = [started(), joined("0.1"), joined("1.1"), active("0.1", 10), active("1.1", 20)]


def slots_of(live: LiveJob) -> dict[int, tuple[str, int]]:
    return {slot.slot: (slot.state, slot.examples) for slot in live.slots.values()}


def test_the_time_of_a_round_is_divided_completely() -> None:
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0)])
    point = live.points[-1]
    parts = [point[AT[name]] for name in ("computing", "waiting", "links", "driver")]
    # Seven seconds: an exchange of five, in which the slowest member computed for three.
    assert parts == [2.0, 1.0, 2.0, 2.0]


def test_a_killed_member_and_its_successor_change_the_state_of_their_slot() -> None:
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0)])
    assert slots_of(live) == {0: ("active", 10), 1: ("active", 20)}
    gone = {"t": 9.0, "event": "MemberLost", "member": "1.1", "reason": "killed", "chunks": 1}
    live.read([gone | {"pid": 1}])
    assert slots_of(live)[1] == ("lost", 0)
    assert live.counts()["lost"] == 1
    live.read([joined("1.2", 10.0), gone | {"pid": 1}])
    assert slots_of(live)[1] == ("loading", 0)
    live.read([active("1.2", 20, 11.0)])
    assert (slots_of(live)[1], live.returned) == (("active", 20), 1)


def test_a_notice_counts_down_and_may_be_withdrawn() -> None:
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0)])
    notice = {"t": 9.0, "event": "MemberNoticed", "member": "0.1", "grace_s": 30.0}
    live.read([{**notice, "reason": "preempted"}])
    assert (live.slots[0].state, live.slots[0].deadline_s) == ("leaving", 39.0)
    live.read([{"t": 10.0, "event": "NoticeWithdrawn", "member": "0.1"}])
    assert (live.slots[0].state, live.slots[0].deadline_s) == ("active", None)


def test_chunks_are_on_their_way_from_the_order_to_their_arrival() -> None:
    live = read_story("j", BEGUN)
    order = {"t": 1.0, "event": "ChunksGiven", "member": "0.1", "target": "1.1", "order": 4}
    live.read([{**order, "chunks": "0.0-11 3.5"}])
    assert list(live.moves.values()) == [("0.1", "1.1", 13)]
    arrived = {"t": 2.0, "event": "ChunksLoaded", "member": "1.1", "chunks": "0.0", "order": 4}
    live.read([arrived])
    assert live.moves == {}


def test_the_note_says_what_a_job_waits_for() -> None:
    wait = {"t": 4.0, "event": "Waiting", "cause": "clock", "what": "members", "have": 0, "need": 2}
    wait |= {"since_s": 1.0, "remedy": "start 2 more"}
    waiting = read_story("j", [started(), wait])
    assert waiting.note() == "Waiting for members since 1 s: 0 of 2; start 2 more."
    ended = {"t": 5.0, "event": "WaitEnded", "cause": "clock", "what": "members", "seconds": 4.0}
    assert read_story("j", [started(), wait, ended]).note() == "Waiting for members."


def test_a_viewer_gets_only_what_has_changed_since_its_last_figures() -> None:
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0)])
    whole = live.to_json()
    assert whole["is_whole"]
    assert len(whole["slots"]) == 2
    live.read(a_round(1, 8.0, 16.0, gap=1e-4))
    news = live.to_json(whole["token"])
    assert not news["is_whole"]
    assert news["slots"] == []
    points = whole["points"][: news["first"]] + news["points"]
    assert points == live.points
    assert [e[0] for e in whole["events"] + news["events"]] == [e.number for e in live.events]


def test_tokens_of_other_figures_get_everything() -> None:
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0)])
    for token in ("", "7.1.1.1", "0.1.1", "x.y.z.u", "0.9999.1.1\n", "-1.0.0.0"):
        news = live.to_json(token)
        assert news["is_whole"] or news["points"] == live.points[-1:]


def test_size_does_not_grow_with_the_length_of_the_job() -> None:
    live = LiveJob("j")
    live.read(BEGUN)
    for k in range(20):
        rounds = [a_round(100 * k + i, 100 * k + i, 100 * k + i + 1) for i in range(100)]
        live.read([record for records in rounds for record in records])
        lost = {"event": "MemberLost", "reason": "killed", "chunks": 0, "pid": 1}
        live.read([{"t": k, "round": i, "member": f"5.{k * 30 + i}", **lost} for i in range(30)])
    assert POINTS_MAX // 4 < len(live.points) <= POINTS_MAX
    assert live.points[-1][AT["round"]] == 1999
    assert len(live.events) == EVENTS_MAX
    assert live.container_s == 2 * 2000.0


def test_a_resumed_job_has_new_members() -> None:
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0)])
    before = live.token
    fields = {"attempt": 2, "checkpoint": 1, "members": [], "repeated_rounds": 0, "notes": []}
    live.read([{**started(), "event": "JobResumed", "t": 9.0, "round": 1, **fields}])
    assert live.slots == {}
    assert live.to_json(before)["is_whole"]


def test_a_panel_escapes_every_name() -> None:
    story = [*BEGUN, *a_round(0, 1.0, 8.0), *a_round(1, 8.0, 16.0)]
    story[1] = {**story[1], "host": '"><script>1</script>'}
    ended = {"t": 17.0, "event": "JobEnded", "state": "failed", "reason": "<b>no</b>", "round": 2}
    fields = {"converged": False, "computations": {}, "digest": ""}
    html = panel_html(read_story("j", [*story, {**ended, **fields}]), 17.0)
    for text in ("<img", "<script", "<b>no"):
        assert text not in html
    assert "&lt;img src=x" in html
    assert "<svg" in html


def test_a_long_run_looks_as_in_its_report(elastic: Path) -> None:
    lines = (elastic / "story.jsonl").read_text().splitlines()
    live = read_story("j", map(json.loads, lines))
    figures = live.to_json()
    assert (figures["state"], figures["note"], figures["examples"]) == ("done", "60 rounds", 700)
    assert figures["counts"] == [14, 0, 0, 0, 0]
    cards = {label: (value, small) for label, value, small, _ in figures["cards"]}
    assert cards["lost"] == ("7", "members; 7 returned")
    assert (cards["members"], cards["rounds"]) == (("14", ""), ("60", "of at most 60"))
    assert figures["events"][-1][-1].startswith("The job ended")
    absent = [point[AT["round"]] for point in figures["points"] if point[AT["absent"]]]
    assert absent == list(range(LOSS, RETURN))
    assert sum(slot[4] for slot in figures["slots"]) == 700


# --- the status in one line -----------------------------------------------------------------------

LIMITED = {"t": 0.0, "event": "JobStarted", "name": "toy", "spec": {"stop": {"rounds": 10}}}


def stopping(**stop: Any) -> dict[str, Any]:
    return {**LIMITED, "spec": {"stop": stop}}


def ended(r: int, t: float, **more: Any) -> dict[str, Any]:
    row = {"round": r, "objective": 0.5, "objective_kind": "exact", "members": 4}
    return {"t": t, "event": "RoundEnded", **row, **more}


def status_of(*records: dict[str, Any]) -> JobStatus:
    status = JobStatus(job="toy-1")
    for record in records:
        status = status.after(record)
    return status


@pytest.mark.parametrize(
    ("records", "line"),
    [
        (
            [LIMITED, *({"t": t, "event": "MemberActive"} for t in (0.5, 0.6))],
            "toy: loading data on 2 members",
        ),
        (
            # Loading does not count towards the pace.
            [LIMITED, ended(0, 2.0), ended(1, 3.0), ended(2, 4.0)],
            "toy: round 3/10 | objective 0.5 | 4 members | 7.0 s to go",
        ),
        (
            [
                LIMITED,
                ended(0, 2.0),
                ended(1, 3.0, objective_kind="estimated", absent_examples=50, stand_ins=1),
            ],
            "toy: round 2/10 | objective ~0.5 | 4 members | 50 examples absent | 1 stand-in"
            " | 8.0 s to go",
        ),
        (
            [stopping(gap=1e-6), ended(0, 1.0, gap=1.0), ended(1, 2.0, gap=1e-3, objective=None)],
            "toy: round 2 | objective 0.5 | gap 1.0e-03 of 1e-06 (50 %) | 4 members",
        ),
        (
            [
                stopping(),
                ended(0, 1.0, gap=1.0),
                {"t": 3.0, "event": "FinalModel", "gap": 0.001, "objective": 0.4},
            ],
            "toy: round 1 | objective 0.4 | gap 1.0e-03 | 4 members",
        ),
        (
            [
                stopping(),
                ended(0, 1.0, gap=0.25, gap_is_bound=True),
                {"t": 75.0, "event": "JobEnded", "state": "failed", "reason": "as asked"},
            ],
            "toy: round 1 | objective 0.5 | gap ≤2.5e-01 | 4 members | failed after 1:15: as asked",
        ),
    ],
)
def test_the_status_is_one_line(records: list[dict[str, Any]], line: str) -> None:
    assert status_line(status_of(*records)) == line
    assert status_line(status_of(*records), "mine") == line.replace("toy", "mine", 1)


def test_figures_are_json_without_nan() -> None:
    row = {"objective": float("inf"), "gap": float("nan")}
    live = read_story("j", [*BEGUN, *a_round(0, 1.0, 8.0, **row)])
    json.dumps(live.to_json(), allow_nan=False)


def test_a_wait_is_shown_until_it_ends() -> None:
    waiting = {"t": 12.0, "event": "Waiting", "what": "members", "have": 0, "need": 2}
    waiting |= {"since_s": 2.0, "remedy": "no worker is connected"}
    status = status_of(LIMITED, waiting)
    assert status.waiting is not None
    assert waiting_line(status.waiting, status.seconds) == (
        "waiting for members for 0:10: 0 of 2; no worker is connected"
    )
    assert status_of(LIMITED, waiting, {"t": 13.0, "event": "WaitEnded"}).waiting is None
