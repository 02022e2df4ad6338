"""Send chunk bodies to other members, and rebuild the received ones.

A body is sent as it is stored: a compressed body stays compressed, which saves bytes.
"""

from __future__ import annotations

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.compressed_body import is_compressed
from elasticml.data.chunks.lazy_body import open_lazy_body
from elasticml.data.out_of_core import mapped_memory
from elasticml.data.out_of_core.store import release
from elasticml.ids import ChunkId


def prepare_to_send(chunk: Chunk) -> None:
    """Load a chunk's stored bytes before they are sent, and verify them once; may block.

    Raises
    ------
    DataError
        When the body is damaged.
    """
    if chunk.is_mapped:
        mapped_memory.fetch(chunk.stored)
    if not chunk.is_verified:
        chunk.load()
        chunk.evict()  # a compressed body is sent as it is stored


def sent(chunk: Chunk) -> None:
    """Release the memory of a body that was fetched for sending."""
    if chunk.is_compressed and chunk.is_mapped:
        mapped_memory.evict(chunk.stored)
    elif chunk.out_of_core is not None:
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
    if is_compressed(payload):
        origin = f"chunk {id} as it was received"
        chunk = Chunk.from_lazy_body(id, open_lazy_body(payload.toreadonly(), str(id), origin))
    else:
        chunk = Chunk.from_body(id, payload)
    chunk.is_mapped = is_mapped
    return chunk
