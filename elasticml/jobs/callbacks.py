"""Callbacks: what a client does with a job's rounds and its result while it follows the job."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elasticml.errors import ConfigError, one_line
from elasticml.jobs.run_directory import history_row
from elasticml.story.records import RoundEnded, records_of

if TYPE_CHECKING:
    from elasticml.jobs.result import Result

HOOKS = ("on_start", "on_records", "on_round", "on_end", "on_fail")


class Callback:
    """Base of callbacks; every method does nothing.

    They are called in the client's process, in the thread that waits for the result. One that
    raises is not called again: the job goes on, a warning says so at once, and a note of the run.

    Examples
    --------
    >>> class Print(em.callbacks.Callback):
    ...     def on_end(self, result):
    ...         print(result.summary["rounds"], "rounds")
    >>> job = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=em.Stop(rounds=3))
    >>> result = job.run(client, callbacks=[Print()])
    3 rounds
    """

    def on_start(self, job: Mapping[str, Any]) -> None:
        """Begin; ``job`` has the sections of the job file."""

    def on_records(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Process the story's new records; about once a second, also if there are none."""

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Process the history's row of a round that has ended."""

    def on_end(self, result: Result) -> None:
        """Process the result, with all metrics and the last row of the history."""

    def on_fail(self, error: BaseException) -> None:
        """Process the error or the interrupt with which the wait for the job ended."""


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Check that each one is a callback or a function.

    Raises
    ------
    ConfigError
        When one is neither.
    """
    for k, callback in enumerate(callbacks):
        if not (callable(callback) or any(hasattr(callback, hook) for hook in HOOKS)):
            raise ConfigError(
                f"callbacks[{k}]: got {callback!r}, wanted an object with on_round(row), such as "
                "an em.callbacks.Callback, or a function of a row"
            )


class CallbackRunner:
    """Calls callbacks for a job.

    Parameters
    ----------
    callbacks : sequence of Callback or callable
        A function is called with each row.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        check_callbacks(callbacks)
        self._callbacks = list(callbacks)
        #: Sentences about callbacks that raised.
        self.failures: list[str] = []

    def on_records(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Call ``on_records``, and ``on_round`` for the rounds that have ended."""
        self.call("on_records", records)
        for ended in records_of(RoundEnded, records):
            self.call("on_round", history_row(ended))

    def call(self, hook: str, argument: Any) -> None:
        """Call a method of all callbacks that have it and have not raised before."""
        for callback in list(self._callbacks):
            method = _method(callback, hook)
            if method is None:
                continue
            try:
                method(argument)
            except Exception as error:
                self._callbacks.remove(callback)
                name = getattr(callback, "__qualname__", type(callback).__qualname__)
                text = (
                    f"callback {name} failed in {hook}: {type(error).__name__}: {one_line(error)}"
                )
                self.failures.append(f"{text}; it was not called again")
                with suppress(RuntimeWarning):  # where warnings are errors, the note remains
                    warnings.warn(f"{text}; the job goes on without it", RuntimeWarning, 2)


def _method(callback: Any, hook: str) -> Callable[[Any], object] | None:
    if hook == "on_round" and not hasattr(callback, hook) and callable(callback):
        function: Callable[[Any], object] = callback
        return function
    return getattr(callback, hook, None)
