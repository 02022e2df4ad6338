"""Planned faults on real workers: losses and returns, and members that compute more slowly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.errors import ElasticmlError
from elasticml.protocol.commands import Inject
from elasticml.protocol.events import ExchangeHeader, Shape

#: How a worker is lost: SIGKILL; SIGTERM, then SIGKILL after the grace; a notice before both.
How = Literal["kill", "terminate", "notice"]

#: The key in ``scheduler.extensions`` under which a cluster offers its fault injector.
FAULT_INJECTOR_EXTENSION = "elasticml-keeper"


class FaultInjector(Protocol):
    """Interface of a cluster that can inject a job's planned faults.

    Implementations run on the scheduler's event loop. All methods are idempotent; workers that have
    ended by themselves are not an error.
    """

    async def lose(self, addresses: Sequence[str], how: How, grace_s: float) -> None:
        """End the workers at these addresses; return when their processes have exited.

        Parameters
        ----------
        addresses : sequence of str
            Dask addresses, as in ``scheduler.workers``.
        how : {"kill", "terminate", "notice"}
            ``"kill"`` sends SIGKILL to all of them at once; ``"terminate"`` sends SIGTERM, and
            SIGKILL to those that remain after the grace; ``"notice"`` announces the end first.
        grace_s : float
            Seconds between the announcement (or SIGTERM) and the end; ``"kill"`` ignores it.
        """
        ...

    async def bring_back(self, n: int) -> None:
        """Start ``n`` more workers, standbys first; return when they are registered."""
        ...

    async def prepare(self, n: int) -> None:
        """Start standby processes until there are ``n``; these register on request."""
        ...

    async def slow(self, addresses: Sequence[str], factor: float) -> None:
        """Make the workers at these addresses compute ``factor`` times as long.

        They do additional work from their next computation on; a factor of 1 ends it.
        """
        ...


async def carry_out(
    command: Inject,
    addresses: Sequence[str],
    injector: FaultInjector | None,
    spawn: Callable[[Any], None],
) -> str | None:
    """Perform a planned fault; return the reason if that failed, else None.

    Parameters
    ----------
    addresses : sequence of str
        Workers to lose.
    spawn : callable
        Runs a coroutine in the background: the round does not wait for the grace of a notice.
    """
    if injector is None:
        return "this cluster cannot inject faults"
    try:
        if command.kind == "return":
            await injector.bring_back(command.count)
        elif command.kind == "prepare":
            await injector.prepare(command.count)
        elif command.how == "kill":
            await injector.lose(addresses, "kill", command.grace_s)
        else:
            how: How = "notice" if command.how == "notice" else "terminate"
            spawn(injector.lose(addresses, how, command.grace_s))
    except ElasticmlError as failure:
        return failure.message
    return None


#: The key in ``worker.extensions`` under which a cluster sets its worker's slowdown.
SLOWNESS_EXTENSION = "elasticml-slowness"
#: Size of the square matrices that are multiplied to keep a core busy; they fit in its cache.
SIDE = 48


class FaultSlowdown:
    """Slows down computations by real work, for tests and studies.

    Parameters
    ----------
    factor : float, at least 1
        Processor time relative to an undisturbed member: 1 adds nothing, 1.5 adds half.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def begin(self) -> float | None:
        """Return the processor time of the calling thread, which takes long, if it is needed."""
        return time.thread_time() if self.factor > 1.0 else None

    def end(self, began_s: float | None, parallel: Parallel) -> None:
        """Slow down the computation that began then."""
        if began_s is not None:
            self.add(time.thread_time() - began_s, parallel)

    def add(self, spent_s: float, parallel: Parallel) -> None:
        """Keep all threads busy for the time that the factor adds to a computation.

        Parameters
        ----------
        spent_s : float, seconds
            Processor time of the computation in the calling thread.
        """
        extra_s = (self.factor - 1.0) * spent_s
        if extra_s > 0.0:
            parallel.map(_burn, [extra_s] * parallel.n_threads)

    def merged(self, header: ExchangeHeader[Shape], n: int) -> None:
        """Note that ``n`` partials of an exchange were added: virtual time passes, no real one."""


def _burn(seconds: float) -> None:
    """Spend processor time in this thread; sleeping would free the core for others."""
    until_s = time.thread_time() + seconds
    left = np.full((SIDE, SIDE), 1.0 / SIDE)
    right = left.copy()
    out = np.empty_like(left)
    while time.thread_time() < until_s:
        np.matmul(left, right, out=out)
