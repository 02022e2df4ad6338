"""K-Means for free-running members, by default: centres travel with the mass that made them.

A member moves a centre by ``n/v`` of the way to the mean of its n new rows, where v is the centre's
mass so far, and averages with a peer's centre by their masses. Both are exact for means: without
movement of the assignments, gossip ends with the mean of all rows. A filter of what peers send does
not help here, and with unlike data it refuses those who know other clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd import nearest_kernels as kernels
from elasticml.algorithms.async_sgd.base import Arrays, Batch, Mail
from elasticml.algorithms.async_sgd.parts import picked, rows_to_send, summed
from elasticml.algorithms.async_sgd.start_kernels import potential, swap_centres
from elasticml.algorithms.async_sgd.statistics import nearest_of, statistics_of, whole
from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunk import Chunk, Dtype, dense_chunk
from elasticml.errors import ConfigError
from elasticml.terms import ChunkId

F64 = NDArray[np.float64]

#: Added to every mass in averages, so that centres without any keep their place.
_NO_MASS: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeans:
    """Centres and their masses: the state of a member, and of a message.

    The objective is the mean squared distance to the nearest centre: twice the mean of the
    quantization error, equation (5) of the asynchronous SGD paper.
    """

    clusters: int
    columns: int
    #: Share of the centres that a message holds, drawn at random, above 0 and at most 1.
    share: float = 1.0

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        return {"centres": (self.clusters, self.columns), "counts": (self.clusters,)}

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Begin at given ``centres``, and ``counts`` where there are any, else zero."""
        centres = checked_centres(arrays, self.clusters, self.columns)
        counts = np.array(arrays.get("counts", np.zeros(self.clusters)), np.float64)
        return {"centres": centres, "counts": counts}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Add the rows' weights to their centres' masses, and move these to the common mean."""
        self.step_with(state, batch, Serial())

    def step_with(self, state: Arrays, batch: Batch, parallel: Parallel) -> None:
        """Take the same step with several threads, to the same bits."""
        found = statistics_of(state["centres"], batch.parts, parallel)
        kernels.move_to_means(state["centres"], state["counts"], found.sums, found.counts)

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Average centres by mass, and masses; always accepted."""
        rows = slice(None) if mail.rows is None else mail.rows
        mine, own = state["counts"][rows], state["centres"][rows]
        theirs = mail.arrays["counts"]
        both = mine + theirs
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(both > 0.0, theirs / both, 0.0)
        state["centres"][rows] = own + share[:, None] * (mail.arrays["centres"] - own)
        state["counts"][rows] = 0.5 * both
        return True

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy all centres with their masses, or a random share of them."""
        return picked(state, rows_to_send(self.clusters, self.share, chance))

    def mean(self, states: Sequence[Mapping[str, F64]]) -> Arrays:
        """Average centres by mass; the mass is a member's, on average."""
        return self.pooled(summed(self, states), len(states))

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return centres times masses, and masses."""
        mass = state["counts"] + _NO_MASS
        return {"centres": mass[:, None] * state["centres"], "counts": state["counts"].copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by masses; what nobody has seen an example of is averaged without them."""
        mass = total["counts"] + members * _NO_MASS
        return {"centres": total["centres"] / mass[:, None], "counts": total["counts"] / members}

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Sum the squared distances to the nearest centres, by the examples' weights."""
        return inertia(state["centres"], chunks)


def inertia(centres: F64, chunks: Sequence[Chunk]) -> float:
    """Return the sum over examples of weight times squared distance to the nearest centre."""
    parts = whole(chunks)
    return nearest_of(centres, parts).inertia(parts)


def checked_centres(arrays: Mapping[str, F64], clusters: int, columns: int) -> F64:
    """Copy the centres that are begun with.

    Raises
    ------
    ConfigError
        When they are missing, have another shape, are not finite, or are all the same: every
        example then goes to the first of them, and the others never move.
    """
    found = np.array(arrays.get("centres", np.empty(0)), np.float64, order="C")
    if found.shape != (clusters, columns):
        raise ConfigError(
            f"start has centres of shape {found.shape}, wanted ({clusters}, {columns})",
            key="algorithm.start",
        )
    if not np.isfinite(found).all():
        raise ConfigError("start has centres that are not finite", key="algorithm.start")
    if clusters > 1 and bool((found == found[0]).all()):
        raise ConfigError(
            f"start has {clusters} centres that are all the same (w = 0?): only the first would "
            "ever move; use start: kmeans++, kmeans|| or sample",
            key="algorithm.start",
        )
    return found


def warm_kernels() -> None:
    """Compile the kernels for both types of values, or load their machine code from the cache."""
    problem = KMeans(clusters=2, columns=2)
    dtypes: tuple[Dtype, ...] = ("float64", "float32")
    for dtype in dtypes:
        chunk = dense_chunk(ChunkId("warm", 0, 0), np.zeros(3), np.eye(3, 2), dtype=dtype)
        state = problem.begin({"centres": np.eye(2)})
        problem.step(state, Batch(parts=[(chunk, np.arange(3))]))
        problem.value(state, [chunk])
    one = np.ones(2)
    potential(np.eye(2), one, one, one, one)
    swap_centres(np.eye(2), one, np.eye(2), one)
