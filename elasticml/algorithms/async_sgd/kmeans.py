"""K-Means for free-running members: centres are sent with their masses.

A member moves a centre by ``n/v`` of the way to the mean of its n new rows, where v is the centre's
mass so far, and averages it with a peer's centre by mass. Both are exact for means: with constant
assignments, gossip converges to the mean of all rows. Filtering messages (Parzen) does not help
here, and with dissimilar data it rejects peers that know other clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.async_sgd import nearest_centres as kernels
from elasticml.algorithms.async_sgd.base import Arrays, Batch, Mail, picked, rows_to_send
from elasticml.algorithms.async_sgd.nearest_centres import statistics_of, whole
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk, Dtype, dense_chunk
from elasticml.errors import ConfigError
from elasticml.ids import ChunkId

#: Added to every mass in averages, so that centres without mass keep their position.
_NO_MASS: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeans:
    """Centres and their masses are the state of a member and the content of a message.

    The objective is the mean squared distance to the nearest centre: twice the mean quantization
    error, equation (5) of the asynchronous SGD paper.
    """

    clusters: int
    columns: int
    #: Share of the centres in a message, drawn at random, above 0 and at most 1.
    share: float = 1.0

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        return {"centres": (self.clusters, self.columns), "counts": (self.clusters,)}

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Start from ``centres``, with ``counts`` or, if missing, zero masses."""
        centres = checked_centres(arrays, self.clusters, self.columns)
        counts = np.array(arrays.get("counts", np.zeros(self.clusters)), np.float64)
        return {"centres": centres, "counts": counts}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Add the rows' weights to their centres' masses, and move the centres to the means."""
        statistics = statistics_of(state["centres"], batch.parts, distances=False)
        kernels.move_to_means(state["centres"], state["counts"], statistics.sums, statistics.counts)

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Average centres by mass, and average masses; never rejected."""
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

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return centres times masses, and masses."""
        mass = state["counts"] + _NO_MASS
        return {"centres": mass[:, None] * state["centres"], "counts": state["counts"].copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by masses; centres without any mass are averaged equally.

        Their mass is the members' mean.
        """
        mass = total["counts"] + members * _NO_MASS
        return {"centres": total["centres"] / mass[:, None], "counts": total["counts"] / members}

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Return the weighted sum of squared distances to the nearest centres."""
        return inertia(state["centres"], chunks)


def inertia(centres: F64, chunks: Sequence[Chunk]) -> float:
    """Return the sum over examples of weight times squared distance to the nearest centre."""
    return statistics_of(centres, whole(chunks)).inertia


def checked_centres(arrays: Mapping[str, F64], clusters: int, columns: int) -> F64:
    """Return a copy of the initial centres.

    Raises
    ------
    ConfigError
        When they are missing, have the wrong shape, are not finite, or are all equal: then every
        example would be assigned to the first one, and the others would never move.
    """
    centres = np.array(arrays.get("centres", np.empty(0)), np.float64, order="C")
    if centres.shape != (clusters, columns):
        raise ConfigError(
            f"algorithm.start has centres of shape {centres.shape}, wanted ({clusters}, {columns})"
        )
    if not np.isfinite(centres).all():
        raise ConfigError("algorithm.start has centres that are not finite")
    if clusters > 1 and bool((centres == centres[0]).all()):
        raise ConfigError(
            f"algorithm.start has {clusters} centres that are all the same (w = 0?): only the "
            "first would ever move; use start: kmeans++ or sample"
        )
    return centres


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the kernels for both value types, or load them from the cache."""
    problem = KMeans(clusters=2, columns=2)
    dtypes: tuple[Dtype, ...] = ("float64", "float32")
    for each in dtypes:
        if dtype not in (None, each):
            continue
        chunk = dense_chunk(ChunkId("warm", 0, 0), np.zeros(3), np.eye(3, 2), dtype=each)
        state = problem.begin({"centres": np.eye(2)})
        problem.step(state, Batch(parts=[(chunk, np.arange(3))]))
        problem.value(state, [chunk])
