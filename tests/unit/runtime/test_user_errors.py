"""Whatever code of users raises, and wherever, is the job's error with its file and line."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from elasticml.runtime.executors import BriefRunner, Repeated, ThreadRunner
from tests.memory_world import World, toy_record
from tests.toy import ALGORITHM, ToySolver, toy_trainer


class UnprintableError(Exception):
    """An exception that cannot be formatted."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def leave() -> NoReturn:
    sys.exit(3)


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


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "place", ["solver", "solver's start", "trainer", "trainer's start", "policy"]
)
async def test_a_job_fails_with_the_exception_of_its_users_code(place: str, fault: str) -> None:
    algorithm = {"name": f"{__name__}:RAISING"}
    world = World(toy_record(algorithm=algorithm, policies=[f"{__name__}:RaisingPolicy"]))
    with raising(place, fault):
        for _ in range(6):
            await world.add()
        await world.run()
    assert world.shell.state == "failed"
    assert world.shell.error is not None
    message = world.shell.error["message"]
    assert f" failed: {fault.partition(' ')[0]}: " in message
    assert "(test_user_errors.py:" in message
    assert world.events("MemberLost") == []
    await world.close()


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
