"""The event loop in virtual time: one order of all callbacks, pauses and kills of processes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.collective.frames import Kind
from elasticml.data.readers.arrays import from_arrays
from elasticml.sim.environment import Environment
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import Simulation
from elasticml.sim.virtual_links import SendBuffer
from elasticml.sim.virtual_loop import VirtualHandle, VirtualLoop
from elasticml.sim.virtual_process import VirtualProcess
from tests.sim.small_jobs import points, record, records_of

FAULTS = [
    {"round": 8, "lose": [3], "phase": "compute"},
    {"round": 10, "lose": 1, "how": "notice", "grace": 0.01},
    {"round": 15, "return": 2},
]
ASYNC = {"name": "tests.async_toy:ALGORITHM", "report_every": 0.25}
TAKEN = [{"at": 0.6, "lose": 2, "away": 0.3}, {"at": 1.0, "lose": 1, "how": "pause", "away": 0.1}]
#: Changes of the record, and the world.
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cocoa": (
        {"faults": FAULTS, "absent": "auto", "algorithm": {"name": "cocoa", "l2": 1e-2}},
        {"jitter": 0.3, "start_s": 0.01},
    ),
    "async": (
        {"algorithm": ASYNC, "absent": "reload", "stop": {"seconds": 1.3}, "evaluate": None},
        {"compute_s": {"batch": 4e-4, "other": 1e-7}, "bandwidth": 1e6, "trace": TAKEN},
    ),
    "costs": ({"faults": FAULTS, "evaluate": None}, {"costs": {"rows": 6000, "columns": 100}}),
}


def digest(name: str) -> str:
    """Play a job; return the digest of all callbacks, in their order, and of the story."""
    changes, world = JOBS[name]
    source = None if "costs" in world else points()
    simulation = Simulation(record(**changes), source, options=options_from_section(world))
    seen = hashlib.sha256()

    def watch(handle: VirtualHandle) -> None:
        task = getattr(handle.callback, "__self__", None)
        called: Any = task.get_coro() if isinstance(task, asyncio.Task) else handle.callback
        where = "" if handle.process is None else handle.process.address
        what = getattr(called, "__qualname__", type(called).__name__)
        seen.update(f"{simulation.world.loop.now_s!r} {where} {what}\n".encode())

    simulation.world.loop.watch = watch
    for _ in simulation.run():
        pass
    assert simulation.world.loop.unhandled == []
    seen.update(repr(simulation.result().story).encode())
    simulation.close()
    return seen.hexdigest()


def test_all_callbacks_have_the_same_order_under_any_seed_of_hashes():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.sim.test_virtual_loop"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "42"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [digest(name) for name in JOBS]  # here the seed is random


def processes(**world: Any) -> tuple[VirtualLoop, VirtualProcess, list[float]]:
    """Make a process that notes the time every second."""
    loop, ran = VirtualLoop(), []
    options = options_from_section(world)
    process = VirtualProcess(Environment(options, loop, None), "a", "host")

    async def note() -> None:
        while True:
            ran.append(loop.now_s)
            await asyncio.sleep(1.0)

    loop.after(0.0, process.enter, lambda: loop.create_task(note()))
    return loop, process, ran


def test_a_killed_process_makes_no_step_more():
    loop, process, ran = processes()
    loop.at(2.5, process.environment.network.kill, process.endpoint)
    loop.run(10.0)
    assert ran == [0.0, 1.0, 2.0]
    loop.close()


def test_a_paused_process_goes_on_where_it_was():
    loop, process, ran = processes()
    loop.at(2.5, process.environment.network.pause, process.endpoint)
    loop.at(7.25, process.environment.network.resume, process.endpoint)
    loop.run(9.0)
    assert ran[:5] == [0.0, 1.0, 2.0, 7.25, 8.25]
    loop.close()


@pytest.mark.parametrize("where", ["header", "prefix", "payload"])
def test_a_partial_that_is_cut_by_a_kill_is_no_partial(monkeypatch, where):
    send, seen = SendBuffer.send, []

    def cut(self: SendBuffer, message: bytes, nbytes: int) -> None:
        is_partial = len(message) > 32 and message[5] == Kind.PARTIAL
        if self.process.name == "sim://3" and is_partial:
            seen.append(nbytes)
            if len(seen) == 20:
                prefix = 32 + int.from_bytes(message[12:16], "little")
                at = {"header": 17, "prefix": prefix // 2, "payload": prefix + 8}[where]
                send(self, message[:at], at)
                environment = self.process.environment
                environment.loop.at(
                    self.process.endpoint.card.up_free_s,
                    environment.network.kill,
                    self.process.endpoint,
                )
                return
        send(self, message, nbytes)

    monkeypatch.setattr(SendBuffer, "send", cut)
    simulation = Simulation(record(name=f"cut in the {where}"), points(), check_every_event=True)
    for _ in simulation.run():
        pass
    result = simulation.result()
    assert (result.state, result.error) == ("done", None)
    lost = [(r["member"], r["reason"]) for r in records_of(result, "MemberLost")]
    assert lost == [("3.1", "closed")]
    assert {row["absent_examples"] for row in result.rows} == {0, 40}


def test_bodies_that_a_sockets_buffer_does_not_hold_leave_in_turn():
    # The driver has two bodies of 8 MB to send; a socket takes four at a time.
    source = from_arrays(np.ones((2000, 1000)), np.arange(2000) % 2.0)
    job = record(members={"start": 2, "min": 1}, chunk_bytes=2**23, stop={"rounds": 2})
    simulation = Simulation(job, source)
    for _ in simulation.run():
        pass
    result = simulation.result()
    assert (result.state, result.summary["examples"]) == ("done", 2000)
    began_s = next(r["t"] for r in result.story if r["event"] == "RoundStarted")
    assert began_s >= 16e6 / 1.25e9


if __name__ == "__main__":
    for name in JOBS:
        print(digest(name))
