"""How many bytes a message takes on a virtual wire, and how many examples a computation."""

from __future__ import annotations

from elasticml.algorithms.base import Exchange, Work
from elasticml.sim.cost_only_job import DOWN_VALUES, UP_VALUES
from elasticml.training.array_buffers import n_values

#: An order, an event, or what surrounds the arrays in a frame.
CONTROL_BYTES = 256


def down_values(exchange: Exchange) -> int:
    """Doubles that an exchange's model has, or stands for."""
    values = exchange.parameters.get(DOWN_VALUES)
    return sum(a.size for a in exchange.model.values()) if values is None else int(values)


def up_values(exchange: Exchange) -> int:
    """Doubles that a partial of an exchange has, or stands for."""
    values = exchange.parameters.get(UP_VALUES)
    return n_values(exchange.returns) if values is None else int(values)


def down_bytes(exchange: Exchange) -> int:
    """Bytes of a frame with the model."""
    return CONTROL_BYTES + 8 * down_values(exchange)


def up_bytes(exchange: Exchange) -> int:
    """Bytes of a frame with a partial."""
    return CONTROL_BYTES + 8 * up_values(exchange)


def examples_of(work: Work, rows: int) -> float:
    """Examples that are gone through by a member with so many: in a pass, or in several."""
    return rows * float(work.parameters.get("local_epochs", 1.0))
