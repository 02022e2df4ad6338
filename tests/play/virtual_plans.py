"""Draws plans for the simulator: a seed gives the same plan each time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.play.plan import SILENT, STUCK_FACTOR_MAX, Fault, Kind, Plan
from tests.play.problems import TOY

#: What must hold after every drawn plan.
RULES: Final[Mapping[str, Any]] = {
    "ends": 0.0,
    "goes_on": 0,
    "sums": True,
    "truth": True,
    "result": 0.1,
    "undeserved": True,
}
#: The job has ended this many round times after its last fault.
_QUIET_ROUNDS: Final = 40

_LINEAR: Final = ("logistic", "squared_hinge")
_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "redeal", "share": 1.0},
    {"name": "rebalance", "tolerance": 0.0, "share": 1.0},
    {"name": "straggler", "factor": 1.5, "confirm": 1},
    {"name": "shuffle", "share": 0.2},
    {"name": "tune_local_work", "window": 2, "cool": 2},
)
_SCALING: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {"name": "knee", "factor": 2, "minimum": 2},
    {"name": "gap_per_container_second", "factor": 2, "window": 2, "probe": 2, "cool": 2},
)
_MOVING: Final = ("redeal", "rebalance", "shuffle")


def draw_plan(seed: int) -> Plan:
    """Draw a plan: half of them exact sums with many members for weeks, half small real jobs."""
    rng = random.Random(seed)
    is_large = rng.random() < 0.5
    n_members = rng.randint(6, 40) if is_large else rng.randint(2, 8)
    # Seconds of an exchange: long ones collect member-years, short ones let messages race.
    round_s = rng.choice([600.0, 1800.0]) if is_large else rng.choice([0.05, 0.3, 1.0, 600.0])
    n_rounds = rng.randint(100, 200) if is_large else rng.randint(30, 80)
    values = _record(rng, seed, n_members, round_s, is_large)
    rows = 1_000_000 if is_large else rng.choice([120, 240])
    data = {"rows": rows, "columns": rng.randint(3, 6), "seed": rng.randrange(4)}
    costs = {
        "rows": rows,
        "row_bytes": 1,
        "columns": rng.choice([10, 1000]),
        "chunks_per_member": rng.randint(1, 4),
        "probes": rng.randint(0, 1),
    }
    # Bytes of a large message: a body, or all rows, which only the driver has.
    unit = rows // n_members if is_large else 8 * rows * (data["columns"] + 1)
    world = _world(rng, seed, n_members, round_s, rows, unit)
    if is_large:
        world["costs"] = costs
    horizon_s = n_rounds * round_s
    values["stop"] = {"seconds": horizon_s + _QUIET_ROUNDS * round_s}
    faults = _faults(rng, n_members, round_s, horizon_s, is_large)
    if values["collective"]["topology"] == "auto":  # asynchronous: there are no phases
        faults = [fault for fault in faults if fault.kind != "phase"]
    # Enough members for the rest: a job that waits for them can end.
    grant_s = horizon_s + 0.3 * _QUIET_ROUNDS * round_s
    faults.append(Fault(kind="grant", at=grant_s, who=tuple(range(n_members))))
    job = {**values, "data": data}
    return Plan(seed=seed, job=job, world=world, faults=tuple(faults), rules=dict(RULES))


def draw_exact_sums(seed: int) -> Plan:
    """Draw a job that fails as soon as a sum is wrong, on few members, whole or in pieces."""
    rng = random.Random(f"sums {seed}")
    n_members, rows = rng.randint(3, 7), 120
    section = {"name": TOY, "rounds": 10**6, "anchor": rng.choice(["cached", "correction"])}
    absent = rng.choice(["taylor", "ignore", "stall", "reload"])
    return _small(
        rng, seed, n_members, rows, section, absent, {"piece_bytes": rng.choice([8, None])}
    )


def draw_nonsense(seed: int) -> Plan:
    """Draw a job of exact sums with a policy that suggests at random, and unusual settings."""
    plan, rng = draw_exact_sums(seed), random.Random(f"nonsense {seed}")
    kinds = rng.sample(["move", "replicate", "discard", "retire", "request", "tune", "readmit"], 4)
    section = {"name": "tests.property.random_policy:RandomPolicy", "seed": seed, "kinds": kinds}
    job = {
        "policies": [section],
        "placement": rng.choice(["contiguous", "random", "readers"]),
        "holders": rng.choice([1, 2]),
    }
    warm_up_s = rng.choice([0.0, 3.0]) * plan.world["tick_s"]
    limit = {"containers_max": len(plan.faults) + 99, "warm_up_s": warm_up_s}
    return replace(plan, job={**plan.job, **job}, world={**plan.world, **limit})


def draw_cocoa(seed: int) -> Plan:
    """Draw a CoCoA job whose policies scale it, or whose members have little memory."""
    rng = random.Random(f"cocoa {seed}")
    n_members, rows = rng.randint(2, 7), 240
    section = {"name": "cocoa", "l2": 1e-2, "loss": rng.choice([*_LINEAR, "hinge"])}
    section |= {"tolerance": 0.0, "mode": rng.choice(["default", "paper"])}
    absent = rng.choice(["auto", "reload", "stall"])
    scaling = rng.choice(_SCALING)
    holders = rng.choice([1, 2])
    room = int(8 * 7 * rows * holders * rng.choice([1.6, 3.0, 5.0]))
    limit = {"limit_bytes": rng.choice([None, room]), "containers_max": n_members + 1}
    plan = _small(rng, seed, n_members, rows, section, absent, limit)
    policies = [p for p in _POLICIES if rng.random() < 0.3] + ([scaling] if scaling else [])
    rules = {**plan.rules, "may_fail": "the chunks on one member take"}
    return replace(plan, job={**plan.job, "holders": holders, "policies": policies}, rules=rules)


def _small(
    rng: random.Random,
    seed: int,
    n_members: int,
    rows: int,
    section: Mapping[str, Any],
    absent: str,
    more: Mapping[str, Any],
) -> Plan:
    """Draw the rest of a small job's plan."""
    round_s = rng.choice([0.05, 0.3, 1.0])
    values = _record(rng, seed, n_members, round_s, is_large=False)
    values |= {"algorithm": section, "absent": absent, "policies": [], "holders": 1}
    values["collective"]["topology"] = rng.choice(["star", "tree", "tree"])
    horizon_s = rng.randint(10, 30) * round_s
    values["stop"] = {"seconds": horizon_s + _QUIET_ROUNDS * round_s}
    faults = _faults(rng, n_members, round_s, horizon_s, is_large=False)
    grant_s = horizon_s + 0.3 * _QUIET_ROUNDS * round_s
    faults.append(Fault(kind="grant", at=grant_s, who=tuple(range(n_members))))
    world = _world(rng, seed, n_members, round_s, rows, 8 * rows * 7)
    data = {"rows": rows, "columns": 6, "seed": rng.randrange(4)}
    return Plan(
        seed=seed,
        job={**values, "data": data},
        world={**world, **more},
        faults=tuple(faults),
        rules=dict(RULES),
    )


