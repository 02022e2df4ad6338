"""Whatever code of users raises, and wherever, is the job's error with its file and line."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from elasticml.data.readers.files import missing
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.executors import BriefRunner, Repeated, ThreadRunner
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.toy import ALGORITHM, ToySolver, toy_trainer


class UnprintableError(Exception):
    """An exception that cannot be formatted."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


FAULTS: dict[str, BaseException] = {
    "ValueError": ValueError("x"),
    "StopIteration": StopIteration(),
    "StopAsyncIteration": StopAsyncIteration(),
    "GeneratorExit": GeneratorExit(),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "SystemExit": SystemExit(3),
    "CancelledError": asyncio.CancelledError(),
    "CancelledError of futures": concurrent.futures.CancelledError(),
    "BaseExceptionGroup": BaseExceptionGroup("several", [SystemExit(1)]),
    "UnprintableError": UnprintableError(),
}

#: Where the code of the job that runs raises its fault, and which.
_place = ""
_fault = ""


@contextmanager
def raising(place: str, fault: str) -> Iterator[None]:
    global _place, _fault
    _place, _fault = place, fault
    yield
    _place = ""


def raise_at(place: str) -> None:
    if place == _place:
        raise FAULTS[_fault]


class RaisingSolver(ToySolver):
    def __init__(self, settings: Any, facts: Any) -> None:
        raise_at("solver's start")
        super().__init__(settings, facts)

    def compute(self, *args: Any) -> Any:
        raise_at("solver")
        return super().compute(*args)


class RaisingPolicy:
    name = "raising"

    def suggest(self, view: Any) -> list[Any]:
        raise_at("policy")
        return []


def raising_trainer(settings: Any, facts: Any, absent: str) -> Any:
    raise_at("trainer's start")
    return trainer_that_raises(settings, facts, absent)


def trainer_that_raises(settings: Any, facts: Any, absent: str) -> Any:
    made = toy_trainer(settings, facts, absent)
    request = next(made)
    for _ in range(4):
        request = made.send((yield request))
    raise_at("trainer")
    return made.send((yield request))


RAISING = replace(ALGORITHM, name="raising", solver=RaisingSolver, trainer=raising_trainer)


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        *((place, fault) for place in ("solver", "trainer") for fault in FAULTS),
        *(
            (place, fault)
            for place in ("solver's start", "trainer's start", "policy")
            for fault in ("ValueError", "StopIteration", "SystemExit")
        ),
    ],
)
def test_a_job_fails_with_the_exception_of_its_users_code(place: str, fault: str) -> None:
    algorithm = {"name": f"{__name__}:RAISING"}
    job = VirtualJob(toy_job(algorithm=algorithm, policies=[f"{__name__}:RaisingPolicy"]))
    with raising(place, fault):
        job.end()
    assert job.agent.state == "failed"
    message = job.agent.error["message"]
    assert f" failed: {fault.partition(' ')[0]}: " in message
    assert "(test_user_errors.py:" in message
    assert job.events("MemberLost") == []


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("how", ["in a thread", "on the loop"])
@pytest.mark.parametrize("make", [ThreadRunner, BriefRunner])
async def test_what_a_runners_call_raises_reaches_its_caller(
    make: Callable[[str], Any], how: str, fault: str
) -> None:
    runner = make("test")
    function = Repeated(lambda: raise_at("call"))
    function.n_brief = 0 if how == "in a thread" else 10**6
    with raising("call", fault), pytest.raises(Exception) as raised:  # noqa: PT011
        await asyncio.wait_for(runner.run(function), 60)
    assert FAULTS[fault] in (raised.value, raised.value.__cause__)
    assert await asyncio.wait_for(runner.run(int), 60) == 0
    runner.close()


class FaultyHostSolver(ToySolver):
    #: The faults that are raised in the next computations, each on a member of its own.
    faults: ClassVar[list[BaseException]] = []

    def compute(self, work: Any, *args: Any) -> Any:
        if self.faults and not hasattr(self, "is_ill"):
            self.is_ill = True
            raise self.faults.pop()
        return super().compute(work, *args)


FAULTY_HOST = replace(ALGORITHM, name="faulty-host", solver=FaultyHostSolver)


def faulty(faults: list[BaseException], n: int) -> VirtualJob:
    FaultyHostSolver.faults = list(faults)
    algorithm = {"name": f"{__name__}:FAULTY_HOST"}
    members = {"start": n, "min": 1}
    return VirtualJob(toy_job(algorithm=algorithm, absent="ignore", members=members)).end()


@pytest.mark.parametrize(
    "faults",
    [
        [OSError(5, "Input/output error")],
        [PermissionError(13, "Permission denied")],
        [MemoryError("no room")],
        [RuntimeError("can't start new thread")],
        [OSError(5, "Input/output error"), MemoryError("no room")],
    ],
)
def test_a_fault_of_one_host_excludes_its_member_for_good(faults: list[BaseException]):
    job = faulty(faults, 6)
    assert (job.agent.state, job.agent.error) == ("done", None)
    lost = [record["reason"] for record in job.events("MemberLost")]
    assert len(lost) == len(faults)
    for fault, reason in zip(reversed(faults), lost, strict=True):
        assert f" failed: {type(fault).__name__}: {fault} (test_user_errors.py:" in reason
    assert len(job.events("MemberJoined")) == 6


@pytest.mark.parametrize("n", [1, 6])
def test_a_fault_of_every_host_is_that_of_the_job(n: int):
    faults = [FileNotFoundError(2, "No such file"), PermissionError(13, "Permission denied")]
    job = faulty(faults, n)
    assert job.agent.state == "failed"
    assert "(test_user_errors.py:" in job.agent.error["message"]
    assert len(job.events("MemberLost")) == min(1, n - 1)


@pytest.mark.parametrize("n_hosts", [1, 6])
def test_a_mount_that_one_host_lacks_excludes_it(monkeypatch: Any, n_hosts: int):
    lacking: set[ChunkStore] = set()
    read = ChunkStore.read

    def reads(store: ChunkStore, *args: Any) -> Any:
        if len(lacking) < n_hosts:
            lacking.add(store)
        if store in lacking:
            raise missing("/mnt/data.csv")
        return read(store, *args)

    monkeypatch.setattr(ChunkStore, "read", reads)
    job = VirtualJob(toy_job()).end()
    assert job.agent.state == ("done" if n_hosts == 1 else "failed")
    (lost,) = job.events("MemberLost")
    wanted = (
        f"data file /mnt/data.csv does not exist on host {socket.gethostname()}, where a worker"
    )
    assert lost["reason"].startswith(wanted)
    if n_hosts > 1:
        assert job.agent.error["message"].startswith(wanted)


class Chunks:
    """Stands for what a frame of an error holds."""


class KeepingSolver(ToySolver):
    held: ClassVar[list[weakref.ref[Chunks]]] = []

    def compute(self, *args: Any) -> Any:
        chunks = Chunks()
        self.held.append(weakref.ref(chunks))
        error = ValueError("x")  # this frame has the error, whose traceback has this frame
        raise error


KEEPING = replace(ALGORITHM, name="keeping", solver=KeepingSolver)


def test_an_error_keeps_nothing_of_the_frames_that_it_passed():
    """No collector runs on an idle worker, where a spill file stayed open."""
    algorithm = {"name": f"{__name__}:KEEPING"}
    gc.disable()
    try:
        VirtualJob(toy_job(algorithm=algorithm, members={"start": 2, "min": 1})).end()
        assert KeepingSolver.held
        assert [held() for held in KeepingSolver.held] == [None] * len(KeepingSolver.held)
    finally:
        gc.enable()
