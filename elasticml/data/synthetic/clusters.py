"""Synthetic Gaussian clusters with known centres; members generate any number of rows.

Centres are uniform in the unit cube, at least ``min_distance`` apart. A row is normally distributed
around one of them, all equally likely, and its label is that centre's number. Rows are drawn in
blocks, each from its own seed; the centres depend on ``problem`` only, so that another seed gives
fresh rows around the same centres.

Source: the generator of the asynchronous SGD paper's experiments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk, Dtype
from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import cut_rows
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.files import fingerprint
from elasticml.data.readers.single_pass_source import SinglePassSource
from elasticml.data.source import (
    BlockInfo,
    drawn_blocks,
    resolve_chunk_bytes,
)
from elasticml.errors import ConfigError
from elasticml.specification.data import SyntheticClustersSpec

#: Rows drawn from one seed.
BLOCK_ROWS: Final = 4096
#: Seeds that separate these draws from others with the same seed.
_CENTRES: Final = 0xC1C1
_ROWS: Final = 0xC1C2
#: Attempts to draw a centre before giving up.
_DRAWS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSource(SinglePassSource):
    """Synthetic clusters; made by :func:`synthetic_clusters`."""

    rows: int
    columns: int
    clusters: int
    #: Standard deviation of a coordinate around its centre, on average over the clusters.
    spread: float
    #: Each cluster's deviation is uniform in ``spread (1 ± variation)``.
    variation: float
    #: Least Euclidean distance between two centres.
    min_distance: float
    problem: int
    seed: int
    dtype: Dtype
    #: Number of columns of the training data, which must match.
    n_columns: int | None = None

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        width = {} if self.n_columns is None else {"n_columns": self.n_columns}
        return {
            "format": "synthetic_clusters",
            "rows": self.rows,
            "columns": self.columns,
            "clusters": self.clusters,
            "spread": self.spread,
            "variation": self.variation,
            "min_distance": self.min_distance,
            "problem": self.problem,
            "seed": self.seed,
            "dtype": self.dtype,
            **width,
        }

    def fingerprint(self) -> str:
        """Digest the spec."""
        return fingerprint(replace(self, n_columns=None).spec())

    def blocks(self) -> list[BlockInfo]:
        """Return blocks of 4096 rows."""
        width = 8 + (4 if self.dtype == "float32" else 8) * self.columns
        return drawn_blocks(self.rows, BLOCK_ROWS, width)

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Generate one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        values, labels = self._draw(block)
        rows = Rows(labels=labels, n_columns=self.columns, dense=values)
        return cut_rows(rows, None, self.fingerprint(), block, size, self.dtype)

    def with_columns(self, n_columns: int) -> Self:
        """Return the source if it has ``n_columns`` columns; others would have another meaning.

        Raises
        ------
        ConfigError
            When the numbers differ.
        """
        if self.columns != n_columns:
            raise ConfigError(
                f"synthetic clusters have {self.columns} columns, the training data {n_columns}; "
                "set the same data.columns",
                key="data.columns",
            )
        return replace(self, n_columns=n_columns)

    def centres(self) -> F64:
        """Return the true centres, a new array (clusters, columns); row k is the centre of label k.

        Raises
        ------
        ConfigError
            When they cannot be placed ``min_distance`` apart.
        """
        rng = np.random.default_rng([_CENTRES, self.problem, self.clusters, self.columns])
        centres = np.empty((self.clusters, self.columns))
        for k in range(self.clusters):
            for _ in range(_DRAWS_MAX):
                centres[k] = rng.random(self.columns)
                square = ((centres[:k] - centres[k]) ** 2).sum(axis=1).min(initial=np.inf)
                if square >= self.min_distance**2:
                    break
            else:
                raise ConfigError(
                    f"data.min_distance is {self.min_distance:g}: after {k} of {self.clusters} "
                    f"centres no room was found for another one in {self.columns} columns; use a "
                    "smaller distance, or fewer clusters",
                    key="data.min_distance",
                )
        return centres

    def spreads(self) -> F64:
        """Return each cluster's standard deviation, a new array (clusters,)."""
        rng = np.random.default_rng([_CENTRES, self.problem, self.clusters, self.columns, 1])
        return self.spread * (1.0 + self.variation * rng.uniform(-1.0, 1.0, self.clusters))

    def _draw(self, block: int) -> tuple[F64, F64]:
        rng = np.random.default_rng([_ROWS, self.problem, self.seed, block])
        # A short last block is the prefix of a full one: rows do not depend on their number.
        n = min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS)
        labels = rng.integers(0, self.clusters, BLOCK_ROWS)[:n]
        noise = rng.standard_normal((BLOCK_ROWS, self.columns))[:n]
        values = self.centres()[labels] + self.spreads()[labels][:, None] * noise
        return values, labels.astype(np.float64)


def synthetic_clusters(
    rows: int,
    *,
    columns: int = 10,
    clusters: int = 10,
    spread: float = 0.1,
    variation: float = 0.0,
    min_distance: float = 0.0,
    problem: int = 0,
    seed: int = 0,
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> ClusterSource:
    """Return a source of synthetic clusters that members generate; no row is drawn yet.

    Parameters
    ----------
    rows, columns, clusters : int
        At least 1.
    spread : float
        Standard deviation of a coordinate around its centre, at least 0; centres lie in the unit
        cube.
    variation : float
        From 0 to 1 (exclusive): relative variation of the clusters' deviations around ``spread``.
    min_distance : float
        Least distance between two centres, at least 0; keeps clusters from overlapping.
    problem, seed : int
        At least 0. ``problem`` selects the centres, ``seed`` the rows around them.
    dtype : "float64" or "float32"
        Type of the stored values.
    n_columns : int, optional
        Required number of columns.

    Raises
    ------
    ConfigError
        When a setting is out of range, or the centres cannot be placed.
    """
    return source_of(
        SyntheticClustersSpec(
            rows=rows,
            columns=columns,
            clusters=clusters,
            spread=spread,
            variation=variation,
            min_distance=min_distance,
            problem=problem,
            seed=seed,
            dtype=dtype,
            n_columns=n_columns,
        )
    )


def source_of(spec: SyntheticClustersSpec) -> ClusterSource:
    """Build the source from the options of ``format: synthetic_clusters``.

    Raises
    ------
    ConfigError
        When the centres cannot be placed.
    """
    options = spec.model_dump(exclude={"n_columns"})
    source = ClusterSource(**options)
    source.centres()
    return source if spec.n_columns is None else source.with_columns(spec.n_columns)
