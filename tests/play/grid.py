"""Draws the plans of the fault grid on processes: a seed gives the same plans each time.

The jobs have no tolerance and badly conditioned data, so that they run until ``stop.seconds`` and
are hit. Each kind of fault is drawn on the worlds where it is possible.
"""

from __future__ import annotations

import builtins
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from elasticml.specification.algorithms import has_torch
from tests.play.plan import Fault, Kind, Plan
from tests.play.raising import ERRORS
from tests.play.worlds import can_mount

MEMBERS: Final = 4
#: Seconds without faults at the end of a job, and for its start on a busy machine.
_QUIET_S, _START_S = 20.0, 15.0
_LINEAR: Final = {"scale": "none", "intercept": False, "tolerance": 0.0}
_ROWS: Final = {"rows": 8000, "columns": 40, "condition": 1e4}

#: Jobs: section, rules for absent examples, how near the optimum an undisturbed one gets at least.
_JOBS: Final[tuple[tuple[dict[str, Any], tuple[str, ...], float], ...]] = (
    (
        {"name": "cocoa", "loss": "hinge", "l2": 1e-4, **_LINEAR},
        ("reload", "freeze", "stall"),
        0.05,
    ),
    (
        {"name": "batch_gradient", "loss": "logistic", "optimizer": "gd", "l2": 1e-5, **_LINEAR},
        ("taylor", "reload", "stall"),
        0.8,
    ),
    (
        {"name": "batch_gradient", "loss": "logistic", "optimizer": "lbfgs", "l2": 1e-6, **_LINEAR},
        ("taylor", "reload", "stall"),
        0.05,
    ),
    (
        {
            "name": "primal_cocoa",
            "loss": "squared",
            "l1": 1e-4,
            "l2": 1e-5,
            "intercept": False,
            "tolerance": 0.0,
            "gather": False,
        },
        ("reload", "freeze"),
        0.8,
    ),
)
#: By world: relative frequencies of the faults.
_MIX: Final[Mapping[str, Mapping[Kind, int]]] = {
    "local": {
        "kill": 4,
        "terminate": 2,
        "notice": 1,
        "pause": 4,
        "deaf": 1,
        "memory": 2,
        "descriptors": 3,
        "full_disk": 3,
    },
    "nannies": {"kill": 4, "terminate": 2, "pause": 4, "descriptors": 2, "memory": 1},
    "stock": {
        "kill": 4,
        "terminate": 2,
        "notice": 1,
        "pause": 4,
        "deaf": 1,
        "clock": 1,
        "memory": 1,
        "descriptors": 2,
    },
    "hosts": {
        "one_way": 6,
        "cut": 1,
        "split": 1,
        "lag": 1,
        "loss": 1,
        "throttle": 1,
        "kill": 1,
        "pause": 1,
    },
    "yarn": {"preemption": 3, "kill": 1, "terminate": 1, "node": 1, "resource_manager": 1},
}
#: A member without memory ends its job if a second one has none either.
_MAY_FAIL: Final[Mapping[str, str]] = {
    "memory": r"MemoryError|memory|can't start new thread",
    "descriptors": r"Too many open files|OSError",
    "full_disk": r"No space left|disk|room",
}
_RULES: Final = {
    "ends": 60.0,
    "goes_on": 3,
    "sums": True,
    "truth": True,
    "one_line": True,
    "leaves_nothing": True,
}


def draw(seed: int, on: str) -> Plan:
    """Draw a job under five to nine faults in a world; in one of four the driver is killed.

    Where a cluster ends members within a round, that happens in one of the first rounds.
    """
    rng = random.Random(f"{on} {seed}")
    section, absents, share = rng.choice(_JOBS)
    more: dict[str, Any] = {}
    if on in ("local", "stock") and has_torch() and rng.random() < 0.3:
        section, absents, share = _network(rng)
        more = {"condition": 1.0}
    world: dict[str, Any] = {"on": on, "members": MEMBERS}
    if on == "local" and can_mount():
        world["disk_mib"] = 96
    kinds = [kind for kind in _MIX[on] if kind != "full_disk" or "disk_mib" in world]
    faults = list(_faults(rng, kinds, [_MIX[on][kind] for kind in kinds]))
    last_s = max(fault.at + fault.seconds for fault in faults)
    if on == "local":
        phase = rng.choice(["broadcast", "compute", "reduce", "reduce", "correct", "move"])
        who = tuple(rng.sample(range(MEMBERS), rng.choice([1, 1, 2])))
        faults.append(Fault(kind="phase", at=float(rng.randint(5, 20)), who=who, phase=phase))
    if on != "nannies" and rng.random() < 0.25:
        faults.append(Fault(kind="driver", at=rng.uniform(3.0, 15.0)))
    may_fail = [
        _MAY_FAIL[kind] for kind in sorted(_MAY_FAIL) if any(f.kind == kind for f in faults)
    ]
    job = {
        "chunk_bytes": 65536,
        "data": {**_ROWS, "seed": seed % 3, **more},
        "algorithm": section,
        "absent": rng.choice(absents),
        "stop": {"seconds": _START_S + last_s + _QUIET_S},
        "members": {"min": 1},
        # Hosts in namespaces share the machine's memory, which no fault would hit.
        "collective": {
            "deadline": rng.choice([2.0, 4.0]),
            "transport": "stream" if on == "hosts" else "auto",
            "topology": rng.choice(["auto", "tree", "star"]),
            "fan_out": 2,
        },
        "evaluate": {"every": 100},
        "checkpoint": {"every_s": 0.5},
        "seed": seed,
    }
    rules = {**_RULES, "result": share} | ({"may_fail": "|".join(may_fail)} if may_fail else {})
    return Plan(seed=seed, job=job, world=world, faults=tuple(faults), rules=rules)


