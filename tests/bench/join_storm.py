"""Thousands of member shells on real sockets: how long all take to join, a round, memory, lag.

    python -m tests.bench join_storm [--members 10000] [--processes 10] [--rounds 6] [--json FILE]

The members' and the driver's real agents, each with a listening socket of its own, in few
processes on one host, joined by Dask comms over TCP as on a cluster. All members are announced at
once. Printed are the seconds until all have joined and until each round has ended, the lag of the
driver's event loop, and memory. The sums are exact (``tests/wide_toy.py``). Needs root and
iproute2, as the sockets are in a network namespace of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import statistics
import time
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import Any

from tests.bench import harness

#: Between two looks at the event loop's lag.
LOOK_S = 0.01
TICK_S = 0.02
#: Doubles of a model, and rows of a member.
WIDTH, BLOCK_ROWS = 100, 4


class SocketServer:
    """What a transport needs of a Dask server: a listening socket, without Dask's own handlers."""

    def __init__(self) -> None:
        self.address = ""
        self.handlers: dict[str, Any] = {}
        self.extensions: dict[str, Any] = {}
        self.connection_args: dict[str, Any] = {}
        self._listener: Any = None

    async def listen(self) -> None:
        """Listen on a free port of the loopback device."""
        from distributed.comm import listen

        self._listener = await listen("tcp://127.0.0.1:0", self._serve)
        self.address = self._listener.contact_address

    async def _serve(self, comm: Any) -> None:
        message = await comm.read()
        answer = await self.handlers[message.pop("op")](comm, **message)
        if isinstance(answer, dict):
            await comm.write(answer)


async def watch_lag(lags_s: list[float]) -> None:
    """Add to a list by how much each wait of this event loop is too long."""
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(LOOK_S)
        lags_s.append(time.monotonic() - began_s - LOOK_S)


async def be_members(n: int, addresses: int, wishes: int) -> None:
    """Run shells of members; write their addresses to a pipe, and memory when asked."""
    from elasticml.algorithms.parallel import Serial
    from elasticml.collective.dask_transport import transport_of
    from elasticml.runtime.member_host import MemberHost
    from elasticml.runtime.worker_context import WorkerContext
    from tests.toy import InlineRunner

    before_mb = harness.private_mb(os.getpid())
    servers = [SocketServer() for _ in range(n)]
    for server in servers:
        await server.listen()

    async def announce() -> list[str]:
        return []

    context = WorkerContext(
        transport=transport_of(servers[0]),
        compute=InlineRunner(),
        reading=InlineRunner(),
        parallel=Serial(),
        clock=time.monotonic,
        host="here",
        pid=os.getpid(),
        threads=1,
    )
    hosts = [
        MemberHost(replace(context, transport=transport_of(server)), announce) for server in servers
    ]
    os.write(addresses, dumps([server.address for server in servers]).encode() + b"\n")
    lags_s: list[float] = []
    watching = asyncio.create_task(watch_lag(lags_s))
    await asyncio.get_running_loop().run_in_executor(None, os.read, wishes, 1)
    watching.cancel()
    report = {
        "mb": harness.private_mb(os.getpid()) - before_mb,
        "members": sum(bool(h.agents) for h in hosts),
    }
    report["lag_p99_s"] = p99(lags_s)
    os.write(addresses, dumps(report).encode() + b"\n")


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0


