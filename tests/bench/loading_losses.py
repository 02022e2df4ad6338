"""How long after ``stop.seconds`` a job ends whose stock workers get SIGTERM while it loads.

    python -m tests.bench.loading_losses [--runs 16] [--seed 3] [--simulated 20000]

Each run starts four stock workers, sends SIGTERM to random ones up to four times, from .5 s before
the job's start to 4 s after it, and starts replacements 20 s later. The job may take 7 s.

``--simulated`` plays as many jobs in the simulator instead. Blocks take up to seconds to read, and
newcomers up to 40 s to come; SIGTERM, SIGKILL, notices, SIGSTOP and cut links hit members while
blocks are read, while facts are fixed, and when a member has just been welcomed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import elasticml as em
from elasticml.clusters.polling import until
from elasticml.control.driver_settings import OVERTIME, OVERTIME_S_MIN
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.play.faults import send
from tests.play.plan import Fault, Kind, Plan
from tests.play.stock_workers import StockWorkers
from tests.play.virtual_world import play_plan

MEMBERS, STOP_S, REPLACED_S, HANGS_S = 4, 7.0, 20.0, 150.0
RULES = ("reload", "taylor", "stall")


def one_run(seed: int, stock: StockWorkers) -> tuple[float, str, int]:
    """Run a job; return its seconds, its last state and the workers that were ended."""
    rng, over, ended = random.Random(seed), threading.Event(), Counter[str]()
    rows = rng.choice([60_000, 400_000])
    job = em.Job(
        em.BatchGradient(l2=1e-2, optimizer="gd", tolerance=0.0, scale="none"),
        synthetic_splice(rows=rows, length=60, seed=seed),
        absent=rng.choice(RULES),
        stop=em.Stop(seconds=STOP_S),
        chunk_size=1 << 18,
        seed=seed,
        members=em.Members(start=MEMBERS),  # waits if all are ended before it starts
        evaluate=False,
    )
    times = sorted(rng.uniform(-0.5, 4.0) for _ in range(rng.randint(1, 4)))
    lead_s = max(0.0, -times[0])

    def terminate(at: float) -> None:
        if over.wait(at):
            return
        here = stock.workers()
        victims = rng.sample(here, rng.randint(1, len(here))) if here else []
        for worker in victims:
            send(worker.pid, signal.SIGTERM)
        ended["workers"] += len(victims)

    def replace(at: float) -> None:
        if not over.wait(at):
            stock.bring_back(MEMBERS - len(stock.workers()))

    threads = [threading.Thread(target=terminate, args=(at + lead_s,)) for at in times]
    threads.append(threading.Thread(target=replace, args=(times[0] + lead_s + REPLACED_S,)))
    for thread in threads:
        thread.start()
    time.sleep(lead_s)
    handle, began_s = job.start(stock.client), time.monotonic()
    until(lambda: handle.status().is_over, wait_s=HANGS_S, every_s=0.05)
    took_s, status = time.monotonic() - began_s, handle.status()
    over.set()
    for thread in threads:
        thread.join()
    return took_s, status.state, ended["workers"]


KINDS: tuple[Kind, ...] = ("terminate", "terminate", "kill", "notice", "pause", "vanish", "cut")


def plan_of(seed: int) -> Plan:
    """Draw a job of 7 s or five rounds, and 1 to 12 faults of its first 9 s."""
    rng = random.Random(seed)
    rows, members = rng.choice([120, 240]), rng.randint(1, 5)
    algorithm = {"name": "batch_gradient", "optimizer": "gd", "l2": 1e-2, "tolerance": 0.0}
    faults = []
    for _ in range(rng.randint(1, 12)):
        count = rng.randint(1, members)
        faults.append(
            Fault(
                kind=rng.choice(KINDS),
                at=rng.uniform(0.0, 9.0),
                who=tuple(sorted(rng.sample(range(members), count))),
                seconds=rng.choice([rng.uniform(0.1, 5.0), rng.uniform(15.0, 40.0)]),
                grace=rng.choice([0.0, rng.uniform(0.1, 6.0)]),
            )
        )
    faults += [
        Fault(kind="grant", at=rng.uniform(0.0, 30.0), who=tuple(range(rng.randint(1, members))))
        for _ in range(rng.randint(0, 3))
    ]
    return Plan(
        seed=seed,
        job={
            "version": 1,
            "job": f"loading-{seed}",
            "name": "loading",
            "chunk_bytes": rng.choice([768, 3072]),
            "algorithm": {**algorithm, "loss": rng.choice(["logistic", "squared"])},
            "absent": rng.choice(RULES),
            "seed": seed,
            "collective": {
                "topology": rng.choice(["star", "tree"]),
                "fan_out": 2,
                "deadline": rng.choice([1.0, 3.0, 30.0]),
            },
            "members": {"start": members, "min": rng.randint(1, members)},
            "stop": {"seconds": STOP_S, "rounds": 5},
            "data": {"rows": rows, "columns": 4, "seed": seed % 4},
        },
        world={
            "seed": seed,
            "compute_s": rng.choice([1e-5, 1e-3]),
            "latency_s": rng.choice([1e-4, 0.05, 0.3]),
            # All blocks take .2 to 40 s on one member.
            "read_bandwidth": 8 * rows * 5 / rng.choice([0.2, 2.0, 8.0, 40.0]),
            "jitter": rng.choice([0.0, 0.3]),
            "tick_s": rng.choice([0.1, 0.5]),
            "detect_s": rng.choice([0.01, 1.0]),
            "start_s": rng.choice([0.1, 3.0, 20.0]),
        },
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def simulated(seeds: range) -> int:
    """Play the jobs; print what ended late or not at all, and return the number of these."""
    longest_s, late, stages, n_faults = -STOP_S, 0, Counter[str](), 0
    step_s = max(OVERTIME_S_MIN, OVERTIME * STOP_S)
    for seed in seeds:
        plan = plan_of(seed)
        try:
            played = play_plan(plan)
        except (em.ElasticmlError, AssertionError) as error:
            late += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        else:
            past_s = played.world.environment.clock.now_s - STOP_S
            n_faults += played.faults.total()
            stages[f"{played.result.state}, {'some' if played.result.rows else 'no'} rounds"] += 1
            longest_s = max(longest_s, past_s)
            if past_s > step_s + 2.0 * plan.world["tick_s"]:
                late += 1
                print(f"seed {seed}: {played.result.state}, {past_s:+.2f} s", flush=True)
        n_jobs = seed - seeds.start + 1
        if n_jobs % 1000 == 0 or n_jobs == len(seeds):
            print(f"{n_jobs} jobs, {n_faults} faults, {dict(stages)}, {late} late or stuck")
            print(f"longest: {longest_s:+.2f} s past stop.seconds", flush=True)
    return late


def main() -> None:
    """Run the jobs; print the time past ``stop.seconds`` of each and the longest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--simulated", type=int, help="jobs in the simulator instead")
    options = parser.parse_args()
    if options.simulated:
        sys.exit(simulated(range(options.seed, options.seed + options.simulated)) > 0)
    longest_s = 0.0
    for seed in range(options.seed, options.seed + options.runs):
        with (
            tempfile.TemporaryDirectory() as folder,
            StockWorkers(Path(folder), MEMBERS) as stock,
        ):
            took_s, state, ended = one_run(seed, stock)
        longest_s = max(longest_s, took_s - STOP_S)
        past = f"{took_s - STOP_S:+.2f} s past stop.seconds"
        print(f"seed {seed}: {state}, {past}, {ended} workers ended", flush=True)
    print(f"longest: {longest_s:+.2f} s past stop.seconds")


if __name__ == "__main__":
    main()
