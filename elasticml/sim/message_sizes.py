"""Bytes of messages on the virtual network, and examples of a computation."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from elasticml.algorithms.base import Exchange, Work
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command
from elasticml.sim.cost_only_job import DOWN_VALUES, UP_VALUES
from elasticml.training.array_buffers import n_values

#: An order, an event, or what surrounds the arrays in a frame.
CONTROL_BYTES = 256
#: A chunk's id in a message.
ID_BYTES = 24


def message_bytes(message: Command | ev.Event) -> int:
    """Return the bytes of an order or an event; only chunk ids make one long."""
    ids: Sized = getattr(message, "chunks", ()) or getattr(message, "holdings", ())
    return CONTROL_BYTES + ID_BYTES * len(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExchange:
    """What all members share of an exchange: sizes of messages, the event after a computation."""

    computed: ev.Computed
    #: Values of a partial, and those that it represents.
    values: int
    up_values: int
    #: Bytes of the frames that carry the model and a partial.
    down_bytes: int
    up_bytes: int


def up_values(exchange: Exchange | Work) -> int:
    """Return how many doubles a partial has, or represents."""
    values = exchange.parameters.get(UP_VALUES)
    return n_values(exchange.returns) if values is None else int(values)


def shared_exchange(header: Work) -> SharedExchange:
    """Return what all members share of an exchange."""
    down, up = header.parameters.get(DOWN_VALUES), up_values(header)
    n_down = sum(array.size for array in header.model.values()) if down is None else int(down)
    return SharedExchange(
        computed=ev.Computed(exchange=header.exchange),
        values=n_values(header.returns),
        up_values=up,
        down_bytes=CONTROL_BYTES + 8 * n_down,
        up_bytes=CONTROL_BYTES + 8 * up,
    )


def examples_of(work: Work, rows: int) -> float:
    """Return the examples that a member with ``rows`` rows visits, in one pass or several."""
    return rows * float(work.parameters.get("local_epochs", 1.0))
