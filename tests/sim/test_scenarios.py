"""The main scenarios, with their simulated stories line by line."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.tabular import read_parquet
from elasticml.errors import JobFailedError
from elasticml.sim.cost_only_job import hollow_body
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import simulate
from tests.sim.small_jobs import column, play, record, records_of


def returned(result):
    return [(r["round"], r["members"]) for r in records_of(result, "GroupReturned")]


@pytest.mark.parametrize(("warm_up_s", "last"), [(30.0, 31), (90.0, 32)])
def test_a_planned_return_waits_until_the_members_have_compiled_their_kernels(warm_up_s, last):
    """The policy whole_group waits 60 s for a replacement, and longer for one that is planned."""
    faults = [{"round": 10, "lose": 3}, {"round": 20, "return": 3}]
    result = play({"warm_up_s": warm_up_s}, faults=faults, stop={"rounds": last})
    assert column(result, "stand_ins") == [0] * 10 + [1] * 10 + [0] * (last - 20)
    moved = [r["target"] for r in records_of(result, "ChunksMoved") if r["round"] > 10]
    assert moved == []


@pytest.mark.parametrize("optimizer", ["gd", "lbfgs"])
def test_most_members_away_for_good_leave_the_best_model_that_is_known(optimizer):
    """5 of 6 members are killed. The paper's stand-ins then fall without end, and were returned."""

    def train(**settings):
        algorithm = {"name": "batch_gradient", "l2": 1e-6, "optimizer": optimizer, **settings}
        faults = [{"round": 3, "lose": 5}]
        return play(algorithm=algorithm, faults=faults, stop={"rounds": 60})

    def true(arrays):
        X, y = source_rows()
        return float(np.logaddexp(0.0, -y * (X @ arrays["coef"][0])).mean())

    guarded, paper = train(), train(mode="paper", roll_back=0)
    assert column(paper, "objective")[-1] < 0.0
    before = true(guarded.snapshots[3])
    assert true(paper.arrays) > 10.0 * before
    assert true(guarded.arrays) <= before
    (kept,) = records_of(guarded, "EarlierModelKept")
    assert true(guarded.arrays) <= kept["objective"] <= before + 1e-5
    assert guarded.summary["model_round"] == kept["round"]
    np.testing.assert_array_equal(guarded.arrays["coef"], guarded.snapshots[kept["round"]]["coef"])


def test_the_least_members_are_awaited_when_no_fault_is_planned_any_more():
    """Idle rounds at the pace of the others used up the job's rounds within a second."""
    faults = [{"round": 10, "lose": 4}]
    late = [{"at": 40.0, "grant": 4}]
    result = play(
        {"trace": late}, faults=faults, members={"start": 6, "min": 5}, stop={"rounds": 30}
    )
    idle = [record for record in records_of(result, "RoundEnded") if record["idle"]]
    assert 1 <= len(idle) <= 6
    assert column(result, "absent_examples")[-1] == 0


def test_the_last_row_of_a_job_that_ends_while_it_waits_has_the_model_that_is_returned():
    """The row had the objective of the earlier model that is returned, and the latest model."""
    algorithm = {"name": "batch_gradient", "l2": 1e-6, "optimizer": "gd"}
    faults = [{"round": 3, "lose": 4}, {"round": 8, "lose": 1}]
    members = {"start": 6, "min": 2}
    stop = {"seconds": 300.0}
    result = play({"tick_s": 1.0}, algorithm=algorithm, faults=faults, members=members, stop=stop)
    last = result.rows[-1]["round"]
    assert result.summary["model_round"] < last
    np.testing.assert_array_equal(result.snapshots[last]["coef"], result.arrays["coef"])


def test_descent_does_not_go_on_from_where_flat_stand_ins_led():
    """With 5 of 6 members away the model gets worse, and they return before the guard acts."""
    algorithm = {"name": "batch_gradient", "l2": 1e-6, "optimizer": "gd"}
    faults = [{"round": 3, "lose": 5}, {"round": 9, "return": 5}]
    result = play(algorithm=algorithm, faults=faults, stop={"rounds": 12})
    rows = dict(zip(column(result, "round"), column(result, "objective"), strict=True))
    X, y = source_rows()
    known, away = (
        np.logaddexp(0.0, -y * (X @ result.snapshots[r]["coef"][0])).mean() for r in (3, 8)
    )
    assert rows[8] < known - 0.05 < away - 0.1  # estimated to be better, and worse
    assert rows[9] <= known + 1e-5


def source_rows():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((240, 5))
    return X, np.sign(X @ rng.standard_normal(5) + rng.normal(size=240))


