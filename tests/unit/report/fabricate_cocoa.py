"""A fabricated run of CoCoA: balanced, scaled in at a knee, its gap a bound for a while."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

ROUNDS, MEMBERS, ROWS = 30, 4, 1000
KNEE, BOUND = 20, range(10, 14)
COLUMNS = (
    "round seconds objective gap gap_is_bound step members absent_examples stand_ins moved_bytes"
    " sent_bytes objective_kind"
).split()


def rows_at(r: int) -> dict[str, int]:
    """Examples by slot: slot 3 is relieved round by round; one is left after the knee."""
    if r >= KNEE:
        return {"0": ROWS}
    relieved = min(r, 3) * 40
    options = {str(slot): 250 + relieved // 3 for slot in range(MEMBERS - 1)}
    return {**options, "3": ROWS - sum(options.values())}


def seconds_at(r: int) -> dict[str, float]:
    """Compute seconds by slot: slot 3 is 1.9 times as slow."""
    slow = {"3": 1.9}
    return {slot: 1e-4 * n * slow.get(slot, 1.0) for slot, n in rows_at(r).items()}


def gap_at(r: int) -> float | None:
    """Every other round is certified."""
    return 10.0 ** (-r / 5) if r % 2 == 0 else None


def records() -> list[dict[str, Any]]:
    """Write the story."""
    spec = {"algorithm": {"name": "cocoa", "loss": "hinge"}, "stop": {"rounds": 50, "gap": 1e-6}}
    rows: list[dict[str, Any]] = [{"t": 0.0, "event": "JobStarted", "name": "svm", "spec": spec}]
    for slot in range(MEMBERS):
        rows.append({"t": 0.1, "event": "MemberJoined", "member": f"{slot}.1"})
    t = 1.0
    for r in range(ROUNDS):
        if 1 <= r <= 3:
            rows += _balanced(r, t)
        if r == KNEE:
            rows += _scaled_in(t)
        changed = {} if r > 0 and rows_at(r) == rows_at(r - 1) else {"rows": rows_at(r)}
        rows.append({"t": t, "event": "RoundStarted", "round": r, **changed})
        start, t = t, t + max(seconds_at(r).values()) + 0.01
        rows.append(
            {
                "t": t,
                "event": "ExchangeEnded",
                "round": r,
                "operation": "pass",
                "start_t": start,
                "compute_s": seconds_at(r),
            }
        )
        rows.append({"t": t, "event": "RoundEnded", **row_at(r, t)})
    rows.append({"t": t, "event": "JobEnded", "state": "done", "reason": "gap <= 1e-06"})
    return rows


def _balanced(r: int, t: float) -> list[dict[str, Any]]:
    why = f"slot 3 takes {1.9 - 0.2 * r:.1f} times as long"
    decided = {"t": t, "event": "PolicyDecided", "round": r, "policy": "rebalance"}
    moved = {"t": t, "event": "ChunksMoved", "round": r, "source": "3.1", "target": "0.1"}
    return [
        {**decided, "suggestion": "Move", "chunks": 4, "why": why},
        {**moved, "chunks": 4, "bytes": 4000, "seconds": 0.001},
    ]


def _scaled_in(t: float) -> list[dict[str, Any]]:
    members = ["1.1", "2.1", "3.1"]
    decided = {"t": t, "event": "PolicyDecided", "round": KNEE, "policy": "knee"}
    why = "knee <0.1 against 0.2 decades a round>: 4 members become 1"
    lost = {"t": t, "event": "MemberLost", "round": KNEE, "reason": "retired"}
    return [
        {**decided, "suggestion": "Retire", "members": members, "why": why},
        *({**lost, "member": member} for member in members),
    ]


def row_at(r: int, t: float) -> dict[str, Any]:
    """Return one row of the history."""
    gap = gap_at(r)
    return {
        **dict.fromkeys(COLUMNS),
        "round": r,
        "seconds": round(t, 4),
        "objective": 0.5 + (gap or 0.0),
        "gap": gap,
        "gap_is_bound": r in BOUND,
        "members": len(rows_at(r)),
        "absent_examples": 250 if r in BOUND else 0,
        "stand_ins": 0,
        "moved_bytes": 0,
        "objective_kind": "exact",
    }


def fabricate_cocoa(path: Path) -> Path:
    """Write the run directory and return its path."""
    path.mkdir(parents=True, exist_ok=True)
    rows = records()
    (path / "story.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with (path / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: r.get(name) for name in COLUMNS} for r in rows if r["event"] == "RoundEnded"
        )
    summary = {
        "name": "svm",
        "rounds": ROUNDS,
        "gap": gap_at(28),
        "gap_is_bound": False,
        "retired": 3,
        "container_seconds": 4.25,
        "stopped_by": "gap <= 1e-06",
    }
    (path / "summary.json").write_text(json.dumps(summary))
    return path
