"""Policies on the real driver machine and real solvers, in the simulator's time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from elasticml.data.readers.arrays import from_arrays
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import simulate
from examples.papers.support.virtual_study import Curve, Plan, study
from tests.sim.small_jobs import record

GAP = 1e-5
COCOA = {"name": "cocoa", "loss": "hinge", "l2": 0.01}
PAPER = {**COCOA, "mode": "paper"}


@cache
def points() -> Any:
    """Many rows of few columns, few of them positive: data on which CoCoA has a knee."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((2000, 12))
    score = X @ rng.standard_normal(12) / np.sqrt(12) + 0.5 * rng.standard_normal(2000)
    return from_arrays(np.c_[0.15 * X, np.full(2000, 0.3)], np.where(score > 1.5, 1.0, -1.0))


def run(*policies: dict[str, Any], **more: Any) -> Curve:
    plan = {"algorithm": COCOA, "members": 4, "rounds_max": 80, "gap": GAP, "chunks": 64}
    return study(Plan(policies=policies, **{**plan, **more}), points())


def sizes(curve: Curve) -> list[int]:
    return [curve.points[0].members, *(s.after for s in curve.scaled)]


def test_scaling_in_at_knees_takes_less_time_than_keeping_all_members():
    elastic = run({"name": "knee"}, algorithm=PAPER, members=16, overhead=0.05)
    assert sizes(elastic) == [16, 4, 1]
    static = run(algorithm=PAPER, members=16, overhead=0.05)
    # 16 members do not reach the gap in 80 rounds.
    assert static.to(GAP) is None
    assert elastic.to(GAP).units < static.end.units
    assert elastic.to(GAP).member_units < 0.25 * static.end.member_units


@cache
def rounds(n_chunks: int, members: int, slow: float, *policies: str) -> int:
    """Return the rounds of ten seconds on members of which the last is slower."""
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((2400, 5)), rng.choice([-1.0, 1.0], 2400)
    made = record(
        chunk_bytes=48 * 2400 // n_chunks + 100,
        members={"start": members, "min": 1},
        stop={"seconds": 10.0},
        policies=[{"name": name} for name in policies],
        evaluate=None,
    )
    options = options_from_section({"compute_s": 1e-5, "slow": {3: slow}})
    return int(simulate(made, from_arrays(X, y), options=options).summary["rounds"])


@pytest.mark.parametrize(
    ("policies", "n_chunks"),
    [
        (["straggler"], 4),
        (["rebalance"], 100),
        (["straggler", "rebalance"], 4),
        (["straggler", "rebalance"], 100),
    ],
)
def test_a_member_at_a_fiftieth_of_the_others_speed_at_most_halves_the_rounds(policies, n_chunks):
    """All waited for its last chunk, or two policies emptied it, and a third filled it again."""
    assert rounds(n_chunks, 4, 50.0, *policies) > rounds(n_chunks, 3, 1.0) / 2
