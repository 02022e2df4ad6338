"""Arrays as the payloads of frames."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.base import Exchange
from elasticml.collective.frames import Frame, Kind
from elasticml.ids import ExchangeId, Generation, Mask, MemberId, member_id
from elasticml.protocol import events as ev
from elasticml.training.array_buffers import Vector, manifest


def vector_of(frame: Frame) -> Vector:
    """Return the array that a frame's payload was read into; empty where it has none."""
    if frame.payload is None:
        return np.empty(0)
    array = frame.payload.obj
    assert isinstance(array, np.ndarray)
    return array


def bytes_of(array: Vector) -> memoryview | None:
    """Look at an array as bytes; None where it is empty, as a frame without payload wants it."""
    return array.data.cast("B") if array.size else None


def partial_event(
    member: MemberId, frame: Frame, handle: int
) -> ev.PartialArrived | ev.AnchorArrived:
    """Make the event of a partial frame: an exchange's own, or one kept and asked for."""
    prefix, exchange = frame.prefix, ExchangeId(frame.exchange)
    cause = f"link {member}"
    if "anchor_of" in prefix:
        whose = prefix["anchor_of"]
        return ev.AnchorArrived(
            cause=cause,
            member=member,
            exchange=exchange,
            sender=member_id(whose) if whose else None,
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
    """Make the frame that takes an exchange down to so many members.

    ``packed`` holds its model's arrays.
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
