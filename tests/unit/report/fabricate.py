"""Fabricated run directories that look like real ones: 14 members, 7 killed, 7 back."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROWS, FEATURES, CHUNKS = 70_000, 47_028, 896
COLUMNS = (
    "round seconds objective gap step members absent_examples stand_ins moved_bytes sent_bytes "
    "objective_kind line_search_steps objective_full test_auprc test_auroc test_accuracy "
    "test_logloss"
).split()
OPTIMUM = 0.0279


@dataclass
class Fabricated:
    """The content of a fabricated run before it is written."""

    records: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def fabricate_run(
    path: Path,
    *,
    members: int = 14,
    rounds: int = 300,
    lose: int = 7,
    at: int = 100,
    back: int = 200,
    absent: str = "taylor",
    how: str = "kill",
    test: bool = True,
    finished: bool = True,
    seed: int = 0,
) -> Path:
    """Write a run directory as an elastic batch gradient job would have; return its path."""
    made = fabricate(
        members=members, rounds=rounds, lose=lose, at=at, back=back, absent=absent, how=how,
        test=test, seed=seed,
    )  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    (path / "story.jsonl").write_text("".join(json.dumps(r) + "\n" for r in made.records))
    with (path / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(made.rows)
    if finished:
        (path / "summary.json").write_text(json.dumps(made.summary))
    (path / "job.yaml").write_text(
        f"name: splice-{absent}\nalgorithm: {{name: batch_gradient, loss: logistic, optimizer: gd,"
        f" l2: 1.4e-3}}\nabsent: {absent}\nfaults: [{{round: {at}, lose: {lose}, how: {how}}},"
        f" {{round: {back}, return: {lose}}}]\n"
    )
    return path


def gap_at(r: int, absent: str, at: int, back: int, lose: int) -> tuple[float, float]:
    """Full-data gap at round r, and the driver's estimate of it."""

    def quiet(k: float) -> float:
        return 0.62 * math.exp(-k / 5) + 0.034 * math.exp(-k / 22) + 0.0048 * math.exp(-k / 75)

    if not lose or r <= at or absent == "none":
        return (quiet(r), quiet(r))
    away = min(r, back) - at
    after = max(r - back, 0)
    if absent == "stall":
        return (quiet(at + after), quiet(at + after))
    if absent == "taylor":
        full = quiet(at + 1.25 * away - 1 + after)
        return (full, full * (0.8 if r < back else 1.0))
    drift = 0.0016 * (1 - math.exp(-away / 40)) * math.exp(-after / 12)
    full = quiet(at + 0.9 * away + after) + drift
    return (full, quiet(at + away) - 1e-3 if after == 0 and r < back else full)


