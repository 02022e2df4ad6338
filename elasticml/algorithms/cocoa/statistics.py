"""A member's half of the bound: statistics of its chunks, added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.bins import Plan
from elasticml.data.chunk import Chunk, Layout

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMap:
    """How a chunk's rows look to the algorithm: ``x~ = ((x - shift) * factor, constant)``.

    A model is *sent* in the chunks' own coordinates: ``factor * v``, and with a constant or a shift
    one more coordinate at the end, the offset that every row adds to its margin.
    """

    #: Of the data set.
    layout: Layout
    n_columns: int
    factor: F64 | None = None
    shift: F64 | None = None
    #: The intercept's column (``intercept_scaling``); 0 without an intercept.
    constant: float = 0.0

    @property
    def has_offset(self) -> bool:
        """Whether a last coordinate is sent that belongs to no column."""
        return self.constant != 0.0 or self.shift is not None

    @property
    def n_sent(self) -> int:
        """Coordinates that are sent."""
        return self.n_columns + self.has_offset


def row_norm_max(chunk: Chunk, rows: RowMap) -> float:
    """Return an upper bound of the largest ``|x~_i|`` of a chunk, tight to 1e-9."""
    raise NotImplementedError


def add_statistics(
    plan: Plan,
    rows: RowMap,
    chunk: Chunk,
    targets: F64,
    margins: F64,
    weights: F64 | None,
    out: Mapping[str, F64],
) -> None:
    """Add a chunk's statistics to ``out``, arrays of the shapes ``plan.shapes``.

    Parameters
    ----------
    targets : ndarray (n,)
        -1 or +1; for the squared loss real.
    margins : ndarray (n,)
        ``y_i x~_i.v0``; for the squared loss ``x~_i.v0``.
    weights : ndarray (n,), optional
        Not negative; ones where not given.
    """
    raise NotImplementedError
