"""A free-running member's mail as one vector: rows' numbers where only rows travel, then arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elasticml.algorithms.async_sgd.base import Mail
from elasticml.training.arrays import Vector, n_values, pack, unpack

Shapes = Mapping[str, tuple[int, ...]]


def letter_values(shapes: Shapes, rows: int | None) -> int:
    """Count the values of a letter: of a whole state, or of so many rows of it."""
    return n_values(shapes) if rows is None else rows + n_values(_of_rows(shapes, rows))


def pack_letter(mail: Mail, shapes: Shapes) -> Vector:
    """Write mail down, in new memory."""
    rows = mail.rows
    vector = np.empty(letter_values(shapes, None if rows is None else rows.size))
    if rows is None:
        return pack(mail.arrays, shapes, vector)
    # Numbers of rows are exact in a double.
    vector[: rows.size] = rows
    pack(mail.arrays, _of_rows(shapes, rows.size), vector[rows.size :])
    return vector


def unpack_letter(vector: Vector, shapes: Shapes, rows: int | None) -> Mail:
    """Look at a letter as mail, where it lies.

    Raises
    ------
    ValueError
        When it is of another length than this problem's letters.
    """
    wanted = letter_values(shapes, rows)
    if vector.size != wanted:
        raise ValueError(f"mail of {vector.size} values, wanted {wanted}")
    if rows is None:
        return Mail(arrays=unpack(vector, shapes))
    numbers = vector[:rows].astype(np.int64)
    return Mail(arrays=unpack(vector[rows:], _of_rows(shapes, rows)), rows=numbers)


def _of_rows(shapes: Shapes, rows: int) -> dict[str, tuple[int, ...]]:
    return {name: (rows, *shape[1:]) for name, shape in shapes.items()}
