"""Exchanges between several hosts: network namespaces on one machine, joined by shaped links.

    python tests/bench/hosts.py [--hosts 4] [--rate 1gbit] [--fan-outs 1 2] [--kill]

Every member has a host of its own, the driver too. A job of long vectors (8 MB) runs with pieces
and with whole vectors in turns; every value of every sum is checked (``tests/wide_toy.py``). With
``--kill`` a member in the middle of the tree is killed while vectors are on their way. Needs root
and iproute2. The processes still share memory, so streams are asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed import Client, Scheduler, Worker

import elasticml as em
from elasticml.collective import dask_links
from elasticml.data.synthetic import synthetic_splice

PORT = 18786
WIDTH = 1_000_000
#: A round's time is counted from this one on: the first ones set links and buffers up.
FIRST_ROUND = 3


def ip(*words: str) -> None:
    """Run iproute2's ip."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def hosts(n: int, rate: str) -> Iterator[list[str]]:
    """Make namespaces whose links to a common switch are shaped both ways; give out their names."""
    names, hub = [f"em{os.getpid()}-{k}" for k in range(n)], f"em{os.getpid()}-hub"
    shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"]
    try:
        for name in (hub, *names):
            ip("netns", "add", name)
        ip("-n", hub, "link", "add", "switch", "type", "bridge")
        ip("-n", hub, "link", "set", "switch", "up")
        for k, name in enumerate(names):
            far = f"port{k}"
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", far, "netns", hub)
            ip("-n", hub, "link", "set", far, "master", "switch", "up")
            ip("-n", name, "addr", "add", f"{address(k)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
            for where, device in ((name, "eth0"), (hub, far)):
                subprocess.run(
                    ["tc", "-n", where, "qdisc", "add", "dev", device, *shape], check=True
                )
        yield names
    finally:
        for name in (*names, hub):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def address(k: int) -> str:
    """Give out the address of a host; the driver's is the first."""
    return f"10.77.0.{k + 1}"


async def serve(role: str, k: int) -> None:
    """Be the scheduler, or a worker, until the scheduler goes."""
    if role == "scheduler":
        async with Scheduler(host=address(0), port=PORT, dashboard=False) as scheduler:
            await scheduler.finished()
    else:
        where = f"tcp://{address(0)}:{PORT}"
        async with Worker(where, nthreads=1, host=address(k), name=k, dashboard=False) as worker:
            await worker.finished()


def train(fan_out: int, rounds: int, members: int, kill: int) -> dict[str, Any]:
    """Run the job as its client; kill a worker's process in the middle, where one is named."""
    with Client(f"tcp://{address(0)}:{PORT}", set_as_default=False) as client:
        client.wait_for_workers(members)
        job = em.Job(
            em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=rounds, width=WIDTH),
            synthetic_splice(rows=600, length=30, seed=5),
            absent="ignore",
            stop=em.Stop(rounds=rounds),
            collective=em.Collective(topology="tree", transport="stream", fan_out=fan_out),
            chunk_size=1024,
        )
        handle = job.start(client)
        for record in handle if kill else ():
            if record["event"] == "RoundEnded" and record["round"] == rounds // 2:
                os.kill(kill, signal.SIGKILL)
        result = handle.result()
    ends = [row["seconds"] for row in result.history][FIRST_ROUND:rounds]
    spent = [b - a for a, b in itertools.pairwise(ends)]
    return {
        "rounds": len([row for row in result.history if row.get("checked")]),
        "lost": result.summary["lost"],
        "median_ms": 1e3 * statistics.median(spent),
        "min_ms": 1e3 * min(spent),
    }


def one_run(names: list[str], options: argparse.Namespace, fan_out: int, pieces: bool) -> Any:
    """Start everybody, each on its host, and run one job."""
    command = [sys.executable, __file__, "--pieces" if pieces else "--whole"]
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        for k, name in enumerate(names):
            role = "scheduler" if k == 0 else "worker"
            words = ["ip", "netns", "exec", name, *command, "--role", role, "--host", str(k)]
            log = (Path(folder) / f"{k}.log").open("w")
            processes.append(subprocess.Popen(words, cwd=folder, stdout=log, stderr=log))
        try:
            # "ip netns exec" becomes the process that it starts: its id is the worker's.
            victim = processes[1].pid if options.kill else 0
            words = ["--role", "client", "--fan-out", str(fan_out), "--rounds", str(options.rounds)]
            words += ["--members", str(len(names) - 1), "--victim", str(victim)]
            done = subprocess.run(
                ["ip", "netns", "exec", names[0], *command, *words],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
            )
            return json.loads(done.stdout.splitlines()[-1])
        finally:
            for process in processes:
                process.kill()
                process.wait()


def main() -> None:
    """Run the study, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4, help="with a member each")
    parser.add_argument("--rate", default="1gbit", help="of every host's link, each way")
    parser.add_argument("--fan-outs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    for name in ("pieces", "whole"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    for name in ("host", "fan-out", "members", "victim"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.whole:
        dask_links.PIECE_BYTES = None
    if options.role == "client":
        told = train(options.fan_out, options.rounds, options.members, options.victim)
        print(json.dumps(told))
        return
    if options.role:
        asyncio.run(serve(options.role, options.host))
        return
    with hosts(options.hosts + 1, options.rate) as names:
        for fan_out in options.fan_outs:
            for repeat in range(options.repeats):
                for pieces in (True, False):
                    told = one_run(names, options, fan_out, pieces)
                    way = "pieces" if pieces else "whole"
                    print(f"fan-out {fan_out}, {way}, {repeat}: {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main()
