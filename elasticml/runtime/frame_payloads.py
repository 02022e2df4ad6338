"""Arrays as payloads of frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from elasticml.collective.frames import Frame, reading_prefix
from elasticml.ids import ExchangeId, Mask, MemberId, chunk_id, member_id
from elasticml.protocol import events as ev
from elasticml.training.array_buffers import Vector


def vector_of(frame: Frame) -> Vector:
    """Return the array that a frame's payload was read into; empty if it has no payload."""
    if frame.payload is None:
        return np.empty(0)
    array = frame.payload.obj
    assert isinstance(array, np.ndarray)
    return array


def bytes_of(array: Vector) -> memoryview | None:
    """View an array as bytes; None if it is empty, as for a frame without payload."""
    return array.data.cast("B") if array.size else None


#: Types of the numbers that come from a peer.
_NUMBERS = frozenset((int, float))


def numbers_of(frame: Frame) -> tuple[Mapping[str, Any], ...]:
    """Return what a partial carries by member: seconds of computing, bytes sent, computations.

    Raises
    ------
    RemoteProtocolError
        When they are no numbers from 0 on.
    """
    prefix = frame.prefix
    found = (prefix.get("compute_s") or {}, prefix.get("sent") or {}, prefix.get("done") or {})
    with reading_prefix("the numbers of a partial"):
        for numbers in found:
            values = numbers.values()
            # No loop in Python: near the root there are thousands.
            is_right = _NUMBERS.issuperset(map(type, values)) and math.isfinite(sum(values))
            if not is_right or min(values, default=0) < 0:
                raise ValueError("wanted numbers of at least 0")
    return found


def not_finite_of(frame: Frame) -> dict[str, str]:
    """Return whose parts of a partial are not finite, each with a chunk at fault, or "".

    Raises
    ------
    RemoteProtocolError
        When they are no ids.
    """
    found = frame.prefix.get("not_finite") or {}
    with reading_prefix("not_finite of a partial"):
        return {str(member_id(m)): str(chunk_id(c)) if c else "" for m, c in found.items()}


def partial_event(
    member: MemberId, frame: Frame, handle: int, compute_s: Mapping[str, float]
) -> ev.PartialArrived | ev.AnchorArrived:
    """Return the event of a partial frame: a partial of the exchange, or part of an anchor.

    Parameters
    ----------
    compute_s : mapping
        The seconds of those whose partials are in it, if they matter here.

    Raises
    ------
    RemoteProtocolError
        When the prefix is that of neither.
    """
    prefix, exchange = frame.prefix, ExchangeId(frame.exchange)
    cause = f"link {member}"
    with reading_prefix("a partial"):
        if "anchor_of" in prefix:
            sender = prefix["anchor_of"]
            return ev.AnchorArrived(
                cause=cause,
                member=member,
                exchange=exchange,
                sender=member_id(sender) if sender else None,
                handle=handle,
            )
        return ev.PartialArrived(
            cause=cause,
            exchange=exchange,
            sender=member,
            contributors=Mask(int(prefix["of"], 16)),
            order="" + prefix["order"],
            handle=handle,
            compute_s={member_id(name): s for name, s in compute_s.items()},
        )
