"""Planned faults on real workers: losses and returns, and members that compute more slowly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.errors import ElasticmlError
from elasticml.protocol.commands import Inject

# The seam through which a job's planned faults reach real worker processes.

#: How a worker is lost: SIGKILL; SIGTERM and SIGKILL after the grace; a notice, then both.
How = Literal["kill", "terminate", "notice"]

#: The key in ``scheduler.extensions`` under which a cluster offers its fault injector.
FAULT_INJECTOR_EXTENSION = "elasticml-keeper"


class FaultInjector(Protocol):
    """What a cluster offers to a job whose faults are planned.

    Implementations run on the scheduler's event loop. Workers that ended by themselves are no
    error; asking twice for the same loss is the same as asking once.
    """

    async def lose(self, addresses: Sequence[str], how: How, grace_s: float) -> None:
        """End the workers at these addresses; return when their processes are gone.

        Parameters
        ----------
        addresses : sequence of str
            Dask addresses, as in ``scheduler.workers``.
        how : {"kill", "terminate", "notice"}
            ``"kill"`` sends SIGKILL to all of them at once; ``"terminate"`` sends SIGTERM, and
            SIGKILL to whoever is there after the grace; ``"notice"`` announces the end first.
        grace_s : float
            Seconds between the announcement (or SIGTERM) and the end; not used by ``"kill"``.
        """
        ...

    async def bring_back(self, n: int) -> None:
        """Start ``n`` more workers, standbys first; return when they are registered."""
        ...

    async def prepare(self, n: int) -> None:
        """Have ``n`` standby processes that need only a word to register."""
        ...

    async def slow(self, addresses: Sequence[str], factor: float) -> None:
        """Let the workers at these addresses take ``factor`` times as long for computations.

        They do so by real work on top, from their next computation on; 1 ends it.
        """
        ...


async def carry_out(
    command: Inject,
    addresses: Sequence[str],
    injector: FaultInjector | None,
    spawn: Callable[[Any], None],
) -> str | None:
    """Perform a planned fault; return what kept it from being performed, or None.

    Parameters
    ----------
    addresses : sequence of str
        Workers to lose.
    spawn : callable
        Runs what the round need not wait for: the grace of a notice.
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


# A member that computes more slowly than it could: real work on top, for tests and studies.

#: The key in ``worker.extensions`` under which a cluster says how slow its worker shall be.
SLOWNESS_EXTENSION = "elasticml-slowness"
#: Side of the square matrices that are multiplied to keep a core busy; they stay in its cache.
SIDE = 48


class FaultSlowdown:
    """How many times as much processor time each computation takes.

    Parameters
    ----------
    factor : float, at least 1
        1 adds nothing; 1.5 adds half of the processor time that the computation took.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def add(self, spent_s: float, parallel: Parallel) -> None:
        """Compute on all threads for what the factor adds to the processor time just spent.

        Parameters
        ----------
        spent_s : float, seconds
            Of the calling thread.
        """
        extra_s = (self.factor - 1.0) * spent_s
        if extra_s > 0.0:
            parallel.map(_burn, [extra_s] * parallel.n_threads)


def _burn(seconds: float) -> None:
    """Spend processor time of this thread; sleeping would leave the core to others."""
    until_s = time.thread_time() + seconds
    left = np.full((SIDE, SIDE), 1.0 / SIDE)
    right = left.copy()
    out = np.empty_like(left)
    while time.thread_time() < until_s:
        np.matmul(left, right, out=out)