def _record(
    rng: random.Random, seed: int, n_members: int, round_s: float, is_large: bool
) -> dict[str, Any]:
    algorithm, absent = _algorithm(rng, round_s)
    if is_large:
        algorithm = {"name": "batch_gradient", "anchor": rng.choice(["cached", "correction"])}
        absent = rng.choice(["taylor", "auto", "ignore", "reload", "stall"])
    is_synchronous = "report_every" not in algorithm
    is_cocoa = algorithm["name"] == "cocoa"
    # A frozen bound stays while chunks change owners in each round.
    policies = [p for p in _POLICIES if absent != "freeze" or p["name"] not in _MOVING]
    return {
        "chunk_bytes": 768,
        "algorithm": algorithm,
        "absent": absent,
        "seed": seed,
        "collective": {
            "topology": rng.choice(["star", "tree", "tree"]) if is_synchronous else "auto",
            "fan_out": rng.randint(1, 3),
            "deadline": round_s * rng.uniform(3.0, 8.0),
            "stuck_factor": rng.choice([5.0, STUCK_FACTOR_MAX]),
        },
        "members": {"start": n_members, "min": rng.choice([1, 1, 2])},
        "holders": rng.choice([1, 2]) if is_cocoa else 1,
        "policies": [p for p in policies if rng.random() < 0.3] if is_cocoa else [],
        "evaluate": {"every": 1},
        "checkpoint": {"path": "virtual", "every_s": 0},
    }


