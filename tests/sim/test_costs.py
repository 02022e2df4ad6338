"""Worlds of many members, in which only costs matter."""

from __future__ import annotations

import itertools

from elasticml.errors import JobFailedError
from elasticml.sim import cost_only_job
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import simulate
from tests.sim.small_jobs import record, records_of

COSTS = {"rows": 100_000, "columns": 5000}


def run(members, world=None, **changes):
    options = options_from_section({"costs": COSTS, "hosts": 4, **(world or {})})
    settings = {"members": {"start": members}, "stop": {"rounds": 20}, "evaluate": None}
    return simulate(record(**{**settings, **changes}), options=options)


def test_the_work_of_a_round_grows_linearly_with_the_members():
    def actions(members, rounds):
        return run(members, stop={"rounds": rounds}).actions

    small, large = (actions(n, 12) - actions(n, 6) for n in (40, 160))
    assert large <= 4.4 * small


def test_a_tree_is_faster_than_a_star_when_many_share_the_drivers_link():
    world = {"costs": {**COSTS, "columns": 1_000_000}}
    star, tree = (
        run(64, world, collective={"topology": topology}, stop={"rounds": 3}).summary["seconds"]
        for topology in ("star", "tree")
    )
    assert tree < 0.5 * star


def test_the_network_carries_the_real_arrays_bytes():
    result = run(8, stop={"rounds": 10})
    per_round = (result.rows[9]["sent_bytes"] - result.rows[4]["sent_bytes"]) / 5
    gradient = 8 * 2 * 8 * COSTS["columns"]
    assert gradient < per_round < 1.1 * gradient


def test_a_sum_with_the_wrong_contributors_ends_the_job(monkeypatch):
    honest = cost_only_job.CostSolver.compute

    def lies(self, work, chunks, parallel):
        arrays = honest(self, work, chunks, parallel)
        return {"sums": arrays["sums"] * 2} if work.exchange == 5 else arrays

    monkeypatch.setattr(cost_only_job.CostSolver, "compute", lies)
    result = run(8)
    assert result.error["kind"] == JobFailedError.__name__
    assert "claims to lack" in result.error["message"]


def test_a_kill_costs_neither_examples_for_long_nor_rounds_when_the_member_is_replaced():
    # 1 GB on 4 members. A kill at 5 s, and a new container at 10 s, which compiles for 1 s.
    world = {
        "costs": {"rows": 10**6, "columns": 1000, "row_bytes": 1000, "chunks_per_member": 16},
        "compute_s": 4e-7,
        "warm_up_s": 1.0,
        "bandwidth": 1.25e9,
        "trace": [{"at": 5.0, "lose": [2], "away": 5.0}],
    }
    result = run(4, world, absent="auto", stop={"seconds": 20.0})
    (returned,) = records_of(result, "GroupReturned")
    assert returned["absent_s"] < 1.0
    assert len(returned["members"]) == 3
    active = [r["t"] for r in records_of(result, "MemberActive") if r["member"] == "2.2"]
    (joined,) = (r["t"] for r in records_of(result, "MemberJoined") if r["member"] == "2.2")
    assert 1.0 < active[0] - joined < 5.0
    # To send the share takes 0.2 s, in which the others compute; three of them need 4/3 of a round.
    ends = [r["t"] for r in records_of(result, "RoundEnded")]
    rounds = [after - before for before, after in itertools.pairwise(ends)]
    bodies = 16 * cost_only_job.hollow_body(15_625, 1000).nbytes
    assert sum(r["bytes"] for r in records_of(result, "ChunksCopied")) == bodies
    assert max(rounds) < 1.1 * 4 / 3 * min(rounds) < min(rounds) + 0.2
