"""Bodies on their way to other members: as they lie, compressed ones too, which are the smaller."""

from __future__ import annotations

from elasticml.data import mapped
from elasticml.data.away import away_of
from elasticml.data.chunk import Chunk
from elasticml.data.packed import is_packed
from elasticml.data.shelf import release
from elasticml.terms import ChunkId


def make_ready(chunk: Chunk) -> None:
    """Have what is sent of a chunk here, and checked if it never was; not for an event loop.

    Raises
    ------
    DataError
        When it is damaged.
    """
    if chunk.is_mapped:
        mapped.fetch(chunk.stored)
    if not chunk.is_checked:
        chunk.bring()
        chunk.let_go()  # a compressed one is sent as it lies


def sent(chunk: Chunk) -> None:
    """Let go of what was fetched to be sent."""
    if chunk.is_packed and chunk.is_mapped:
        mapped.let_go(chunk.stored)
    elif chunk.shelf is not None:
        release([chunk])


def received(id: ChunkId, payload: memoryview, *, is_mapped: bool) -> Chunk:
    """Make a chunk of what has come, which nobody writes to from now on.

    Parameters
    ----------
    is_mapped : bool
        It lies in a file.

    Raises
    ------
    DataError
        When it is no body, compressed or not.
    """
    if is_packed(payload):
        place = f"chunk {id} as it was received"
        chunk = Chunk.of_away(id, away_of(payload.toreadonly(), str(id), place))
    else:
        chunk = Chunk.from_body(id, payload)
    chunk.is_mapped = is_mapped
    return chunk