def _algorithm(rng: random.Random, round_s: float) -> tuple[dict[str, Any], str]:
    """Draw an algorithm's section, and what the job does with absent examples."""
    name = rng.choice(["batch_gradient", "cocoa", "primal_cocoa", "async_sgd"])
    section: dict[str, Any] = {"name": name, "tolerance": 0.0}
    if name == "batch_gradient":
        section |= {"l2": 1e-2, "loss": rng.choice([*_LINEAR, "squared"])}
        section["optimizer"] = rng.choice(["gd", "lbfgs", "tron"])
        return section, rng.choice(["taylor", "auto", "ignore", "reload", "stall"])
    if name == "cocoa":
        section |= {"l2": 1e-2, "loss": rng.choice([*_LINEAR, "hinge"])}
        section["gap_every"] = rng.choice([1, 1, "auto"])
        return section, rng.choice(["auto", "reload", "freeze", "stall"])
    if name == "primal_cocoa":
        section |= {"l1": 0.02, "l2": rng.choice([0.0, 0.05]), "loss": "squared"}
        section |= {"intercept": False, "gap_every": rng.choice([1, "auto"])}
        section["gather"] = rng.random() < 0.2
        return section, rng.choice(["reload", "freeze", "stall"])
    settings: dict[str, Any] = {"name": name, "problem": rng.choice(["kmeans", "kmeans", "linear"])}
    settings |= {"k": 3} if settings["problem"] == "kmeans" else {"l2": 1e-2}
    is_batch = settings["problem"] == "kmeans" and rng.random() < 0.5
    absent = "reload" if is_batch else rng.choice(["reload", "ignore"])
    return settings | ({"mode": "batch"} if is_batch else {"report_every": 4.0 * round_s}), absent


def _world(
    rng: random.Random, seed: int, n_members: int, round_s: float, rows: int, unit: int
) -> dict[str, Any]:
    """Draw a world in which a message takes a smaller or larger share of a round's time."""
    # The driver waits two seconds for a sign of life, whatever the time scale.
    message_s = min(0.5, round_s * rng.choice([1e-3, 1e-2, 0.05]))
    return {
        "seed": seed,
        "compute_s": round_s * n_members / rows,
        "latency_s": message_s / 10.0,
        "bandwidth": unit / message_s,
        "copy_bandwidth": 0.2 * unit / message_s,
        "read_bandwidth": 10.0 * unit / round_s,
        "jitter": rng.choice([0.0, 0.3]),
        "tick_s": round_s / 10.0,
        "detect_s": round_s * rng.choice([1e-4, 0.05]),
        "start_s": round_s * rng.uniform(0.1, 1.0),
        "hosts": rng.randint(1, 3),
    }


#: Relative frequencies of the kinds.
_MIX: Final[dict[Kind, int]] = {
    "kill": 8,
    "terminate": 3,
    "notice": 3,
    "broken_notice": 2,
    "vanish": 1,
    "pause": 4,
    "grant": 1,
    "mark": 2,
    "cut": 1,
    "split": 1,
    "lag": 2,
    "loss": 2,
    "throttle": 1,
    "slow": 1,
    "phase": 3,
}


def _faults(
    rng: random.Random, n_members: int, round_s: float, horizon_s: float, is_large: bool
) -> list[Fault]:
    kinds = list(_MIX)
    if rng.random() < 0.4:  # the rule that no healthy member is lost needs plans without them
        kinds = [kind for kind in kinds if kind not in SILENT]
    weights = [_MIX[kind] for kind in kinds]
    rate = rng.uniform(1.0, 4.0) if is_large else rng.uniform(0.1, 1.5)
    begin_s = 0.0 if rng.random() < 0.2 else 2.0 * round_s
    faults, at = [], begin_s
    while (at := at + rng.expovariate(rate / round_s)) < horizon_s:
        kind = rng.choices(kinds, weights)[0]
        faults.append(_fault(rng, kind, at, n_members, round_s))
    if rng.random() < 0.3:
        at = rng.uniform(begin_s, horizon_s)
        faults.append(Fault(kind="driver", at=at, seconds=rng.uniform(0.0, 3.0) * round_s))
    return sorted(faults, key=lambda fault: fault.at)


def _fault(rng: random.Random, kind: Kind, at: float, n_members: int, round_s: float) -> Fault:
    most = n_members if rng.random() < 0.02 else max(1, n_members // 2)
    count = min(most, rng.choice([1, 1, 1, 2, 3, most]))
    who = tuple(sorted(rng.sample(range(n_members), count)))
    fault = Fault(kind=kind, at=at, who=who, seconds=rng.uniform(0.1, 3.0) * round_s)
    match kind:
        case "notice" | "terminate" | "mark" | "broken_notice":
            grace = rng.choice([0.0, rng.uniform(0.1, 4.0) * round_s])
            return replace(fault, grace=grace, amount=rng.uniform(0.0, 0.9))
        case "lag":
            return replace(fault, amount=rng.uniform(0.01, 1.0) * round_s)
        case "loss":
            return replace(fault, amount=rng.uniform(0.01, 0.3))
        case "throttle" | "slow":
            return replace(fault, amount=rng.uniform(2.0, 20.0))
        case "phase":
            phase = rng.choice(["load", "broadcast", "compute", "reduce", "correct", "move"])
            return replace(fault, at=float(int(at / round_s)), phase=phase)
        case _:
            return fault
