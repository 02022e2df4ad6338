"""Seconds of a round with many member processes on 16 hosts: predicted, then measured.

    python -m tests.bench many_hosts calibrate [--costs FILE] [--members 4 16]
    python -m tests.bench many_hosts predict [--figures FILE] [--members 8 32 128 256]
    python -m tests.bench many_hosts measure [--figures FILE] [--members 8 32 128 256]

The hosts are network namespaces on one machine, whose links the kernel limits (``--rate``); the
driver has one more. Members are Dask workers, forked from one interpreter, in a binary tree. A
round is one exchange of ``--width`` doubles; every value of every sum is checked
(``tests/wide_toy.py``). ``calibrate`` runs small jobs and writes what a message and a member cost
in processor time; ``predict`` gives the simulator these costs, the links and the machine's cores,
and writes its rounds; ``measure`` adds those of real jobs, medians over rounds. Needs root and
iproute2.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticml.clusters.process_setup import configure_dask, freeze_memory, load_for_worker
from tests.bench import harness

N_HOSTS = 16
#: A round's time counts from this one on: the first ones set up links and buffers.
FIRST_ROUND = 5
#: Bytes that a link passes at once, in the notation of tc.
BURST = "3200b"
#: Share of a link's rate that is left for the bytes of frames: headers of Ethernet, IP and TCP.
PAYLOAD_SHARE = 0.956
#: One way between two hosts, without load.
LATENCY_S = 5e-5
IDLE_S = 8.0
FIGURES = {
    "title": "Milliseconds of a round with many member processes on 16 hosts",
    "command": "python -m tests.bench many_hosts calibrate, predict, measure",
    "columns": ["members", "predicted", "measured", "quartiles", "predicted / measured", "others"],
}


# --- a real job -----------------------------------------------------------------------------


def processor_s(pids: Sequence[int]) -> list[float]:
    """Return the processor seconds of each process so far."""
    seconds = []
    for pid in pids:
        threads = Path(f"/proc/{pid}/task").iterdir()
        each = [int((thread / "schedstat").read_text().split()[0]) for thread in threads]
        seconds.append(1e-9 * sum(each))
    return seconds


def busy_s() -> float:
    """Return the seconds that all cores have been busy so far, with whatever work."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(word) for word in words]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def train(n: int, width: int, rounds: int, pids: Sequence[int]) -> dict[str, Any]:
    """Run a job as its client; ``pids`` are the scheduler's and the workers' processes."""
    import numpy as np
    from distributed import Client

    import elasticml as em
    from tests.bench.namespaces import SCHEDULER

    began_s = time.monotonic()
    with Client(SCHEDULER, set_as_default=False, timeout=60) as client:
        client.wait_for_workers(n, timeout=200)
        registered_s = time.monotonic() - began_s
        job = em.Job(
            em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=rounds, width=width),
            em.from_arrays(np.ones((8 * n, 1)), np.arange(8.0 * n)),
            absent="stall",
            stop=em.Stop(rounds=rounds),
            collective=em.settings.Collective(topology="tree", transport="stream", fan_out=2),
            chunk_size=128,
        )
        handle, marks, idle_s = job.start(client), [], [0.0]
        for record in handle:
            if record["event"] != "RoundEnded":
                continue
            if not marks and record["round"] >= FIRST_ROUND:
                marks.append((record["round"], time.monotonic(), processor_s(pids), busy_s()))
            last = record["round"]
            if last >= rounds - 1:
                marks.append((last, time.monotonic(), processor_s(pids), busy_s()))
        result = handle.result()
        memory = statistics.median(map(harness.private_mb, pids[1:]))
        before, began_s = processor_s(pids), time.monotonic()
        time.sleep(IDLE_S)
        spent_s = time.monotonic() - began_s
        idle_s = [(b - a) / spent_s for a, b in zip(before, processor_s(pids), strict=True)]
    ends = [row["seconds"] for row in result.history][FIRST_ROUND:rounds]
    spent = [b - a for a, b in itertools.pairwise(ends)]
    (first, began_s, from_s, busy_from_s), (last, ended_s, to_s, busy_to_s) = marks[0], marks[-1]
    others_s = busy_to_s - busy_from_s - (sum(to_s) - sum(from_s))
    each = [(b - a) / (last - first) for a, b in zip(from_s, to_s, strict=True)]
    return {
        "members": n,
        "rounds": len(spent),
        "round_s": statistics.median(spent),
        "quartiles_s": statistics.quantiles(spent, n=4)[::2],
        "driver_processor_s": each[0],
        "member_processor_s": statistics.mean(each[1:]),
        "idle_driver": idle_s[0],
        "idle_member": statistics.mean(idle_s[1:]),
        # Cores that other work took, and this client.
        "others": others_s / (ended_s - began_s),
        "registered_s": registered_s,
        "member_mb": memory,
        "lost": result.summary["lost"],
    }


