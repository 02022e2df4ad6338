"""Synthetic Gaussian clusters with known centres; members generate any number of rows.

Centres are uniform in the unit cube, at least ``min_distance`` apart. A row is normally distributed
around one of them, all equally likely, and its label is that centre's number. Rows are drawn in
blocks, each from its own seed; the centres depend on ``problem`` only, so that another seed gives
fresh rows around the same centres.

    data: {format: "support.clusters:ClusterSource", rows: 20_000, columns: 10, clusters: 10}

Source: the generator of the asynchronous SGD paper's experiments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Self

import numpy as np
from pydantic import Field

from elasticml.arrays import F64
from elasticml.data.chunks.rows import Rows
from elasticml.data.formats import DrawnRows, Format, Width, reader
from elasticml.data.source import BlockInfo, drawn_blocks
from elasticml.errors import ConfigError
from elasticml.specification.settings_model import KEEP_INT, Index, NumberFrom0

#: Rows drawn from one seed.
BLOCK_ROWS: Final = 4096
#: Seeds that separate these draws from others with the same seed.
_CENTRES: Final = 0xC1C1
_ROWS: Final = 0xC1C2
#: Attempts to draw a centre before giving up.
_DRAWS_MAX: Final = 1000
#: Most values of all centres, which each member holds.
CENTRES_MAX: Final = 2**27
_Number = Annotated[int, Field(ge=1, le=10**6)]


class ClusterSource(Format):
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
    n_columns : int, optional
        Required number of columns.

    Raises
    ------
    ConfigError
        When a setting is out of range, or the centres cannot be placed.
    """

    reader = "synthetic_clusters"

    #: The chunks do not depend on it.
    n_columns: Width = Field(default=None, exclude=True)
    rows: DrawnRows = Field(kw_only=False, description="number of examples")
    columns: _Number = 10
    clusters: _Number = 10
    spread: NumberFrom0 = 0.1
    variation: Annotated[float, Field(ge=0, lt=1), KEEP_INT] = 0.0
    min_distance: NumberFrom0 = 0.0
    problem: Index = 0
    seed: Index = 0

    def check(self) -> None:
        """Check constraints between fields, and that the centres can be placed."""
        if self.clusters * self.columns > CENTRES_MAX:
            raise ValueError(
                f"clusters: got {self.clusters} of {self.columns} columns, wanted at most "
                f"{CENTRES_MAX // self.columns}"
            )
        self.centres()
        if self.n_columns is not None:
            self.with_columns(self.n_columns)

    def blocks(self) -> list[BlockInfo]:
        """Return blocks of 4096 rows."""
        width = 8 + (4 if self.dtype == "float32" else 8) * self.columns
        return drawn_blocks(self.rows, BLOCK_ROWS, width)

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
        return self.model_copy(update={"n_columns": n_columns})

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

    def rows_of(self, block: int) -> Iterator[Rows]:
        """Generate one block."""
        rng = np.random.default_rng([_ROWS, self.problem, self.seed, block])
        # A short last block is the prefix of a full one: rows do not depend on their number.
        n = min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS)
        labels = rng.integers(0, self.clusters, BLOCK_ROWS)[:n]
        noise = rng.standard_normal((BLOCK_ROWS, self.columns))[:n]
        values = self.centres()[labels] + self.spreads()[labels][:, None] * noise
        yield Rows(labels=labels.astype(np.float64), n_columns=self.columns, dense=values)


synthetic_clusters = reader(ClusterSource)
