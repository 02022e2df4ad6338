"""Dispatch of an exchange to a solver's operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from elasticml.algorithms.base import Arrays, Parallel, Work
from elasticml.data.chunk import Chunk
from elasticml.errors import LocalProtocolError

Operation = Callable[[Work, Sequence[Chunk], Parallel], Arrays]


def operation_of(work: Work, operations: Mapping[str, Operation]) -> Operation:
    """Return the operation that ``work`` names.

    Parameters
    ----------
    operations : mapping of str to callable
        If they are a solver's bound methods, build the mapping for each call: a solver that stored
        it would form a reference cycle and keep its chunks until the next garbage collection.

    Raises
    ------
    LocalProtocolError
        When the operation is unknown.
    """
    if work.operation not in operations:
        raise LocalProtocolError(
            f"exchange {work.exchange} asks for {work.operation!r}, wanted one of "
            f"{', '.join(operations)}: the trainer has another version"
        )
    return operations[work.operation]
