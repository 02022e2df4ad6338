"""Synthetic clusters around known centres, of any number of rows, made on the members.

Centres lie uniformly in the unit cube, at least ``min_distance`` apart; a row is normal around one
of them, each as likely as any other, and its label is that centre's number. Rows are drawn in
blocks, each from a seed of its own; the centres are of ``problem`` alone, so that another seed
gives fresh rows around the same ones.

Source: the generator of the asynchronous SGD paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk, Dtype
from elasticml.data.cut import Rows
from elasticml.data.facts import BlockSummary
from elasticml.data.files import fingerprint
from elasticml.data.rows import cut_rows
from elasticml.data.source import (
    BlockInfo,
    check_dtype,
    check_keys,
    check_whole,
    drawn_blocks,
    resolve_chunk_bytes,
)
from elasticml.data.surveyless import Surveyless
from elasticml.errors import ConfigError

F64 = NDArray[np.float64]

#: Rows drawn from one seed.
BLOCK_ROWS: Final = 4096
#: Keeps these draws apart from all others made with the same seed.
_CENTRES: Final = 0xC1C1
_ROWS: Final = 0xC1C2
#: Draws of a centre before it is said that there is no room for it.
_DRAWS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSource(Surveyless):
    """Synthetic clusters; made by :func:`synthetic_clusters`."""

    rows: int
    columns: int
    clusters: int
    #: Standard deviation of a coordinate around its centre, on average over the clusters.
    spread: float = 0.1
    #: Clusters' own deviations are uniform in ``spread (1 ± variation)``.
    variation: float = 0.0
    #: Least Euclidean distance of two centres.
    min_distance: float = 0.0
    problem: int = 0
    seed: int = 0
    dtype: Dtype = "float64"
    #: Columns of the training data, which these rows must have too.
    n_columns: int | None = None

    def spec(self) -> dict[str, Any]:
        """Name the source in a JSON-able dict."""
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
        """List blocks of 4096 rows."""
        width = 8 + (4 if self.dtype == "float32" else 8) * self.columns
        return drawn_blocks(self.rows, BLOCK_ROWS, width)

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Draw one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        values, labels = self._draw(block)
        rows = Rows(labels=labels, n_columns=self.columns, dense=values)
        return cut_rows(rows, None, self.fingerprint(), block, size, self.dtype)

    def with_columns(self, n_columns: int) -> Self:
        """Refuse another number of columns than these rows have: they mean other things.

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
        """Return the true centres, new, (clusters, columns), row k that of label k.

        Raises
        ------
        ConfigError
            When no room is found for them.
        """
        rng = np.random.default_rng([_CENTRES, self.problem, self.clusters, self.columns])
        found = np.empty((self.clusters, self.columns))
        for k in range(self.clusters):
            for _ in range(_DRAWS_MAX):
                found[k] = rng.random(self.columns)
                square = ((found[:k] - found[k]) ** 2).sum(axis=1).min(initial=np.inf)
                if square >= self.min_distance**2:
                    break
            else:
                raise ConfigError(
                    f"data.min_distance is {self.min_distance:g}: after {k} of {self.clusters} "
                    f"centres no room was found for another one in {self.columns} columns; use a "
                    "smaller distance, or fewer clusters",
                    key="data.min_distance",
                )
        return found

    def spreads(self) -> F64:
        """Return each cluster's own standard deviation, new, (clusters,)."""
        rng = np.random.default_rng([_CENTRES, self.problem, self.clusters, self.columns, 1])
        return self.spread * (1.0 + self.variation * rng.uniform(-1.0, 1.0, self.clusters))

    def _draw(self, block: int) -> tuple[F64, F64]:
        rng = np.random.default_rng([_ROWS, self.problem, self.seed, block])
        # A short last block is the beginning of a whole one: rows do not depend on their number.
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
    """Name synthetic clusters that members draw for themselves; no row is drawn.

    Parameters
    ----------
    rows, columns, clusters : int
        At least 1.
    spread : float
        Standard deviation of a coordinate around its centre, at least 0; centres lie in the unit
        cube.
    variation : float
        From 0 up to 1: how much the clusters' own deviations differ from ``spread``.
    min_distance : float
        Least distance of two centres, at least 0: keeps clusters from overlapping.
    problem, seed : int
        From 0. ``problem`` chooses the centres, ``seed`` the rows around them.
    dtype : "float64" or "float32"
        Of the stored values.
    n_columns : int, optional
        Number of columns that the rows must have.

    Raises
    ------
    ConfigError
        When a setting is out of range, or no room is found for the centres.
    """
    for name, whole, least in (
        ("rows", rows, 1),
        ("columns", columns, 1),
        ("clusters", clusters, 1),
        ("problem", problem, 0),
        ("seed", seed, 0),
    ):
        check_whole(name, whole, least)
    for name, number, most in (
        ("spread", spread, np.inf),
        ("variation", variation, 1.0),
        ("min_distance", min_distance, np.inf),
    ):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not 0 <= number < most:
            below = "" if most == np.inf else f" and below {most:g}"
            raise ConfigError(
                f"data.{name} is {number!r}, wanted a number of at least 0{below}",
                key=f"data.{name}",
            )
    check_dtype(dtype)
    source = ClusterSource(
        rows=rows,
        columns=columns,
        clusters=clusters,
        spread=spread,
        variation=variation,
        min_distance=min_distance,
        problem=problem,
        seed=seed,
        dtype=dtype,
    )
    source.centres()
    return source if n_columns is None else source.with_columns(n_columns)


def source_from_spec(spec: Mapping[str, Any]) -> ClusterSource:
    """Make the source that a spec with ``format: synthetic_clusters`` names.

    Raises
    ------
    ConfigError
        When a key is unknown or missing, or a setting is out of range.
    """
    given = {key: value for key, value in spec.items() if key not in ("format", "rows")}
    optional = {"columns", "clusters", "spread", "variation", "min_distance", "problem"}
    check_keys(spec, optional | {"seed", "dtype", "n_columns"}, {"rows"})
    return synthetic_clusters(spec["rows"], **given)
