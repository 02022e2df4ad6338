"""Send chunk bodies to other members, and rebuild the received ones.

A body is sent as it is stored: a compressed body stays compressed, which saves bytes.
"""

from __future__ import annotations

from elasticml.data import mapped
from elasticml.data.away import away_of
from elasticml.data.chunk import Chunk
from elasticml.data.packed import is_packed
from elasticml.data.shelf import release
from elasticml.terms import ChunkId


def make_ready(chunk: Chunk) -> None:
    """Load a chunk's stored bytes before they are sent, and verify them once; may block.

    Raises
    ------
    DataError
        When the body is damaged.
    """
    if chunk.is_mapped:
        mapped.fetch(chunk.stored)
    if not chunk.is_checked:
        chunk.bring()
        chunk.let_go()  # a compressed body is sent as it is stored


def sent(chunk: Chunk) -> None:
    """Release the memory of a body that was fetched for sending."""
    if chunk.is_packed and chunk.is_mapped:
        mapped.let_go(chunk.stored)
    elif chunk.shelf is not None:
        release([chunk])


def received(id: ChunkId, payload: memoryview, *, is_mapped: bool) -> Chunk:
    """Return the chunk in a received payload, which must not be written to afterwards.

    Parameters
    ----------
    is_mapped : bool
        Whether the payload is in a file.

    Raises
    ------
    DataError
        When the payload is not a body, compressed or not.
    """
    if is_packed(payload):
        origin = f"chunk {id} as it was received"
        chunk = Chunk.of_away(id, away_of(payload.toreadonly(), str(id), origin))
    else:
        chunk = Chunk.from_body(id, payload)
    chunk.is_mapped = is_mapped
    return chunk
