"""Hosts in network namespaces, joined by links of a given rate that the kernel shapes.

Needs root and iproute2. :func:`serving` runs a scheduler on the first host and a worker on each of
the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from distributed import Scheduler, Worker

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness
from tests.play.namespaces import address, ip, namespaces

PORT = 18786


@contextlib.contextmanager
def hosts(n: int, rate: str, burst: str = "256kb") -> Iterator[list[str]]:
    """Make namespaces whose links to a common switch are shaped both ways; yield their names."""
    shape = ["root", "tbf", "rate", rate, "burst", burst, "latency", "200ms"]
    with namespaces(n + 1) as [*names, hub]:
        ip("-n", hub, "link", "add", "switch", "type", "bridge")
        ip("-n", hub, "link", "set", "switch", "up")
        for k, name in enumerate(names):
            far = f"port{k}"
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", far, "netns", hub)
            ip("-n", hub, "link", "set", far, "master", "switch", "up")
            ip("-n", name, "addr", "add", f"{address(k)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            for where, device in ((name, "eth0"), (hub, far)):
                subprocess.run(
                    ["tc", "-n", where, "qdisc", "add", "dev", device, *shape], check=True
                )
        yield names


@contextlib.contextmanager
def serving(
    names: Sequence[str], threads: int = 1, script: str = __file__, words: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Run a scheduler and the workers, each on its host; yield the workers' process ids.

    ``script``, started with ``words``, calls :func:`serve` when it gets ``--role``, ``--host`` and
    ``--threads``.
    """
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for k, name in enumerate(names):
                role = "scheduler" if k == 0 else "worker"
                command = ["ip", "netns", "exec", name, sys.executable, script, *words]
                command += ["--role", role, "--host", str(k), "--threads", str(threads)]
                with (Path(folder) / f"{k}.log").open("w") as log:
                    processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
            # "ip netns exec" becomes the process that it starts: its id is the worker's.
            yield [process.pid for process in processes[1:]]
        finally:
            for process in processes:
                process.kill()
                process.wait()


async def serve(role: str, k: int, threads: int = 1) -> None:
    """Be the scheduler, or a worker, until the scheduler closes."""
    if role == "scheduler":
        async with Scheduler(host=address(0), port=PORT, dashboard=False) as scheduler:
            await scheduler.finished()
    else:
        where = f"tcp://{address(0)}:{PORT}"
        async with Worker(
            where, nthreads=threads, host=address(k), name=k, dashboard=False
        ) as worker:
            await worker.finished()


def main() -> None:
    """Be one of the processes."""
    parser = harness.parser(__doc__)
    parser.add_argument("--role", choices=["scheduler", "worker"], required=True)
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(serve(options.role, options.host, options.threads))


if __name__ == "__main__":
    main()