async def drive(found: list[str], rounds: int) -> dict[str, Any]:
    """Run a job with all members; return the figures."""
    from elasticml.collective.dask_transport import transport_of
    from elasticml.protocol.job_record import job_record
    from elasticml.runtime.driver_agent import DriverAgent, DriverContext
    from elasticml.runtime.executors import BriefRunner
    from examples.papers.support.clusters import synthetic_clusters
    from tests.sim.small_jobs import toy_job

    n = len(found)
    record = toy_job(
        members={"start": n, "min": 1},
        algorithm={"name": "tests.wide_toy:ALGORITHM", "rounds": rounds, "width": WIDTH},
        absent="stall",
        chunk_bytes=4096,
        collective={"topology": "tree", "fan_out": 2, "transport": "stream"},
    )
    source = synthetic_clusters(BLOCK_ROWS * n, columns=2)
    server = SocketServer()
    await server.listen()
    before_mb = harness.private_mb(os.getpid())
    context = DriverContext(
        transport=transport_of(server), runner=BriefRunner("driver"), clock=time.monotonic
    )
    agent = DriverAgent(
        job_record({**record, "data": source.spec()}),
        context,
        source=source,
    )
    storm_s: list[float] = []
    rounds_s: list[float] = []
    watching = asyncio.create_task(watch_lag(storm_s))
    began_s, processor_s = time.monotonic(), time.process_time()
    for address in found:
        agent.invite(address)
    figures: dict[str, Any] = {"members": n}
    ends_s: list[float] = []
    seen = 0
    while not agent.ended.is_set():
        await asyncio.sleep(TICK_S)
        agent.tick()
        story, now_s = agent.journal.story, time.monotonic() - began_s
        for entry in story[seen:]:
            if entry["event"] == "RoundEnded":
                ends_s.append(now_s)
        seen = len(story)
        joined = len(agent.machine.state.membership.members)
        if "joined_s" not in figures and joined == n:
            figures["joined_s"] = now_s
            figures["joined_processor_s"] = time.process_time() - processor_s
            watching.cancel()
            watching = asyncio.create_task(watch_lag(rounds_s))
    watching.cancel()
    figures |= {
        "first_round_s": ends_s[0],
        "round_s": statistics.median(b - a for a, b in itertools.pairwise(ends_s)),
        "lag_p99_storm_s": p99(storm_s),
        "lag_max_storm_s": max(storm_s),
        "lag_p99_rounds_s": p99(rounds_s),
        "driver_kb_per_member": 1000 * (harness.private_mb(os.getpid()) - before_mb) / n,
        "state": agent.state,
        "error": agent.error,
        "lost": sum(entry["event"] == "MemberLost" for entry in agent.journal.story),
    }
    return figures


def main(
    *,
    members: int = 10_000,
    processes: int = 10,
    rounds: int = 6,
    json: Path | None = None,
) -> None:
    """Fork the members' processes and drive a job from this one."""
    harness.one_thread()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    from elasticml.clusters.process_setup import (
        configure_dask,
        die_with_parent,
        freeze_memory,
        load_for_worker,
    )

    configure_dask(dashboard=False)
    load_for_worker([])
    import elasticml.runtime.driver_agent  # noqa: F401  (shared by the forked processes)
    import tests.sim.small_jobs
    import tests.wide_toy  # noqa: F401
    from examples.papers.support import clusters
    from tests.play.namespaces import inside, namespaces

    clusters.BLOCK_ROWS = BLOCK_ROWS  # every member reads a block
    freeze_memory()
    parent, pids, pipes = os.getpid(), [], []
    with namespaces(1) as [name], inside(name):
        for k in range(processes):
            n = members * (k + 1) // processes
            n -= members * k // processes
            (reading, addresses), (wishes, asking) = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                die_with_parent(parent)
                try:
                    asyncio.run(be_members(n, addresses, wishes))
                finally:
                    os._exit(0)
            os.close(addresses)
            pids.append(pid)
            pipes.append((os.fdopen(reading), asking))
        try:
            found = [address for answers, _ in pipes for address in loads(answers.readline())]
            figures = asyncio.run(drive(found, rounds))
            reports = []
            for answers, asking in pipes:
                os.write(asking, b"?")
                reports.append(loads(answers.readline()))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    figures["member_kb"] = 1000 * sum(each["mb"] for each in reports) / members
    figures["member_lag_p99_s"] = max(each["lag_p99_s"] for each in reports)
    figures["processes"] = processes
    harness.report(figures)
    if json:
        harness.report(figures, json)
