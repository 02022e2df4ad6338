"""From a story to lanes, series, a timeline, advice, and the times of pre-empted containers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.report.lanes import make_lanes, paint
from elasticml.report.plots import split_exact
from elasticml.report.preemptions import containers, preemptions, preemptions_table
from elasticml.report.run_reader import RunData, parse_history, read_run
from elasticml.report.series import (
    absence_windows,
    clock,
    full_objective,
    members_over_time,
    membership_marks,
    wants_log,
)
from elasticml.report.timeline import seconds_text, timeline
from elasticml.report.waiting import time_use
from elasticml.story.records import RoundStarted, records_from_json
from tests.unit.report.runs import END, LOSS, RETURN

# --- lanes ----------------------------------------------------------------------------------------


def told(t: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"t": t, "event": event, **fields}


def here(member: str, t: float = 0.0, active_t: float | None = None) -> list[dict[str, Any]]:
    """A member joins and takes part."""
    active_t = t if active_t is None else active_t
    return [
        told(t, "MemberJoined", member=member),
        told(active_t, "MemberActive", member=member),
    ]


def exchanged(t: float, start_t: float, compute_s: Any) -> dict[str, Any]:
    return told(t, "ExchangeEnded", start_t=start_t, compute_s=compute_s)


LANES: dict[str, tuple[list[dict[str, Any]], dict[int, str]]] = {
    "loads, computes, and waits within each exchange": (
        [*here("0.0", 1.0, 2.0), exchanged(5.0, 3.0, {"0": 1.5})],
        {0: "load 1 2, wait 2 3, compute 3 4.5, wait 4.5 5"},
    ),
    "is gone between a loss and the return in its slot": (
        [
            *here("3.0"),
            told(2.0, "MemberLost", member="3.0"),
            *here("3.1", 5.0, 6.0),
            told(8.0, "JobEnded"),
        ],
        {3: "wait 0 2, gone 2 5, load 5 6, wait 6 8"},
    ),
    "is gone until the end when it is lost for good": (
        [
            *here("0.0"),
            *(told(t, "MemberLost", member="0.0") for t in (1.0, 1.5)),
            told(4.0, "JobEnded"),
        ],
        {0: "wait 0 1, gone 1 4"},
    ),
    "moves chunks at both ends, and never while it is gone": (
        [
            *here("0.0"),
            *here("1.0"),
            told(2.0, "MemberLost", member="0.0"),
            told(3.0, "ChunksMoved", source="0.0", target="1.0", seconds=2.0),
        ],
        {0: "wait 0 1, move 1 2, gone 2 3", 1: "wait 0 1, move 1 3"},
    ),
    "loads until its first work, and ends computing with the exchange": (
        [told(0.0, "MemberJoined", member="0.0"), exchanged(4.0, 3.0, {"0": 9.0})],
        {0: "load 0 3, compute 3 4"},
    ),
    "is not confused by odd records": (
        [
            told(0.0, "MemberJoined", member="0.0"),
            told(1.0, "MemberJoined"),
            told(1.0, "MemberLost", member="7.0"),
            told(1.0, "MemberActive", member="no id"),
            told(1.0, "ChunksMoved", source=None, target=3, seconds="long"),
            exchanged(1.0, None, {"x": 1.0, "0": None}),
            exchanged(1.0, None, [1.0]),
        ],
        {0: "load 0 1"},
    ),
}


@pytest.mark.parametrize("name", LANES)
def test_a_member(name):
    story, expected = LANES[name]
    lanes = make_lanes(records_from_json(story))
    found = {
        slot: ", ".join(f"{v.kind} {v.start_s:g} {v.end_s:g}" for v in lanes.intervals[slot])
        for slot in expected
    }
    assert found == expected


def test_intervals_are_disjoint_and_ascending_for_random_spans():
    def kind_at(lane, at):
        return next(kind for low, high, kind in lane if low <= at < high)

    rng = np.random.default_rng(0)
    for _ in range(50):
        cuts = np.cumsum(rng.random(9))
        kinds = rng.choice(["wait", "gone", "load"], 8)
        lane = [(cuts[i], cuts[i + 1], kinds[i]) for i in range(8)]
        starts = np.sort(rng.random(12) * cuts[-1] * 1.2)
        top = [(s, s + rng.random()) for s in starts]
        painted = paint(lane, top, "compute")
        inside = [at for low, high, _ in painted for at in (low, high)]
        assert inside == sorted(inside)
        assert sum(high - low for low, high, _ in painted) == pytest.approx(cuts[-1] - cuts[0])
        # A second way to compute it: the state at random moments.
        for at in rng.uniform(cuts[0], cuts[-1], 40):
            below = kind_at(lane, at)
            busy = any(low <= at < high for low, high in top) and below != "gone"
            assert kind_at(painted, at) == ("compute" if busy else below)


# --- series ---------------------------------------------------------------------------------------


def history(text):
    return parse_history(text, [], finished=True)


def test_an_elastic_run_has_its_losses_returns_and_absence_by_round_and_by_time(elastic, certified):
    run = read_run(elastic)
    marks = membership_marks(run.records)
    assert [(m.kind, m.round, m.count) for m in marks] == [("lost", LOSS, 7), ("back", RETURN, 7)]
    kinds = {(m.kind, m.count) for m in membership_marks(read_run(certified).records)}
    assert kinds == {("retired", 3)}
    ((start, end),) = [(w.start_round, w.end_round) for w in absence_windows(run.history)]
    assert (start, end) == (LOSS, RETURN)
    starts = {r.round: r.t for r in run.records if isinstance(r, RoundStarted)}
    times = clock(run)
    expected = list(starts.values())  # the last one scores the final model
    np.testing.assert_allclose([times.at(r) for r in range(END + 1)], expected, atol=1e-12)
    seconds, counts = members_over_time(run)
    assert (counts.max(), counts[-1]) == (14, 14)
    assert counts[seconds >= marks[0].at_s].min() == 7
    assert (np.diff(seconds) >= 0).all()


def test_rounds_with_absent_examples_make_windows():
    table = "round,absent_examples\n0,0\n1,5\n2,7\n3,0\n4,2\n"
    windows = [(w.start_round, w.end_round, w.examples) for w in absence_windows(history(table))]
    assert windows == [(1, 3, 7), (4, 5, 2)]


def test_objective_is_split_into_exact_and_estimated_stretches():
    table = "round,objective,objective_kind\n" + "".join(
        f"{r},{10 - r},{'estimated' if r in (2, 4, 5) else 'exact'}\n" for r in range(8)
    )
    solid, dashed = split_exact(history(table), np.arange(8.0))
    np.testing.assert_equal(solid[0], [0, 1, 2, np.nan, 3, 4, np.nan, 6, 7, np.nan])
    np.testing.assert_equal(dashed[0], [2, 3, np.nan, 4, 5, 6, np.nan])
    np.testing.assert_equal(dashed[1], 10 - dashed[0])


# --- timeline -------------------------------------------------------------------------------------


def test_timeline_has_the_changes_of_a_round_in_one_sentence_each(elastic, certified):
    texts = {e.round: [] for e in timeline(read_run(elastic).records)}
    for entry in timeline(read_run(elastic).records):
        texts[entry.round].append(entry.text)
    assert texts[LOSS][:2] == [
        "A planned fault takes away 7 members (kill, broadcast).",
        "7 members lost (connection closed): 7.1, 8.1, 9.1, 10.1, 11.1, 12.1, 13.1.",
    ]
    assert "The absent chunks of group 1 are back in the sum." in texts[RETURN]
    assert texts[END] == ["The job ended: 60 rounds."]
    # Policies move chunks in every round: only the other decisions are told.
    decided = [entry.text for entry in timeline(read_run(certified).records)]
    assert [text.partition(":")[0] for text in decided if "Decided" in text] == ["Decided by knee"]
    assert any(text.startswith("3 members given back, emptied: ") for text in decided)


# --- waiting --------------------------------------------------------------------------------------


def rounds_of(algorithm, compute, *, rounds=10, exchange_s=1.0, driver_s=0.0):
    records = [told(0.0, "JobStarted", spec={"algorithm": {"name": algorithm}})]
    t = 0.0
    for number in range(rounds):
        records.append(told(t, "RoundStarted", round=number))
        records.append(exchanged(t + exchange_s, t, compute) | {"round": number})
        t += exchange_s + driver_s
        records.append(told(t, "RoundEnded", round=number))
    return records


def advice(records):
    return time_use(records_from_json(records)).advice()


def test_the_number_of_members_that_pay_is_where_work_and_fixed_time_are_equal():
    # 8 x 0.19 s of work in a round, 0.81 s for messages and the driver.
    records = rounds_of("batch_gradient", dict.fromkeys("01234567", 0.19))
    use = time_use(records_from_json(records))
    assert use.wait_share == pytest.approx(0.81)
    assert (use.members, use.paying_members) == (pytest.approx(8.0), 2)
    (line,) = use.advice()
    assert line.startswith("Members waited 81 % of the time in rounds: 0 % for the slowest member,")
    assert "About 2 members pay for these data, not 8: a round then takes at most 1.6 times" in line
    assert "for 39 % of the container-seconds" in line
    assert line.endswith("(members.start, members.max: 2).")


@pytest.mark.parametrize(
    ("records", "words", "end"),
    [
        (
            rounds_of("cocoa", dict.fromkeys("01", 0.5), exchange_s=0.5, driver_s=1.5),
            "75 % for the driver",
            "raise algorithm.local_epochs or add policies: [tune_local_work].",
        ),
        (
            rounds_of("batch_gradient", {"0": 1.0, "1": 0.1, "2": 0.1, "3": 0.1}),
            "for the slowest member",
            "add policies: [rebalance], or use equal machines.",
        ),
        (
            rounds_of("local_sgd", dict.fromkeys("0123", 0.1)),
            "",
            "To give members more work per round, raise algorithm.local_steps.",
        ),
    ],
)
def test_the_advice_names_the_cause_and_the_setting(records, words, end):
    (line,) = advice(records)
    assert words in line
    assert line.endswith(end)
    assert ("pay" in line) == ("driver" in words)


@pytest.mark.parametrize(
    "records",
    [
        rounds_of("batch_gradient", dict.fromkeys("0123", 0.9)),
        rounds_of("batch_gradient", dict.fromkeys("01", 0.1), rounds=2),
        rounds_of("async_sgd", dict.fromkeys("01", 0.1)),
    ],
    ids=["mostly computing", "short", "asynchronous"],
)
def test_no_advice_without_need_or_without_measurements_of_synchronous_rounds(records):
    assert advice(records) == []


def test_a_wait_of_the_whole_job_has_its_remedy():
    waiting = {"what": "members", "have": 1, "need": 2, "since_s": 1.0, "remedy": "start more"}
    records = [
        told(2.0, "Waiting", **waiting),
        told(9.0, "WaitEnded", what="members", seconds=8.0),
        told(10.0, "JobEnded"),
    ]
    line = "The whole job stood still for 8 s of 10 s, for members: start more."
    assert advice(records) == [line]
    # A wait that has not ended counts up to the last record.
    assert advice([records[0], records[2]]) == [line.replace("8 s", "9 s")]


# --- pre-empted and released containers -----------------------------------------------------------


def story(*more: dict[str, Any]) -> list[Any]:
    begun = [told(0.0, "MemberJoined", member=f"{slot}.1", host="h") for slot in range(4)]
    common = {"round": 0, "cause": ""}
    return records_from_json(common | r for r in [*begun, told(1.0, "RoundStarted"), *more])


def marked(t: float, marked: str, given: str) -> dict[str, Any]:
    why = {"grace_s": 4.0, "negotiable": True, "why": "cheapest"}
    return told(t, "Reclaimed", marked=marked, given=given, **why)


def moved(t: float, source: str) -> dict[str, Any]:
    return told(t, "ChunksMoved", source=source, target="1.1", chunks=2, bytes=10, seconds=0.1)


#: 0.1 is marked, 3.1 is released for it and returns; the mark is withdrawn.
NEGOTIATED = [
    marked(10.0, "0.1", "3.1"),
    moved(10.5, "3.1"),
    told(10.6, "MemberLost", member="3.1", reason="released", chunks=0),
    told(11.0, "RoundEnded", idle=False),
    told(11.2, "ContainerEnded", member="3.1", container="container_4", reason="released"),
    told(19.0, "ReclaimLifted", member="0.1", address="a", why="withdrawn"),
    told(20.0, "MemberJoined", member="3.2", host="h"),
    told(21.0, "MemberActive", member="3.2", chunks=2, examples=8),
]
#: 2.1 is killed with its chunks after a SIGTERM; no member takes over for two rounds.
TAKEN = [
    told(5.0, "ContainerStopping", member="2.1", grace_s=0.25),
    told(5.0, "MemberNoticed", member="2.1", grace_s=0.25, reason="terminated"),
    told(5.3, "MemberLost", member="2.1", reason="terminated", chunks=3),
    told(5.4, "ChunksAbsent", group=1, chunks=3, members=["2.1"], examples=12),
    told(5.5, "ContainerEnded", member="2.1", container="c", reason="preempted", status=-102),
    told(6.0, "RoundEnded", idle=True),
    told(7.0, "RoundEnded", idle=True),
    told(8.0, "GroupReturned", group=1, members=["0.1"]),
    told(9.0, "RoundEnded", idle=False),
]


def test_marked_one_stays_and_its_substitute_is_followed_to_its_return():
    negotiated = story(*NEGOTIATED)
    stayed, given = containers(negotiated)
    assert (stayed.member, stayed.role, stayed.round_s) == ("0.1", "stayed", 11.0)
    assert (stayed.notice_s, stayed.lifted_s) == (10.0, 19.0)
    assert (given.member, given.role, given.given_for) == ("3.1", "substitute", "0.1")
    times = (given.notice_s, given.safe_s, given.lost_s, given.round_s, given.return_s)
    assert times == (10.0, 10.5, 10.6, 11.0, 21.0)
    assert (given.container, given.rounds_lost) == ("container_4", 0)
    report = preemptions(negotiated)
    counts = {name: report[name] for name in ("asked", "stayed", "given", "lost", "rounds_lost")}
    assert counts == {"asked": 1, "stayed": 1, "given": 1, "lost": 1, "rounds_lost": 0}
    assert report["seconds"]["notice_to_chunks_safe"] == {"min": 0.5, "median": 0.5, "max": 0.5}
    assert report["seconds"]["notice_to_sigterm"] is None
    assert report["seconds"]["loss_to_return"]["max"] == 10.4
    table = preemptions_table(negotiated)
    text = "\n".join(cell for row in table.rows for cell in row)
    assert (len(table.rows), "given for another (0.1)" in text) == (2, True)
    assert "10.60 (+0.60)" in text
    marks = [(m.kind, m.slot, m.at_s) for m in make_lanes(negotiated).marks if m.at_s > 0]
    assert marks == [("marked", 0, 10.0), ("lost", 3, 10.6), ("returned", 3, 20.0)]


def test_loss_with_chunks_has_its_stand_in_its_takeover_and_its_lost_rounds():
    (taken,) = containers(story(*TAKEN))
    assert (taken.reason, taken.status, taken.chunks) == ("preempted", -102, 3)
    assert (taken.notice_s, taken.stopping_s, taken.lost_s) == (5.0, 5.0, 5.3)
    assert (taken.stand_in_s, taken.takeover_s, taken.safe_s) == (5.4, 8.0, 8.0)
    assert (taken.round_s, taken.rounds_lost, taken.return_s) == (9.0, 2, None)
    assert preemptions(story(*TAKEN))["rounds_lost"] == 2
    words = " ".join(entry.text for entry in timeline(story(*NEGOTIATED, *TAKEN)))
    assert "1 container asked for back within 4 s: 0.1 (3.1 goes for it: cheapest)." in words
    assert "SIGTERM in the container of 2.1." in words
    assert "c of 2.1 (pre-empted, status -102)" in words


def test_a_container_marked_again_is_timed_from_the_new_mark():
    # One that had stayed the first time seemed to take 18 s to be safe the second time.
    again = [
        marked(30.0, "0.1", "0.1"),
        moved(30.2, "0.1"),
        told(30.3, "MemberLost", member="0.1", reason="preempted", chunks=0),
        told(31.0, "RoundEnded", idle=False),
    ]
    entry = next(c for c in containers(story(*NEGOTIATED, *again)) if c.member == "0.1")
    times = (entry.notice_s, entry.safe_s, entry.lost_s, entry.round_s, entry.lifted_s)
    assert (entry.role, times) == ("leaver", (30.0, 30.2, 30.3, 31.0, None))


def test_full_objective_prefers_the_value_computed_afterwards_and_omits_estimates():
    table = (
        "round,objective,objective_kind,objective_full\n"
        "0,4,exact,\n1,3,estimated,\n2,2,estimated,2.5\n3,1,exact,\n"
    )
    rounds, values = full_objective(history(table))
    assert (rounds.tolist(), values.tolist()) == ([0, 2, 3], [4, 2.5, 1])


def test_log_axis_is_for_positive_values_far_apart():
    values = ([1.0, np.nan, 10.0], [1.0, 2.0], [0.0, 10.0], [np.nan])
    assert [wants_log(np.array(v)) for v in values] == [True, False, False, False]


def test_clock_of_a_run_without_a_story_is_the_history_s():
    run = RunData(path=Path("r"), name="r", history=history("round,seconds\n0,1.5\n1,\n2,3.5\n"))
    assert [clock(run).at(r) for r in (0, 1, 2)] == [1.5, 2.5, 3.5]


def test_durations_read_well():
    seconds = {0.0123: "0.0123 s", 59.5: "59.5 s", 61: "1 min 1 s", 7260: "2 h 1 min"}
    assert {s: seconds_text(s) for s in seconds} == seconds
    assert seconds_text(math.nan) == "–"
