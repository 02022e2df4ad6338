"""Which of a solver's operations an exchange asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from elasticml.algorithms.base import Arrays, Parallel, Work
from elasticml.data.chunk import Chunk
from elasticml.errors import LocalProtocolError

Operation = Callable[[Work, Sequence[Chunk], Parallel], Arrays]


def operation_of(work: Work, operations: Mapping[str, Operation]) -> Operation:
    """Return what is asked for.

    Parameters
    ----------
    operations : mapping of str to callable
        Made for the call where they are a solver's methods: one that holds them holds itself, and
        its chunks, until somebody looks for cycles.

    Raises
    ------
    LocalProtocolError
        When it is none of these.
    """
    if work.operation not in operations:
        raise LocalProtocolError(
            f"exchange {work.exchange} asks for {work.operation!r}, wanted one of "
            f"{', '.join(operations)}: the trainer is another version's"
        )
    return operations[work.operation]
