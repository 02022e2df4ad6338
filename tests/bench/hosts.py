"""Exchanges between several hosts: network namespaces on one machine, joined by shaped links.

    python tests/bench/hosts.py [--hosts 4] [--rate 1gbit] [--fan-outs 1 2] [--kill]

Every member and the driver have separate hosts. A job of long vectors (8 MB) runs with segmented
and with whole vectors in turns; every value of every sum is checked (``tests/wide_toy.py``). With
``--kill`` a member in the middle of the tree is killed while vectors are in flight. Needs root and
iproute2. The processes still share memory, so streams are requested.
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
from pathlib import Path
from typing import Any

from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em
from elasticml.collective import dask_transport
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.bench import harness
from tests.bench.namespaces import PORT, hosts, serve, serving
from tests.play.namespaces import address

WIDTH = 1_000_000
#: A round's time counts from this one on: the first ones set up links and buffers.
FIRST_ROUND = 3


def train(fan_out: int, rounds: int, members: int, kill: int) -> dict[str, Any]:
    """Run the job as its client; kill a worker's process in mid-round if one is named."""
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
    """Start all processes, each on its host, and run one job."""
    ways = ["--pieces" if pieces else "--whole"]
    with serving(names, script=__file__, words=ways) as workers:
        victim = workers[0] if options.kill else 0
        command = [sys.executable, __file__, *ways, "--role", "client"]
        command += ["--fan-out", str(fan_out), "--rounds", str(options.rounds)]
        command += ["--members", str(len(names) - 1), "--victim", str(victim)]
        done = subprocess.run(
            ["ip", "netns", "exec", names[0], *command],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run the study, or one of its processes."""
    parser = harness.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=4, help="with a member each")
    parser.add_argument("--rate", default="1gbit", help="of every host's link, each way")
    parser.add_argument("--fan-outs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    for name in ("pieces", "whole"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    for name in ("host", "threads", "fan-out", "members", "victim"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.whole:
        dask_transport.PIECE_BYTES = None
    if options.role == "client":
        report = train(options.fan_out, options.rounds, options.members, options.victim)
        print(json.dumps(report))
        return
    if options.role:
        asyncio.run(serve(options.role, options.host, options.threads))
        return
    with hosts(options.hosts + 1, options.rate) as names:
        for fan_out in options.fan_outs:
            for repeat in range(options.repeats):
                for pieces in (True, False):
                    report = one_run(names, options, fan_out, pieces)
                    way = "pieces" if pieces else "whole"
                    print(f"fan-out {fan_out}, {way}, {repeat}: {json.dumps(report)}", flush=True)


if __name__ == "__main__":
    main()
