"""A chunk's state as a new owner receives it."""

from __future__ import annotations

from elasticml.data.chunks.chunk import Chunk
from elasticml.runtime.chunks.state_codec import decode_states, encode_states


def send_state(giver: Chunk, taker: Chunk) -> None:
    """Give a copy of the chunk its original's state, through the bytes on the wire."""
    ((taker.state, taker.state_version),) = decode_states(*encode_states([giver]))
