"""How many bytes a message takes on a virtual wire, and how many examples a computation."""

from __future__ import annotations

from dataclasses import dataclass

from elasticml.algorithms.base import Exchange, Work
from elasticml.sim.cost_only_job import DOWN_VALUES, UP_VALUES
from elasticml.training.array_buffers import n_values

#: An order, an event, or what surrounds the arrays in a frame.
CONTROL_BYTES = 256


@dataclass(frozen=True, slots=True)
class ExchangeSizes:
    """Sizes of an exchange's messages."""

    #: Values of a partial, and those that it stands for.
    values: int
    up_values: int
    #: Bytes of the frames that carry the model and a partial.
    down_bytes: int
    up_bytes: int


def up_values(exchange: Exchange | Work) -> int:
    """Return how many doubles a partial has, or stands for."""
    values = exchange.parameters.get(UP_VALUES)
    return n_values(exchange.returns) if values is None else int(values)


def sizes_of(header: Work) -> ExchangeSizes:
    """Return the sizes of an exchange's messages."""
    down, up = header.parameters.get(DOWN_VALUES), up_values(header)
    n_down = sum(array.size for array in header.model.values()) if down is None else int(down)
    return ExchangeSizes(
        values=n_values(header.returns),
        up_values=up,
        down_bytes=CONTROL_BYTES + 8 * n_down,
        up_bytes=CONTROL_BYTES + 8 * up,
    )


def examples_of(work: Work, rows: int) -> float:
    """Return the examples that a member with ``rows`` rows visits, in one pass or several."""
    return rows * float(work.parameters.get("local_epochs", 1.0))