def lose_and_return(folder, rounds, limit_bytes, **world):
    """Kill the member of slot 0 in some rounds, with returns between; 92,160 bytes of data."""
    X, y = source_rows()
    table = pa.table({**{f"x{k}": x for k, x in enumerate(X.T)}, "y": y})
    pq.write_table(table, folder / "points.parquet", row_group_size=15)
    faults = [{"round": r, "lose": [0], "phase": "compute"} for r in rounds]
    faults += [{"round": (r + q) // 2, "return": 1} for r, q in itertools.pairwise(rounds)]
    return play(
        {"limit_bytes": limit_bytes, **world},
        read_parquet(folder / "points.parquet", "y"),
        absent="reload",
        chunk_bytes=256,
        members={"start": 4, "min": 1},
        faults=faults,
        stop={"rounds": rounds[-1] + 10},
    )


def test_a_lost_newcomer_leaves_few_blocks_to_be_read_again(tmp_path):
    """With random chunks, each of the others would read almost all blocks."""
    result = lose_and_return(tmp_path, [5, 15, 25], limit_bytes=60_000)
    losses = [r["t"] for r in records_of(result, "MemberLost")]
    read: dict[float, set[tuple[str, str]]] = {t: set() for t in losses}
    for loaded in records_of(result, "ChunksLoaded"):
        if loaded.get("source") is None and loaded["t"] > losses[0]:
            blocks = {name.partition(".")[0] for name in loaded["chunks"].split()}
            after = max(t for t in losses if t < loaded["t"])
            read[after] |= {(loaded["member"], block) for block in blocks}
    assert [len(blocks) for blocks in read.values()] == [6, 6, 6]


@pytest.mark.parametrize(("limit_bytes", "keep"), [(60_000, False), (93_000, True)])
def test_givers_with_memory_for_all_data_keep_the_bodies_of_a_newcomers_chunks(
    tmp_path, limit_bytes, keep
):
    """The newcomer is lost in round 45; reading its chunks takes .6 s."""
    result = lose_and_return(tmp_path, [5, 45], limit_bytes, read_bandwidth=1e4)
    first, second = (r["t"] for r in records_of(result, "MemberLost"))
    loaded = [r["t"] for r in records_of(result, "ChunksLoaded")]
    assert min(t for t in loaded if t > first) > first + 0.6
    assert (max(loaded) < second + 0.6) == keep


def test_a_notice_with_too_little_grace_saves_what_can_be_saved():
    # The network is far slower than the driver assumes, so that the end comes during the moves.
    faults = [{"round": 10, "lose": [5], "how": "notice", "grace": 0.1}]
    result = play({"bandwidth": 1e5}, faults=faults, stop={"rounds": 12})
    saved = sum(r["examples"] for r in records_of(result, "ChunksMoved") if r["round"] >= 10)
    (absent,) = records_of(result, "ChunksAbsent")
    assert 0 < saved < 40
    assert saved + absent["examples"] == 40
    assert [r["reason"] for r in records_of(result, "MemberLost")] == ["closed"]


def test_a_paused_member_is_fenced_and_returns_with_its_chunks():
    world = {
        "latency_s": 0.05,
        "trace": [{"at": 3.0, "lose": [5], "how": "pause", "away": 10.0}],
    }
    result = play(world, collective={"topology": "star", "deadline": 1.0}, stop={"rounds": 120})
    (lost,) = records_of(result, "MemberLost")
    assert (lost["member"], lost["reason"]) == ("5.1", "deadline")
    (back,) = records_of(result, "GroupReturned")
    assert back["members"] == ["5.2"]
    (joined,) = [r for r in records_of(result, "MemberJoined") if r["member"] == "5.2"]
    # Nothing had to be read again: one command down, one event up, then the round's end.
    assert back["t"] - joined["t"] < 1.0
    assert result.summary["moved_bytes"] == 0


def test_a_job_to_which_no_member_returns_reports_it():
    faults = [{"round": 5, "lose": 6}]
    with pytest.raises(JobFailedError, match="is stuck since second"):
        play({"quiet_s_max": 5.0}, absent="stall", faults=faults, stop={"rounds": None})


def test_a_job_to_which_members_return_later_than_that_goes_on():
    world = {"quiet_s_max": 5.0, "trace": [{"at": 0.01, "lose": 6, "away": 20.0}]}
    result = play(world, absent="stall")
    assert (result.state, result.summary["rounds"]) == ("done", 30)
    assert result.story[-1]["t"] > 20.0


@pytest.mark.parametrize("absent", ["stall", "taylor"])
def test_cluster_that_grew_and_shrank_to_its_start_has_all_examples_again(absent):
    # Two groups were absent and three members came: the second group waited for ever.
    trace = [
        {"at": 1, "grant": 2},
        {"at": 2, "lose": [0, 1, 2]},
        {"at": 2.001, "lose": [3, 4]},
        {"at": 3, "grant": 3},
    ]
    world = {"compute_s": 5e-3, "start_s": 0.1, "tick_s": 0.1, "trace": trace}
    members = {"start": 5, "min": 1}
    result = play(world, members=members, absent=absent, stop={"rounds": 400, "seconds": 60})
    assert column(result, "absent_examples")[-1] == 0
    assert column(result, "members")[-1] == 5


def test_planned_newcomers_get_their_group_however_long_a_round_takes():
    # For a minute no member came; the active members took the group over, and `stall`, which waits
    # for the planned return, continued with half of the members.
    faults = [{"round": 5, "lose": 3}, {"round": 15, "return": 3}]
    world = {"overhead_s": 8.0, "tick_s": 1.0}
    result = play(world, faults=faults, absent="stall", stop={"rounds": 20})
    assert returned(result) == [(15, ["3.2", "4.2", "5.2"])]
    assert records_of(result, "GroupReturned")[0]["absent_s"] > 60
    # Without a plan the active members take over absent chunks.
    (taken,) = records_of(play(world, faults=faults[:1], stop={"rounds": 20}), "GroupReturned")
    assert {str(m) for m in taken["members"]} == {"0.1", "1.1", "2.1"}


@pytest.mark.parametrize("absent", ["reload", "taylor"])
def test_chunks_that_fit_no_memory_stay_absent_until_a_member_joins(absent):
    # They were sent regardless, and the job ended in an error.
    costs = {"rows": 6000, "row_bytes": 1000, "columns": 10, "chunks_per_member": 4}
    faults = [{"round": 5, "lose": 3}, {"round": 10, "return": 3}]
    result = simulate(
        record(faults=faults, absent=absent, stop={"rounds": 20}, evaluate=None),
        options=options_from_section(
            {"limit_bytes": 1_300_000, "costs": costs, "overhead_s": 5.0, "tick_s": 1.0}
        ),
        check_every_event=True,
    )
    assert (result.error, result.rows[-1]["absent_examples"]) == (None, 0)
    lacking = [r["lacking_bytes"] for r in records_of(result, "GroupWithoutRoom")]
    # Three members with 1.0 of 1.3 MB in use are asked to take 3 MB.
    bodies = 24 * hollow_body(250, 1000).nbytes
    assert lacking == ([bodies - 3 * 1_300_000] if absent == "reload" else [])
    assert [r["round"] for r in records_of(result, "GroupReturned")] == [10]


def test_long_sketches_of_dissimilar_members_fence_no_member():
    """They take 65 times as long as a survey, far beyond the shortest deadline, and succeed."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((240, 5)) * [1.0, 4.0, 1.0, 1.0, 1.0]
    X = X[np.argsort(np.abs(X[:, 1]))]
    source = from_arrays(X, np.sign(X @ rng.standard_normal(5) + rng.normal(size=240)))
    faults = [{"round": 8, "lose": 1}, {"round": 12, "return": 1}]
    world = {"compute_s": {"survey": 0.01, "sketch": 0.65, "other": 0.01}}
    result = play(world, source, absent="auto", faults=faults)
    took = [
        r["t"] - r["start_t"] for r in records_of(result, "ExchangeEnded") if "sketch" in r.values()
    ]
    assert len(took) >= 4
    assert min(took) > 2 * 10.0
    assert [r["reason"] for r in records_of(result, "MemberLost")] == ["closed"]
    assert [row["curvature_from"] for row in result.rows[8:12]] == ["nystrom 1"] * 4


def test_newcomers_that_compile_their_kernels_hold_up_no_round():
    taken = {"at": 9.0, "lose": 2, "how": "kill", "away": 0.5}
    world = {"warm_up_s": 8.0, "compute_s": 2e-3, "start_s": 0.1, "trace": [taken]}
    algorithm = {"name": "batch_gradient", "l2": 1e-2, "mode": "paper", "roll_back": 0}
    result = play(world, algorithm=algorithm, stop={"seconds": 20})
    begun = records_of(result, "RoundStarted")[0]
    assert 8.0 <= begun["t"] < 8.5  # the first round waits for all
    back = [r for r in records_of(result, "MemberJoined") if r["t"] > 9.0]
    active = [r for r in records_of(result, "MemberActive") if r["t"] > 9.0]
    assert len(back) == len(active) == 2
    assert min(r["t"] for r in active) >= back[0]["t"] + 8.0
    ends = [r["t"] for r in records_of(result, "RoundEnded")]
    assert max(b - a for a, b in itertools.pairwise(ends)) < 1.0
