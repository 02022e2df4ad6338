"""Encode a state message of an asynchronous job as one vector: row numbers, if any, then arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elasticml.algorithms.async_sgd.base import Mail
from elasticml.training.array_buffers import Vector, n_values, pack, unpack

Shapes = Mapping[str, tuple[int, ...]]


def message_values(shapes: Shapes, rows: int | None) -> int:
    """Return the number of values of a message with a whole state, or with ``rows`` rows of it."""
    return n_values(shapes) if rows is None else rows + n_values(_of_rows(shapes, rows))


def pack_message(mail: Mail, shapes: Shapes) -> Vector:
    """Encode a message into a new vector."""
    rows = mail.rows
    vector = np.empty(message_values(shapes, None if rows is None else rows.size))
    if rows is None:
        return pack(mail.arrays, shapes, vector)
    # Row numbers are exact in a double.
    vector[: rows.size] = rows
    pack(mail.arrays, _of_rows(shapes, rows.size), vector[rows.size :])
    return vector


def unpack_message(vector: Vector, shapes: Shapes, rows: int | None) -> Mail:
    """Decode a message as views of the vector.

    Raises
    ------
    ValueError
        When its length does not match the shapes, or a row is none of theirs.
    """
    expected = message_values(shapes, rows)
    if vector.size != expected:
        raise ValueError(f"mail of {vector.size} values, wanted {expected}")
    if rows is None:
        return Mail(arrays=unpack(vector, shapes))
    n_rows = min((shape[0] for shape in shapes.values()), default=0)
    if not np.all((vector[:rows] >= 0) & (vector[:rows] < n_rows)):
        raise ValueError(f"mail with a row beyond the {n_rows} of a state")
    numbers = vector[:rows].astype(np.int64)
    return Mail(arrays=unpack(vector[rows:], _of_rows(shapes, rows)), rows=numbers)


def _of_rows(shapes: Shapes, rows: int) -> dict[str, tuple[int, ...]]:
    return {name: (rows, *shape[1:]) for name, shape in shapes.items()}
