"""How long after ``stop.seconds`` a job ends whose stock workers get SIGTERM while it loads.

    python -m tests.bench.loading_losses [--runs 16] [--seed 3]

Each run starts four stock workers, sends SIGTERM to random ones up to four times, from .5 s before
the job's start to 4 s after it, and starts replacements 20 s later. The job may take 7 s.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import elasticml as em
from elasticml.chaos.stock_workers import StockWorkers
from elasticml.clusters.polling import until
from elasticml.data.synthetic.splice_sites import synthetic_splice

MEMBERS, STOP_S, REPLACED_S, HANGS_S = 4, 7.0, 20.0, 150.0
RULES = ("reload", "taylor", "stall")


def one_run(seed: int, stock: StockWorkers) -> tuple[float, str, int]:
    """Run a job; return its seconds, its last state and the workers that were ended."""
    rng, over, ended = random.Random(seed), threading.Event(), Counter[str]()
    rows = rng.choice([60_000, 400_000])
    job = em.Job(
        em.BatchGradient(l2=1e-2, optimizer="gd", tolerance=0.0),
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
        here = [str(w.address) for w in stock.workers()]
        victims = rng.sample(here, rng.randint(1, len(here))) if here else []
        with contextlib.suppress(ProcessLookupError):
            stock.lose(victims, "terminate")
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


def main() -> None:
    """Run the jobs; print the time past ``stop.seconds`` of each and the longest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
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
