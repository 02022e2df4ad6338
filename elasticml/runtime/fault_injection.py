"""The seam through which a job's planned faults reach real worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from elasticml.errors import ElasticmlError
from elasticml.protocol.commands import Inject

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