class _World:
    """Virtual time and the story so far."""

    def __init__(self, members: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.t = 0.0
        self.made = Fabricated()
        self.life = dict.fromkeys(range(members), 0)
        self.here = set(range(members))
        self.speed = 1.0 + 0.25 * self.rng.random(members)
        self.moved = self.sent = 0

    def tell(self, event: str, **fields: Any) -> None:
        self.made.records.append({"t": round(self.t, 4), "event": event, **fields})

    def name(self, slot: int) -> str:
        return f"{slot}.{self.life[slot]}"

    def exchange(self, number: int, r: int, phase: str, lost: set[int], total: int) -> None:
        start, working = self.t, self.here - lost
        compute = {
            str(slot): round(0.021 * self.speed[slot] * (1 + 0.15 * self.rng.random()), 5)
            for slot in sorted(working)
        }
        self.t += max(compute.values(), default=0.0) + 0.006 + 0.003 * self.rng.random()
        self.sent += 8 * FEATURES * len(working) * 2
        examples = ROWS * len(working) // total
        self.tell(
            "ExchangeEnded", exchange=number, round=r, operation="value_and_gradient",
            phase=phase, start_t=round(start, 4), contributors=hex(sum(1 << s for s in working)),
            missing=hex(sum(1 << s for s in lost)), compute_s=compute, examples=examples,
            absent_examples=ROWS - examples, cause=f"round {r}",
        )  # fmt: skip


def fabricate(
    *, members: int, rounds: int, lose: int, at: int, back: int, absent: str, how: str,
    test: bool, seed: int,
) -> Fabricated:  # fmt: skip
    """Write the story of one run and tabulate it."""
    world = _World(members, seed)
    _begin(world, absent, members)
    victims = set(range(0, members, 2)) if 2 * lose == members else set(range(lose))
    number = 0
    for r in range(rounds):
        if r == back and victims - world.here:
            _return(world, r, sorted(victims - world.here))
        world.tell("RoundStarted", round=r, cause=f"round {r}")
        lost: set[int] = set()
        if r == at and lose:
            lost = _lose(world, r, victims, how, members)
        for phase in ("compute", "correct") if lost and how == "kill" else ("compute",):
            number += 1
            world.exchange(number, r, phase, lost, members)
            world.here -= lost
            lost = set()
        _row(world, r, rounds, absent, at, back, lose, test, members)
        world.tell("RoundEnded", **world.made.rows[-1])
    _row(world, rounds, rounds, absent, at, back, lose, test, members)
    world.tell("JobEnded", round=rounds, state="done", reason="stopped as asked", converged=False,
               cause="trainer")  # fmt: skip
    _summarise(world, rounds, members, lose, absent, test)
    return world.made


def _begin(world: _World, absent: str, members: int) -> None:
    spec = {
        "version": 1, "package": "0.1.0", "name": f"splice-{absent}",
        "data": {"format": "sequences", "path": "acceptor.tsv", "alphabet": "ACGT",
                 "ngrams": [1, 4]},
        "algorithm": {"name": "batch_gradient", "loss": "logistic", "l2": 1.4e-3,
                      "optimizer": "gd", "step": "line_search", "anchor": "correction"},
        "absent": absent, "policies": [], "seed": 0, "stop": {"rounds": 300},
        "collective": {"topology": "auto", "fan_out": 2, "transport": "auto"},
    }  # fmt: skip
    world.tell("JobStarted", job="j1", name=f"splice-{absent}", spec=spec,
               versions={"elasticml": "0.1.0", "python": "3.11.2", "numpy": "2.3.1"})  # fmt: skip
    for slot in range(members):
        world.t += 0.004
        world.tell("MemberJoined", member=world.name(slot), host="node-1", pid=4000 + slot,
                   cause="worker joined")  # fmt: skip
    for slot in range(members):
        world.t += 0.05 * world.rng.random()
        world.tell("MemberActive", member=world.name(slot), chunks=CHUNKS // members,
                   examples=ROWS // members, round=0, cause="loaded")  # fmt: skip
    world.t += 0.02
    world.tell("DataLoaded", rows=ROWS, features=FEATURES, chunks=CHUNKS,
               bytes=10_430_000, notes=["3 rows with an unknown letter were skipped"],
               cause="all blocks read")  # fmt: skip


def _lose(world: _World, r: int, victims: set[int], how: str, members: int) -> set[int]:
    cause = f"fault of the job file at round {r}"
    world.tell(
        "FaultInjected",
        round=r,
        kind="lose",
        how=how,
        phase="compute",
        members=[world.name(slot) for slot in sorted(victims)],
        cause=cause,
    )
    if how == "notice":
        for slot in sorted(victims):
            world.tell("MemberNoticed", member=world.name(slot), grace_s=5.0, round=r, cause=cause)
        for slot in sorted(victims):
            world.t += 0.03
            world.moved += 745_000
            world.tell("ChunksMoved", source=world.name(slot), target=world.name(slot + 1),
                       chunks=64, bytes=745_000, seconds=0.028, round=r, cause=cause)  # fmt: skip
    for slot in sorted(victims):
        world.t += 0.001
        reason = "killed" if how == "kill" else "noticed"
        world.tell("MemberLost", member=world.name(slot), reason=reason, round=r, cause=cause)
    if how == "notice":
        world.here -= victims
        return set()
    names = [world.name(slot) for slot in sorted(victims)]
    world.tell("ChunksAbsent", group=1, chunks=CHUNKS * len(victims) // members, members=names,
               examples=ROWS * len(victims) // members, round=r, cause=cause)  # fmt: skip
    return set(victims)


def _return(world: _World, r: int, slots: list[int]) -> None:
    cause = f"fault of the job file at round {r}"
    world.tell("FaultInjected", round=r, kind="return", count=len(slots), cause=cause)
    for slot in slots:
        world.t += 0.015
        world.life[slot] += 1
        world.tell("MemberJoined", member=world.name(slot), host="node-1", pid=5000 + slot,
                   round=r, cause=cause)  # fmt: skip
    for slot in slots:
        world.t += 0.03 * world.rng.random()
        world.tell("MemberActive", member=world.name(slot), chunks=64, examples=5000, round=r,
                   cause="chunks read again")  # fmt: skip
        world.here.add(slot)
    world.tell("GroupReadmitted", group=1, members=[world.name(slot) for slot in slots], round=r,
               why=f"{len(slots)} members free, {len(slots)} needed", cause=cause)  # fmt: skip
    world.tell("GroupReturned", group=1, chunks=448, examples=35_000, round=r, cause=cause)


def _row(
    world: _World, r: int, rounds: int, absent: str, at: int, back: int, lose: int, test: bool,
    members: int,
) -> None:  # fmt: skip
    lost = members - len(world.here)
    full, believed = gap_at(r, absent, at, back, lose)
    away = bool(lost) and world.moved == 0
    row: dict[str, Any] = dict.fromkeys(COLUMNS, None)
    row |= {
        "round": r, "seconds": round(world.t, 4),
        "step": 0.5 + 0.4 * math.sin(r / 3) ** 2,
        "objective": OPTIMUM + believed, "members": len(world.here),
        "objective_kind": "estimated" if away else "exact",
        "absent_examples": ROWS * lost // members if away else 0, "stand_ins": int(away),
        "moved_bytes": world.moved, "sent_bytes": world.sent, "line_search_steps": 1 + r % 3,
    }  # fmt: skip
    if r % 10 == 0 or r in (1, 2, 5, 99, 199, rounds):
        row["objective_full"] = OPTIMUM + full
        if test:
            auprc = 0.9265 - 0.17 * math.sqrt(full) * (1 + 0.4 * math.sqrt(full))
            row |= {"test_auprc": auprc, "test_auroc": 1 - (1 - auprc) / 4,
                    "test_accuracy": 0.97, "test_logloss": 0.05 + full}  # fmt: skip
    world.made.rows.append(row)


def _summarise(
    world: _World, rounds: int, members: int, lose: int, absent: str, test: bool
) -> None:
    last = world.made.rows[-1]
    stood_in = sum(1 for row in world.made.rows if row["stand_ins"])
    world.made.summary = {
        "name": f"splice-{absent}", "rounds": rounds, "seconds": last["seconds"],
        "objective": last["objective_full"] or last["objective"], "gap": None,
        "gap_is_bound": False, "converged": False,
        "stopped_by": "stopped as asked", "examples": ROWS,
        "features": FEATURES, "train": {"accuracy": 0.991},
        "test": {"accuracy": 0.97, "auroc": 0.98, "auprc": last["test_auprc"], "logloss": 0.05}
        if test else {},
        "members": {"start": members, "min": members - lose, "end": len(world.here)},
        "lost": lose, "returned": lose, "stand_in_rounds": stood_in, "chunks_moved": 0,
        "moved_bytes": world.moved, "run_dir": "runs/fabricated",
    }  # fmt: skip
