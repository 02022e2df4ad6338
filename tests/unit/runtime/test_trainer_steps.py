"""Which of a trainer's steps run off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import Model, RoundEnd
from elasticml.runtime.executors import Long
from tests.memory_world import InlineRunner, World, toy_record
from tests.toy import ALGORITHM, ask

pytestmark = pytest.mark.asyncio

#: Whether the step after an exchange, and after the round's end, is long.
ROUNDS = [(False, False), (True, False), (False, True), (False, False)]


def trainer(settings, facts, absent):
    """Request one exchange a round, and announce which steps are long."""
    for exchange, end in ROUNDS:
        yield replace(ask("any", False), is_long=exchange)
        yield RoundEnd(objective=None, is_long=end)
    return Model(arrays={"coef": np.zeros(1)}, converged=True, reason="it is over")


MARKS = replace(ALGORITHM, name="marks", trainer=trainer)


class RecordingRunner(InlineRunner):
    """Records whether calls are marked as long."""

    def __init__(self) -> None:
        self.marks: list[bool] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        self.marks.append(isinstance(function, Long))
        return function(*args)


async def test_steps_that_the_trainer_announces_as_long_are_marked_for_the_runner() -> None:
    runner = RecordingRunner()
    world = World(
        toy_record(algorithm={"name": f"{__name__}:MARKS"}),
        runner=lambda at: runner if at == "driver" else InlineRunner(),
    )
    for _ in range(6):
        await world.add()
    await world.run()
    assert world.shell.state == "done"
    # The first step leads to the first exchange.
    assert runner.marks == [False, *(mark for pair in ROUNDS for mark in pair)]
    await world.close()
