"""A member's descent on its own columns, with the others' predictions fixed.

The local problem at residual r is ``-r.A dw + sigma'/2 dw.A'HA dw`` plus the coefficients' penalty,
with the loss's curvatures H; divided by sigma' it is an elastic net with residual ``r / sigma'``
and penalties ``a / sigma'``, which is what coordinate descent knows.

Source: equation 12 of the general CoCoA framework (Smith et al., 2018), with features as data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.primal_cocoa.column_blocks import Block, Parabola, Weighed
from elasticml.algorithms.primal_cocoa.sign_step import InModel, sign_step
from elasticml.data.shelf import flow
from elasticml.terms import ChunkId

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Sweeps over the columns in the model after one over all columns, at most; together they take no
#: longer than this many of those.
SWEEPS: Final = 10
WORK: Final = 2


@dataclass(slots=True, kw_only=True)
class Descent:
    """Coefficients of a member's columns on their way down."""

    blocks: Sequence[Block]
    #: By chunk, (n_rows,) each; changed in place.
    coefs: dict[ChunkId, F64]
    #: By chunk: what its columns are under the curvatures.
    weighed: Mapping[ChunkId, Weighed]
    #: (n,) the slope ``r / sigma' - H A dw`` but for the shift, a multiple of the bent roots.
    u: F64
    #: With penalties divided by sigma'.
    parabola: Parabola
    shift: float = 0.0
    visited: int = 0
    _by_id: dict[ChunkId, Block] = field(init=False)

    def __post_init__(self) -> None:
        self._by_id = {block.chunk.id: block for block in self.blocks}

    def empty(self) -> None:
        """Take columns that are in no solution out of the model."""
        for block in self.blocks:
            w = self.coefs[block.chunk.id]
            dead = np.setdiff1d(np.flatnonzero(w), block.alive(), assume_unique=True)
            if dead.size:
                self._sweep(block, dead, replace(self.parabola, a1=math.inf))

    def run(self, epochs: float, rng: np.random.Generator) -> None:
        """Go through all columns so many times, and in between through those in the model."""
        whole, rest = divmod(epochs, 1.0)
        for _ in range(int(whole)):
            self._epoch(1.0, rng)
        if rest > 0.0:
            self._epoch(rest, rng)

    def _epoch(self, share: float, rng: np.random.Generator) -> None:
        order = [self.blocks[k] for k in rng.permutation(len(self.blocks))]
        for chunk in flow([block.chunk for block in order]):
            block = self._by_id[chunk.id]
            features = rng.permutation(block.alive())
            if share < 1.0:
                features = features[: math.ceil(share * features.size)]
            self._sweep(block, features, self.parabola)
        self._refine(rng)

    def _refine(self, rng: np.random.Generator) -> None:
        """Sweep over the columns in the model alone, as long as that is little work."""
        there = self._in_model()
        support = sum(features.size for _, features in there)
        if not support:
            return
        columns = sum(block.features.size for block in self.blocks)
        for _ in range(min(SWEEPS, WORK * columns // support)):
            for k in rng.permutation(len(there)):
                self._sweep(there[k][0], there[k][1], self.parabola)
        self._step()

    def _in_model(self) -> list[tuple[Block, I64]]:
        return [
            (block, features)
            for block in self.blocks
            if (features := np.flatnonzero(self.coefs[block.chunk.id])).size
        ]

    def _step(self) -> None:
        """Go towards the best values with the signs that coefficients have."""
        there = self._in_model()
        bent = self.parabola.bent
        means = [self.weighed[block.chunk.id].means[some] for block, some in there]
        columns = InModel.of(there, np.concatenate(means), bent) if there else None
        if columns is None:
            return
        w = np.concatenate([self.coefs[block.chunk.id][some] for block, some in there])
        u = self.u + self.shift * bent.bent
        new, products = sign_step(columns, w, u, self.parabola.a1, self.parabola.a2)
        self.u = u - bent.times(columns.image(new - w))
        self.shift = 0.0
        self.visited += 2 * products * w.size
        ends = np.cumsum([some.size for _, some in there])[:-1]
        for (block, some), values in zip(there, np.split(new, ends), strict=True):
            self.coefs[block.chunk.id][some] = values

    def _sweep(self, block: Block, features: I64, parabola: Parabola) -> None:
        self.visited += features.size
        id = block.chunk.id
        self.shift = block.sweep(
            features, self.coefs[id], self.u, self.shift, parabola, self.weighed[id]
        )
