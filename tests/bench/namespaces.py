"""Hosts in network namespaces, joined by links of a given rate that the kernel shapes.

Needs root and iproute2.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distributed import Scheduler, Worker

from elasticml.clusters.process_setup import die_with_parent
from tests.play.namespaces import address, inside, ip, namespaces

PORT = 18786
SCHEDULER = f"tcp://{address(0)}:{PORT}"


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


def fork(host: str, run: Callable[[], Any]) -> int:
    """Run a function in a forked process on a host; return its id."""
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


def in_fork(host: str, run: Callable[[], Any]) -> Any:
    """Run a function in a forked process on a host; return its result, as JSON."""
    reading, writing = os.pipe()

    def answer() -> None:
        os.write(writing, json.dumps(run()).encode())
        os._exit(0)

    pid = fork(host, answer)
    os.close(writing)
    try:
        with os.fdopen(reading) as answers:
            return json.loads(answers.read())
    finally:
        end([pid])


def end(pids: Sequence[int]) -> None:
    """SIGKILL processes of this one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def serving(names: Sequence[str], n_workers: int) -> Iterator[list[int]]:
    """Run a scheduler on the first host and workers on the others, by turns; yield process ids.

    The first id is the scheduler's. All are forked, so a caller imports what they share before.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # of all that are forked
    pids = [fork(names[0], lambda: asyncio.run(_be_scheduler()))]
    try:
        for k in range(n_workers):
            host = 1 + k % (len(names) - 1)
            pids.append(fork(names[host], lambda k=k, host=host: asyncio.run(_be_worker(k, host))))
        yield list(pids)
    finally:
        end(pids)


async def _be_scheduler() -> None:
    async with Scheduler(host=address(0), port=PORT, dashboard=False) as scheduler:
        await scheduler.finished()


async def _be_worker(k: int, host: int) -> None:
    worker = Worker(SCHEDULER, nthreads=1, host=address(host), name=k, dashboard=False)
    async with worker:
        await worker.finished()
