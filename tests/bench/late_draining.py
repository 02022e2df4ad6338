"""Notices with a grace: how many members are drained in time, and how much of the grace they work.

A simulated job of members with 512 MiB each gets notices at random moments, one at a time; the
container of a member ends when its grace is over, and another one comes. Members are drained as
late as is safe. With ``--at-once`` they are drained when the notice comes, for comparison.

    python tests/bench/late_draining.py --notices 200
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elasticml.control import preemption
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import simulate
from tests.bench import harness
from tests.sim.small_jobs import record, records_of

MEMBERS, MEMBER_BYTES, CHUNKS = 6, 512 * 2**20, 64
ROW_BYTES = 1000
#: Between the end of a member and the next notice.
PAUSE_S = (15.0, 60.0)


def run(n_notices: int, grace_s: float, bandwidth: float, compute_s: float, seed: int) -> Any:
    rng = random.Random(seed)
    trace, at_s = [], 30.0
    for _ in range(n_notices):
        slot = rng.randrange(MEMBERS)
        entry = {"at": at_s, "reclaim": [slot], "grace": grace_s, "negotiable": False, "away": 1.0}
        trace.append(entry)
        at_s += grace_s + rng.uniform(*PAUSE_S)
    rows = MEMBERS * MEMBER_BYTES // ROW_BYTES
    world = {
        "seed": seed,
        "hosts": MEMBERS,
        "bandwidth": bandwidth,
        "copy_bandwidth": 50e6,
        "compute_s": compute_s,
        "jitter": 0.1,
        "tick_s": 0.1,
        "trace": trace,
        "costs": {
            "rows": rows,
            "columns": 1000,
            "chunks_per_member": CHUNKS,
            "row_bytes": ROW_BYTES,
        },
    }
    made = record(
        members={"start": MEMBERS}, stop={"seconds": at_s, "rounds": 10**9}, evaluate=None
    )
    return simulate(made, options=options_from_section(world))


def measure(result: Any, grace_s: float) -> dict[str, float]:
    losses = records_of(result, "MemberLost")
    unused, in_time, n = [], 0, 0
    for asked in records_of(result, "ContainersAsked"):
        for member in asked["members"]:
            n += 1
            end_s = asked["t"] + grace_s
            lost = next((r for r in losses if r["member"] == member), None)
            if lost is not None and lost["chunks"] == 0 and lost["t"] <= end_s + 0.3:
                in_time += 1
                unused.append(end_s - lost["t"])
    absent = records_of(result, "ChunksAbsent")
    return {
        "notices": n,
        "in_time": in_time / n,
        "unused_median": statistics.median(unused),
        "unused_max": max(unused),
        "chunks_absent": sum(r["chunks"] for r in absent),
        "moved_gib": sum(r["bytes"] for r in records_of(result, "ChunksMoved")) / 2**30,
        "copied_gib": sum(r["bytes"] for r in records_of(result, "ChunksCopied")) / 2**30,
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--notices", type=int, default=200)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--grace", type=float, nargs="*", default=[30.0, 120.0])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.at_once:
        preemption.PUT_OFF_S_MIN = float("inf")
    print("grace  link      round   in time  unused s (median, max)  chunks absent  moved  copied")
    for grace_s in arguments.grace:
        for name, bandwidth in (("1 Gbit/s", 1.25e8), ("10 Gbit/s", 1.25e9)):
            for compute_s in (1e-6, 1e-5):
                result = run(arguments.notices, grace_s, bandwidth, compute_s, arguments.seed)
                if result.error is not None:
                    raise result.error
                seen = measure(result, grace_s)
                rounds_s = compute_s * MEMBER_BYTES / ROW_BYTES
                print(
                    f"{grace_s:4.0f} s  {name:9} {rounds_s:4.1f} s  {seen['in_time']:7.1%}"
                    f"  {seen['unused_median']:8.1f} {seen['unused_max']:8.1f}"
                    f"  {seen['chunks_absent']:13.0f} {seen['moved_gib']:6.1f} GiB"
                    f" {seen['copied_gib']:6.1f} GiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
