"""A member's coordinate descent on its own columns, with the others' predictions fixed.

The local problem at residual r is ``-r.A dw + sigma'/2 dw.A'HA dw`` plus the coefficients' penalty,
with the loss's curvatures H. Divided by sigma' it is an elastic net with residual ``r / sigma'``
and penalties ``a / sigma'``, the form that coordinate descent solves.

Source: equation 12 of the general CoCoA framework (Smith et al., 2018), with features as data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa import sweep_kernels
from elasticml.algorithms.cocoa.column_blocks import ColumnBlock
from elasticml.algorithms.cocoa.sweep_kernels import WeightedColumns
from elasticml.arrays import F64, I64
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.objectives.penalty_kernels import Penalty

#: Maximum sweeps over the support after each sweep over all columns; together they take no longer
#: than this many sweeps over all columns.
SWEEPS: Final = 10
WORK: Final = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk's columns during the descent."""

    block: ColumnBlock
    #: (n_rows,) coefficients; changed in place.
    w: F64
    #: Weighted by curvatures.
    columns: WeightedColumns


@dataclass(slots=True, kw_only=True)
class LocalDescent:
    """Coefficients of a member's columns during the descent."""

    parts: Sequence[Part]
    #: (n,) the slope ``r / sigma' - H A dw``, without the shift, a multiple of ``h_root``.
    u: F64
    #: Divided by sigma'.
    penalty: Penalty
    shift: float = 0.0
    visited: int = 0

    def run(self, epochs: float, rng: np.random.Generator) -> None:
        """Run this number of epochs over all columns, each followed by sweeps over the support."""
        while epochs > 0.0:
            self._epoch(min(1.0, epochs), rng)
            epochs -= 1.0

    def _epoch(self, share: float, rng: np.random.Generator) -> None:
        order = [self.parts[k] for k in rng.permutation(len(self.parts))]
        chunks = stream_chunks([part.block.chunk for part in order])
        for part, _ in zip(order, chunks, strict=True):
            features = rng.permutation(part.block.features)
            if share < 1.0:
                features = features[: math.ceil(share * features.size)]
            self._sweep(part, features)
        self._refine(rng)

    def _refine(self, rng: np.random.Generator) -> None:
        """Sweep over the support alone, as long as that is little work."""
        each = [(part, np.flatnonzero(part.w)) for part in self.parts]
        parts = [(part, features) for part, features in each if features.size]
        support = sum(features.size for _, features in parts)
        columns = sum(part.block.features.size for part in self.parts)
        for _ in range(min(SWEEPS, WORK * columns // support) if support else 0):
            for k in rng.permutation(len(parts)):
                self._sweep(*parts[k])

    def _sweep(self, part: Part, features: I64) -> None:
        self.visited += features.size
        self.shift = sweep_kernels.sweep(
            features, part.columns, self.penalty, part.w, self.u, self.shift
        )
