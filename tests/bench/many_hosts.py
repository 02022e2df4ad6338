"""Seconds of a round with many member processes on 16 hosts: predicted, then measured.

    python tests/bench/many_hosts.py calibrate costs.json [--members 4 16]
    python tests/bench/many_hosts.py predict costs.json figures.json [--members 8 32 128 256]
    python tests/bench/many_hosts.py measure costs.json figures.json [--members 8 32 128 256]

The hosts are network namespaces on one machine, whose links the kernel limits (``--rate``); the
driver has one more. Members are Dask workers, forked from one interpreter, in a binary tree. A
round is one exchange of ``--width`` doubles; every value of every sum is checked
(``tests/wide_toy.py``). ``calibrate`` runs small jobs and writes what a message and a member cost
in processor time; ``predict`` gives the simulator these costs, the links and the machine's cores,
and writes its rounds; ``measure`` adds those of real jobs, medians over rounds. Needs root and
iproute2.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elasticml.clusters.process_setup import (
    configure_dask,
    die_with_parent,
    freeze_memory,
    load_for_worker,
)
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
    "command": "python tests/bench/many_hosts.py calibrate, predict, measure",
    "columns": ["members", "predicted", "measured", "quartiles", "predicted / measured", "others"],
}


# --- a real job -----------------------------------------------------------------------------


def fork(host: str, run: Callable[[], Any]) -> int:
    """Run a function in a forked process on a host; return its id."""
    from tests.play.namespaces import inside

    parent = os.getpid()
    with inside(host):
        pid = os.fork()
        if pid == 0:
            die_with_parent(parent)
            try:
                run()
            finally:
                os._exit(1)
    return pid


async def be_scheduler() -> None:
    """Serve as the scheduler on the driver's host."""
    from distributed import Scheduler

    from tests.bench.namespaces import PORT
    from tests.play.namespaces import address

    async with Scheduler(host=address(0), port=PORT, dashboard=False) as scheduler:
        await scheduler.finished()


async def be_worker(k: int) -> None:
    """Serve as a member on one of the other hosts."""
    from distributed import Worker

    from tests.bench.namespaces import PORT
    from tests.play.namespaces import address

    host, scheduler = address(1 + k % N_HOSTS), f"tcp://{address(0)}:{PORT}"
    async with Worker(scheduler, nthreads=1, host=host, name=k, dashboard=False) as worker:
        await worker.finished()


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


def private_mb(pids: Sequence[int]) -> float:
    """Return the median private memory of processes."""
    each = []
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        fields = {line.split()[0]: line.split()[1] for line in lines[1:]}
        each.append((int(fields["Private_Clean:"]) + int(fields["Private_Dirty:"])) / 1000)
    return statistics.median(each)


def train(n: int, width: int, rounds: int, pids: Sequence[int]) -> dict[str, Any]:
    """Run a job as its client; ``pids`` are the scheduler's and the workers' processes."""
    import numpy as np
    from distributed import Client

    import elasticml as em
    from tests.bench.namespaces import PORT
    from tests.play.namespaces import address

    began_s = time.monotonic()
    with Client(f"tcp://{address(0)}:{PORT}", set_as_default=False, timeout=60) as client:
        client.wait_for_workers(n, timeout=200)
        registered_s = time.monotonic() - began_s
        job = em.Job(
            em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=rounds, width=width),
            em.from_arrays(np.ones((8 * n, 1)), np.arange(8.0 * n)),
            absent="stall",
            stop=em.Stop(rounds=rounds),
            collective=em.Collective(topology="tree", transport="stream", fan_out=2),
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
        memory = private_mb(pids[1:])
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
    from tests.bench.namespaces import hosts

    freeze_memory()
    with hosts(N_HOSTS + 1, rate, BURST) as names:
        pids = [fork(names[0], lambda: asyncio.run(be_scheduler()))]
        try:
            for k in range(n):
                host = names[1 + k % N_HOSTS]
                pids.append(fork(host, lambda k=k: asyncio.run(be_worker(k))))
            reading, writing = os.pipe()
            workers = list(pids)

            def client() -> None:
                figures = train(n, width, rounds, workers)
                os.write(writing, json.dumps(figures).encode())
                os._exit(0)

            pids.append(fork(names[0], client))
            os.close(writing)
            with os.fdopen(reading) as answer:
                figures: dict[str, Any] = json.loads(answer.read())
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return figures


def measured(n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a new process, which can fork."""
    rounds = options.rounds or max(60, min(600, 4000 // n))
    command = [sys.executable, __file__, "one", "--members", str(n), "--rounds", str(rounds)]
    command += ["--width", str(options.width), "--rate", options.rate]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
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


def main() -> None:
    """Calibrate, predict or measure."""
    parser = harness.parser(__doc__)
    parser.add_argument("step", choices=["calibrate", "predict", "measure", "one"])
    parser.add_argument("costs", type=Path, nargs="?")
    parser.add_argument("figures", type=Path, nargs="?")
    parser.add_argument("--members", type=int, nargs="+")
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--rate", default="50mbit", help="of every host's link, each way")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    width, rate = options.width, options.rate
    if options.step == "one":
        harness.report(measure(options.members[0], width, options.rounds, rate))
    elif options.step == "calibrate":
        runs = [measured(n, options) for n in options.members or (4, 16)]
        costs = costs_of(runs, width, rate, cores)
        harness.report({"runs": runs, "costs": costs}, options.costs)
        harness.report(costs)
    elif options.step == "predict":
        costs = json.loads(options.costs.read_text())["costs"]
        figures = {**FIGURES, "costs": costs, "rows": []}
        for n in options.members or (8, 32, 128, 256):
            seconds = simulated_s(n, width, rate, costs, cores)
            figures["rows"].append([n, round(1e3 * seconds, 1), None, None, None, None])
            harness.report(figures["rows"][-1])
        harness.report(figures, options.figures)
    else:
        figures = json.loads(options.figures.read_text())
        for row in figures["rows"]:
            run = measured(row[0], options)
            harness.report(run)
            low, high = (f"{1e3 * s:.1f}" for s in run["quartiles_s"])
            row[2:] = [round(1e3 * run["round_s"], 1), f"{low} to {high}"]
            row.append(round(row[1] / row[2], 2))
            row.append(round(run["others"], 2))
            harness.report(figures, options.figures)


if __name__ == "__main__":
    main()
