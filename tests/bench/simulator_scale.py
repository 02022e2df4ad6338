"""Time the simulator with thousands of members that leave and return, without data and solvers.

    python -m tests.bench simulator_scale [--members 10000] [--rounds 100] [--probes 0]
        [--topology tree] [--moments 10] [--share 0.005] [--rate 0] [--undisturbed]
        [--json FILE]

The members of the trace are lost in groups, spread over the run, and return some rounds later;
with ``--rate`` others are pre-empted at random, with ``--undisturbed`` none is lost. One line a
run: members, rounds, losses, returns, chunks moved, events, processor seconds (the machine may be
busy), of which milliseconds of the driver machine in a round (the median, and the most of any after
the first), the peak of memory, and the digest of the story.
``python -m tests.bench --against CHECKOUT simulator_scale`` compares two checkouts: the word
``story`` must be equal.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from elasticml.control.driver import Driver
from elasticml.protocol.events import RoundFinished
from elasticml.sim.simulation import Simulation
from tests.bench import harness

#: Approximate seconds of a round with 1000 examples per member.
ROUND_S = 0.6


def trace(members: int, rounds: int, moments: int, share: float, path: Path) -> str:
    """Write a trace of pre-emptions, the same for the same arguments; return its path.

    At each of ``moments`` it takes a share of all members.
    """
    rng = random.Random(f"{members}.{rounds}")
    lines = ["time,slot,away"]
    for k in range(moments):
        at = round((k + 0.5) * rounds * ROUND_S / moments, 3)
        for slot in rng.sample(range(members), max(1, int(share * members))):
            lines.append(f"{at},{slot},{rng.choice((2.0, 5.0))}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def record(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """Return the job's record."""
    from elasticml.sim.preemption_trace import read_preemptions

    # Entry by entry: an older checkout may not read the file's format.
    path = trace(args.members, args.rounds, args.moments, args.share, file)
    entries = read_preemptions(path)
    chance = {"rate": args.rate, "away": [2, 8], "count": 10} if args.rate else None
    return {
        "job": "scale",
        "name": "scale",
        "data": {},
        "algorithm": {"name": "batch_gradient"},
        "members": {"start": args.members},
        "collective": {"topology": args.topology, "fan_out": args.fan_out},
        "absent": "auto",
        "policies": [],
        "faults": [],
        "stop": {"rounds": args.rounds},
        "seed": 0,
        "simulate": {
            "seed": 1,
            "costs": {
                "rows": 1000 * args.members,
                "columns": 10_000,
                "chunks_per_member": 4,
                "probes": args.probes,
            },
            "compute_s": 5e-4,
            "jitter": 0.1,
            "hosts": max(1, args.members // 50),
            "trace": [] if args.undisturbed else entries,
            "preemption": chance,
        },
    }


def timed_driver() -> list[float]:
    """Have the driver machine add its processor seconds at the end of each round to a list."""
    handle, spent_s, ends_s = Driver.handle, 0.0, [0.0]

    def timed(self: Driver, event: Any, now_s: float) -> Any:
        nonlocal spent_s
        began_s = time.thread_time()
        commands = handle(self, event, now_s)
        spent_s += time.thread_time() - began_s
        if isinstance(event, RoundFinished):
            ends_s.append(spent_s)
        return commands

    Driver.handle = timed  # type: ignore[method-assign]
    return ends_s


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job; return its figures."""
    ends_s = timed_driver()
    gc.set_threshold(1_000_000, 50, 100)  # as ``elasticml simulate`` does
    began_s, simulation = time.process_time(), Simulation(job)
    for batch in simulation.run():
        for entry in batch:
            if entry["event"] == "RoundEnded" and entry["round"] % 10 == 9:
                spent_s = time.process_time() - began_s
                print(f"  round {entry['round'] + 1}: {spent_s:.1f} s", file=sys.stderr, flush=True)
    seconds = time.process_time() - began_s
    result = simulation.result()
    driver_ms = [1e3 * (b - a) for a, b in itertools.pairwise(ends_s[1:])]
    story = json.dumps([result.state, result.story, result.rows]).encode()
    return {
        "members": job["members"]["start"],
        "rounds": result.summary["rounds"],
        "lost": result.summary["lost"],
        "returned": result.summary["returned"],
        "chunks_moved": result.summary["chunks_moved"],
        "absent_examples_max": max(row["absent_examples"] for row in result.rows),
        "events": result.actions,
        "cpu_s": round(seconds, 2),
        # The first round includes the loading.
        "driver_ms": round(statistics.median(driver_ms), 2),
        "driver_ms_max": round(max(driver_ms), 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "us_per_event": round(1e6 * seconds / result.actions, 2),
        "story": hashlib.sha256(story).hexdigest()[:16],
    }


def main(
    *,
    members: int = 10_000,
    rounds: int = 100,
    probes: int = 0,
    topology: Literal["tree", "star"] = "tree",
    fan_out: int = 2,
    moments: int = 10,
    share: float = 0.005,
    rate: float = 0.0,
    undisturbed: bool = False,
    json: Path | None = None,
) -> None:
    """Run the job and print its figures.

    ``probes``: small exchanges after each gradient; ``moments``: times at which members are lost,
    ``share`` of all each time; ``rate``: pre-emptions a second, by chance.
    """
    with tempfile.TemporaryDirectory() as folder:
        args = argparse.Namespace(
            **{k: v for k, v in locals().items() if k not in ("folder", "json")}
        )
        figures = run(record(args, Path(folder) / "trace.csv"))
    harness.report(figures)
    if json:
        harness.report(figures, json)