def measure(n: int, width: int, rounds: int, rate: str) -> dict[str, Any]:
    """Start the hosts and all processes, run a job, and end them."""
    harness.one_thread()
    configure_dask(dashboard=False)
    load_for_worker([])
    import elasticml.runtime.scheduler_plugin  # noqa: F401  (shared by the forked processes)
    import tests.wide_toy  # noqa: F401
    from tests.bench.namespaces import hosts, in_fork, serving

    freeze_memory()
    with hosts(N_HOSTS + 1, rate, BURST) as names, serving(names, n) as workers:
        return in_fork(names[0], lambda: train(n, width, rounds, workers))


def measured(n: int, width: int, rate: str, rounds: int | None) -> dict[str, Any]:
    """Measure in a new process, which can fork."""
    rounds = rounds or max(60, min(600, 4000 // n))
    words = ["--members", n, "--rounds", rounds, "--width", width, "--rate", rate]
    done = harness.in_process("many_hosts", "one", *words)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


# --- the simulator --------------------------------------------------------------------------


def megabits(rate: str) -> float:
    """Return a rate in tc's notation, such as 50mbit."""
    assert rate.endswith("mbit"), rate
    return float(rate[:-4])


def simulated_s(
    n: int, width: int, rate: str, costs: dict[str, float], cores: int, others: float = 0.0
) -> float:
    """Return the median seconds of a round in the simulator; other work takes ``others`` cores."""
    from elasticml.sim.simulation import simulate

    # Processes that wait for the next round, too, take a share of the cores.
    left = 1.0 - (n * costs["idle_member"] + costs["idle_driver"] + others) / cores
    rows = 1000
    record = {
        "job": "hosts",
        "name": "hosts",
        "data": {},
        "algorithm": {"name": "batch_gradient"},
        "members": {"start": n},
        "collective": {"topology": "tree", "fan_out": 2},
        "absent": "stall",
        "policies": [],
        "faults": [],
        "stop": {"rounds": 12},
        "seed": 0,
        "simulate": {
            "seed": 1,
            "costs": {"rows": rows * n, "columns": width, "chunks_per_member": 1, "probes": 0},
            "bandwidth": PAYLOAD_SHARE * 1e6 / 8 * megabits(rate),
            "host_links": True,
            "hosts": N_HOSTS,
            "latency_s": LATENCY_S,
            "cores": cores,
            "message_s": costs["message_s"] / left,
            "compute_s": costs["member_s"] / rows / left,
            "overhead_s": costs["driver_s"] / left,
        },
    }
    ends = [row["seconds"] for row in simulate(record).rows]
    return statistics.median(b - a for a, b in itertools.pairwise(ends[2:12]))


def costs_of(runs: Sequence[dict[str, Any]], width: int, rate: str, cores: int) -> dict[str, float]:
    """Return the costs with which the simulator gives the processor time and rounds of runs.

    Members' processor time is split evenly between a message and a computation: in a tree a member
    receives two messages a round, one model and one partial, and computes once. The driver's time
    that remains is the least-squares fit to the rounds.
    """
    mean = {key: statistics.mean(run[key] for run in runs) for key in runs[0] if "idle" in key}
    member_s = runs[-1]["member_processor_s"] - runs[-1]["idle_member"] * runs[-1]["round_s"]
    costs = {"message_s": member_s / 4, "member_s": member_s / 2, "driver_s": 0.0, **mean}

    def miss(driver_s: float) -> float:
        new = {**costs, "driver_s": driver_s}
        predicted = [simulated_s(run["members"], width, rate, new, cores) for run in runs]
        each = zip(runs, predicted, strict=True)
        return sum((s / run["round_s"] - 1.0) ** 2 for run, s in each)

    costs["driver_s"] = min((k * 1e-4 for k in range(100)), key=miss)
    return costs


def main(
    step: str,
    *,
    costs: Path = Path("costs.json"),
    figures: Path = Path("figures.json"),
    members: Sequence[int] | None = None,
    width: int = 2000,
    rate: str = "50mbit",
    rounds: int | None = None,
) -> None:
    """Calibrate, predict or measure; ``rate`` is of every host's link, each way."""
    cores = len(os.sched_getaffinity(0))
    if step == "one":
        harness.report(measure(members[0], width, rounds, rate))
    elif step == "calibrate":
        runs = [measured(n, width, rate, rounds) for n in members or (4, 16)]
        found = costs_of(runs, width, rate, cores)
        harness.report({"runs": runs, "costs": found}, costs)
        harness.report(found)
    elif step == "predict":
        found = json.loads(costs.read_text())["costs"]
        table: dict[str, Any] = {**FIGURES, "costs": found, "rows": []}
        for n in members or (8, 32, 128, 256):
            seconds = simulated_s(n, width, rate, found, cores)
            table["rows"].append([n, round(1e3 * seconds, 1), None, None, None, None])
            harness.report(table["rows"][-1])
        harness.report(table, figures)
    else:
        table = json.loads(figures.read_text())
        for row in table["rows"]:
            run = measured(row[0], width, rate, rounds)
            harness.report(run)
            low, high = (f"{1e3 * s:.1f}" for s in run["quartiles_s"])
            row[2:] = [round(1e3 * run["round_s"], 1), f"{low} to {high}"]
            row.append(round(row[1] / row[2], 2))
            row.append(round(run["others"], 2))
            harness.report(table, figures)
