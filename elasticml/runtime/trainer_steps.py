"""The trainer's steps: each runs in the work thread, and what comes of it returns as an event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.runtime.executors import Long, Runner, parallel
from elasticml.training.array_buffers import Buffers, Vector
from elasticml.training.driving import JobDriver
from elasticml.training.trainer_runner import TrainerRunner

logger = logging.getLogger(__name__)


#: Threads that add long partials: the driver's machine waits for nothing else then.
SUM_THREADS = 2


class TrainerSteps:
    """Runs a job's trainer, one step at a time.

    Parameters
    ----------
    driver : JobDriver
        Takes the events.
    buffers : Buffers
        Makes the arrays that models are packed into.
    runner : Runner
        Runs the steps.
    spawn : callable
        Starts a coroutine on the event loop.
    """

    def __init__(
        self,
        driver: JobDriver,
        buffers: Buffers,
        runner: Runner,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._driver = driver
        self._buffers = buffers
        self._runner = runner
        self._spawn = spawn
        self._parallel = parallel(SUM_THREADS)

    def start(self, training: TrainerRunner) -> None:
        """Run the trainer to its first request."""
        training.new_buffer = self._buffers.take_to_send
        training.parallel = self._parallel
        self._spawn(self._step(training.start))

    def proceed(self, command: cmd.Continue) -> None:
        """Answer the end of a round."""
        training = self._driver.driver_session.training
        assert training is not None
        end = training.round_end
        proceed = _marked(training.proceed, is_long=end is not None and end.is_long)
        self._spawn(self._step(proceed, command.go_on, command.tuned))

    def deliver(
        self, command: cmd.Deliver, inputs: list[Vector], anchor: list[tuple[int, Vector]]
    ) -> None:
        """Add up what came in, and give it to the trainer."""
        training = self._driver.driver_session.training
        assert training is not None and training.exchange is not None
        deliver = _marked(training.deliver, is_long=training.exchange.is_long)
        self._spawn(self._step(deliver, command, inputs, anchor))

    async def _step(self, function: Callable[..., ev.Event], *args: Any) -> None:
        try:
            event = await self._runner.run(function, *args)
        except Exception as fault:
            # Nobody waits for this task: a step that ended without an event would be a job that
            # hangs. No memory for a sum comes here, and a model that cannot be packed.
            job = self._driver.driver_session.record["job"]
            logger.exception("job %s: a step failed", job)
            event = ev.Failed(
                cause="driver", reason=f"the driver failed: {type(fault).__name__}: {fault}"
            )
        try:
            event = self._driver.after_step(event)
        except Exception as error:
            # The event says what the trainer's error was: it is of no kind that others know.
            job = self._driver.driver_session.record["job"]
            logger.error("job %s: the trainer failed", job, exc_info=error)
        self._driver.feed(event)

    def close(self) -> None:
        """Let the work thread go."""
        self._runner.close()
        self._parallel.close()


def _marked(step: Callable[..., ev.Event], *, is_long: bool) -> Callable[..., ev.Event]:
    return Long(step) if is_long else step