def _network(rng: random.Random) -> tuple[dict[str, Any], tuple[str, ...], float]:
    """Draw a network; with the first learning rate no weight changes: losses count examples."""
    rate = rng.choice([1e-30, 0.02])
    section = {
        "name": "local_sgd",
        "model": "torch.nn:Linear",
        "model_options": {"in_features": _ROWS["columns"], "out_features": 2},
        "normalize": "none",
        "batch": 16,
        "local_steps": 4,
        "learning_rate": rate,
    }
    return section, ("reload", "ignore", "stall"), 2.0 if rate < 0.01 else 0.5


def _faults(rng: random.Random, kinds: Sequence[Kind], weights: Sequence[int]) -> Iterator[Fault]:
    at = rng.uniform(0.5, 3.0)
    for kind in rng.choices(kinds, weights, k=rng.randint(5, 9)):
        yield _fault(rng, kind, at)
        at += rng.uniform(0.5, 5.0)


def _fault(rng: random.Random, kind: Kind, at: float) -> Fault:
    n = rng.choice([1, 1, 1, 1, 2, 2, MEMBERS]) if kind in ("kill", "terminate") else 1
    who = tuple(sorted(rng.sample(range(MEMBERS), n)))
    fault = Fault(kind=kind, at=at, who=who, seconds=rng.uniform(1.0, 6.0))
    match kind:
        case "pause":
            # Half of them short, one in eight for up to a minute.
            longest = rng.choice([8.0, 8.0, 8.0, 8.0, 15.0, 15.0, 15.0, 60.0])
            return replace(fault, seconds=rng.uniform(5.0, longest))
        case "notice":
            return replace(fault, grace=rng.uniform(0.5, 4.0))
        case "clock":
            return replace(fault, amount=rng.uniform(-86400.0, 86400.0))
        case "full_disk" | "preemption" | "node" | "resource_manager":
            return replace(fault, who=())
        case "one_way":
            return replace(fault, who=tuple(rng.sample(range(MEMBERS), 2)), seconds=10.0)
        case "split":
            return replace(fault, who=tuple(rng.sample(range(MEMBERS), 2)))
        case "lag":
            return replace(fault, amount=rng.uniform(0.005, 0.5))
        case "loss":
            return replace(fault, amount=rng.uniform(0.01, 0.2))
        case "throttle":
            return replace(fault, amount=rng.uniform(2e4, 1e6))
        case _:
            return fault


# --- the job's own code raises ------------------------------------------------------------------


def fences(error: str) -> bool:
    """Return whether an exception of a solver fences its member, and the job goes on."""
    kind = getattr(builtins, error)
    return issubclass(kind, MemoryError | OSError)


def draw_raising() -> list[Plan]:
    """Return a plan for each builtin exception in a solver, and in a trainer."""
    return [
        _raising(number, error, where)
        for number, (where, error) in enumerate(itertools.product(("solver", "trainer"), ERRORS))
    ]


def _raising(number: int, error: str, where: str) -> Plan:
    goes_on = where == "solver" and fences(error)
    fault = Fault(kind="raise", at=0.3, error=error, phase=where, seconds=30.0)
    job = {
        "chunk_bytes": 65536,
        "data": {**_ROWS, "seed": 0},
        "algorithm": {"name": "tests.play.raising:ALGORITHM", "loss": "squared", "l2": 1e-5}
        | {"step": 15.0},
        "absent": "reload",
        # A job that fails ends when it does.
        "stop": {"seconds": 4.0 if goes_on else 30.0},
        "members": {"min": 1},
        "evaluate": False,
        "seed": number,
    }
    rules: dict[str, Any] = {**_RULES, "result": 1.0}
    del rules["truth"]  # the objective is the algorithm's own
    if not goes_on:
        rules["fails"] = rf"{error}\b.*raising\.py\b.*\d"
    world = {"on": "local", "members": 3}
    return Plan(seed=number, job=job, world=world, faults=(fault,), rules=rules)


# --- damaged bodies -----------------------------------------------------------------------------


def draw_damaged(seed: int) -> Plan:
    """Draw a job whose data's file has a wrong byte: from the start, or when a member is lost."""
    rng = random.Random(f"damaged {seed}")
    section, _, share = _JOBS[seed % 3]
    is_early = rng.random() < 0.5
    at = -1.0 if is_early else 1.0
    faults = [Fault(kind="damage", at=at, amount=rng.uniform(0.05, 0.95), seconds=120.0)]
    if not is_early:
        faults.append(Fault(kind="kill", at=2.0, who=(rng.randrange(MEMBERS),)))
    job = {
        "chunk_bytes": 65536,
        "data": {**_ROWS, "seed": seed % 3, "format": "chunks"},
        "algorithm": section,
        "absent": "reload",
        "stop": {"seconds": 40.0},
        "members": {"min": 1},
        "evaluate": {"every": 100},
        "seed": seed,
    }
    rules = {**_RULES, "result": share, "fails" if is_early else "may_fail": "damaged|checksum"}
    # Out of core, bodies are checked when they are first streamed.
    memory = {"memory": "1 MiB"} if seed % 2 else {}
    world = {"on": "local", "members": MEMBERS, **memory}
    return Plan(seed=seed, job=job, world=world, faults=tuple(faults), rules=rules)
