"""Arrays as payloads of frames."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.base import Exchange
from elasticml.collective.frames import Frame, Kind
from elasticml.ids import ExchangeId, Generation, Mask, MemberId, member_id
from elasticml.protocol import events as ev
from elasticml.training.array_buffers import Vector, manifest


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


def partial_event(
    member: MemberId, frame: Frame, handle: int
) -> ev.PartialArrived | ev.AnchorArrived:
    """Return the event of a partial frame: a partial of the exchange, or part of an anchor."""
    prefix, exchange = frame.prefix, ExchangeId(frame.exchange)
    cause = f"link {member}"
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
        order=prefix["order"],
        handle=handle,
        compute_s={member_id(name): s for name, s in (prefix.get("compute_s") or {}).items()},
    )


def model_frame(
    number: ExchangeId, generation: Generation, members: int, exchange: Exchange, packed: Vector
) -> Frame:
    """Return the frame that broadcasts an exchange to ``members`` members.

    ``packed`` holds the arrays of its model.
    """
    prefix = {
        "generation": generation,
        "members": members,
        "operation": exchange.operation,
        "parameters": dict(exchange.parameters),
        "model": manifest(exchange.model),
        "returns": {name: list(shape) for name, shape in exchange.returns.items()},
        "reduce": exchange.reduce,
        "keep": exchange.keep,
    }
    return Frame(kind=Kind.MODEL, exchange=number, prefix=prefix, payload=bytes_of(packed))
