"""Studies with real solvers in one process and modelled time, in units of an epoch.

One unit is one pass of one member over all examples. A round takes as long as the member with the
most of them (times its slowness), and an overhead c; certificates and the network are free.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticml.data.chunks.rows import OVERHEAD_BYTES
from elasticml.data.readers.arrays import ArraySource
from elasticml.errors import JobFailedError
from elasticml.sim.simulation import Simulation
from elasticml.specification.simulator import Granted, Taken, WorldOptions

#: What a scale event costs in the study's figures, in units.
SCALE_UNITS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run of a study."""

    #: CoCoA's settings with its ``name``, as in a job.
    algorithm: Mapping[str, Any]
    members: int
    #: Entries as in a job; a study has no other policies.
    policies: tuple[Mapping[str, Any], ...] = ()
    #: Approximate number of chunks.
    chunks: int = 128
    partitions: int | None = None
    placement: str = "random"
    holders: int = 1
    #: Units of a round that do not depend on its examples: the study's c.
    overhead: float = 0.0
    #: Slot -> how many times longer its member takes.
    slow: Mapping[int, float] = field(default_factory=dict)
    #: Members that join and leave; times in units.
    trace: tuple[Taken | Granted, ...] = ()
    #: Cost of a change in the number of members, in units.
    scale_units: float = SCALE_UNITS
    #: Stop at this certified gap, or after this many rounds, units or real seconds.
    gap: float = 1e-8
    rounds_max: int = 2000
    units_max: float | None = None
    wall_s_max: float = math.inf
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The state after a round."""

    rounds: int
    #: Units since the first round began, including scale events.
    units: float
    #: Units times present members.
    member_units: float
    #: Of the round that has ended.
    members: int
    #: Smallest primal less largest dual value so far, certified.
    gap: float
    primal: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A change in the number of members."""

    rounds: int
    units: float
    before: int
    after: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The cost to reach a gap."""

    rounds: int
    units: float
    member_units: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A run as its figures show it."""

    points: tuple[Point, ...]
    scaled: tuple[Scaled, ...]
    story: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    #: Real seconds of the computation.
    wall_s: float

    def to(self, gap: float) -> Reached | None:
        """Return the cost to reach a gap; None if the run did not."""
        for point in self.points:
            if point.gap <= gap:
                return Reached(
                    rounds=point.rounds, units=point.units, member_units=point.member_units
                )
        return None

    @property
    def end(self) -> Point:
        """The state after the last round."""
        return self.points[-1]


def study(plan: Plan, source: ArraySource) -> Curve:
    """Run a plan to its end.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    simulation = Simulation(record_of(plan, source), source, options=world_of(plan, source))
    began_s = time.perf_counter()
    for _ in simulation.run():
        if time.perf_counter() - began_s > plan.wall_s_max:
            simulation.cancel()
    result = simulation.result()
    if result.error is not None:
        raise JobFailedError(f"a study's run failed: {result.error['message']}")
    wall_s = time.perf_counter() - began_s
    return curve(result.story, result.rows, scale_units=plan.scale_units, wall_s=wall_s)


def world_of(plan: Plan, source: ArraySource) -> WorldOptions:
    """Make the world in which a second is a unit, and only passes take time."""
    assert source.rows is not None
    return WorldOptions(
        seed=plan.seed,
        latency_s=0.0,
        bandwidth=1e18,
        read_bandwidth=1e18,
        copy_bandwidth=1e18,
        merge_s=0.0,
        start_s=0.0,
        tick_s=0.05,
        compute_s={"pass": 1.0 / len(source.rows.labels), "other": 0.0},
        overhead_s={"pass": plan.overhead},
        slow=plan.slow,
        trace=plan.trace,
    )


def curve(
    story: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    *,
    scale_units: float = SCALE_UNITS,
    wall_s: float = 0.0,
) -> Curve:
    """Read a run's curve from its story and history.

    A row's gap is that at the beginning of its round, so that the next row's gap belongs to its
    end. Every change in the number of members costs ``scale_units``.
    """
    start_s = next(r["t"] for r in story if r["event"] == "DataDealt")
    points: list[Point] = []
    scaled: list[Scaled] = []
    primal, dual = math.inf, -math.inf
    member_units, before_s, extra = 0.0, start_s, 0.0
    for row, after in itertools.pairwise(rows):
        members = int(row["members"])
        if points and members != points[-1].members:
            extra += scale_units
            member_units += scale_units * max(members, points[-1].members)
            scaled.append(
                Scaled(
                    rounds=points[-1].rounds,
                    units=before_s - start_s + extra,
                    before=points[-1].members,
                    after=members,
                )
            )
        member_units += members * (row["seconds"] - before_s)
        before_s = row["seconds"]
        if after.get("gap") is not None:
            primal = min(primal, float(after["objective"]))
            dual = max(dual, float(after["objective"]) - float(after["gap"]))
        points.append(
            Point(
                rounds=len(points) + 1,
                units=before_s - start_s + extra,
                member_units=member_units,
                members=members,
                gap=primal - dual,
                primal=primal,
            )
        )
    return Curve(points=tuple(points), scaled=tuple(scaled), story=story, rows=rows, wall_s=wall_s)


def record_of(plan: Plan, source: ArraySource) -> dict[str, Any]:
    """Return a plan as a job record."""
    nbytes = sum(block.nbytes for block in source.blocks())
    return {
        "version": 1,
        "job": "study",
        "name": "study",
        "chunk_bytes": OVERHEAD_BYTES + nbytes // plan.chunks,
        "algorithm": {"gap_every": 1, "seed": plan.seed, **plan.algorithm},
        "absent": "reload",
        "stop": {"rounds": plan.rounds_max, "gap": plan.gap, "seconds": plan.units_max},
        "seed": plan.seed,
        "faults": [],
        "collective": {"topology": "star"},
        "members": {"start": plan.members, "min": 1},
        "evaluate": None,
        "holders": plan.holders,
        "placement": plan.placement,
        "partitions": plan.partitions,
        "policies": [dict(entry) for entry in plan.policies],
    }
