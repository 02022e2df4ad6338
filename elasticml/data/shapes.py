"""Synthetic sparse data of any number of rows, with the shape of RCV1, Criteo or KDDA.

Rows are drawn in blocks, each from its own seed. So any member can generate any block without a
file, and the first rows do not depend on the number of rows. The planted separator is fixed:
another seed gives fresh rows of the same problem, such as a test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.data.chunk import Chunk, Dtype
from elasticml.data.facts import BlockSummary
from elasticml.data.files import fingerprint
from elasticml.data.power_law import SHAPES, Shape, draw_rows
from elasticml.data.rows import cut_rows, slice_rows
from elasticml.data.source import (
    BlockInfo,
    check_dtype,
    check_keys,
    check_whole,
    drawn_blocks,
    nearest,
    resolve_chunk_bytes,
)
from elasticml.data.surveyless import Surveyless
from elasticml.errors import ConfigError

#: Rows drawn from one seed.
BLOCK_ROWS: Final = 8192
#: Least number of columns that a shape can be reduced to.
COLUMNS_MIN: Final = 100
#: Spawn key that separates these draws from others with the same seed.
_PURPOSE: Final = 0x5A9E


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedSource(Surveyless):
    """Synthetic sparse rows; made by :func:`synthetic`."""

    shape: str
    rows: int
    #: Number of columns that rows are drawn over.
    columns: int
    seed: int = 0
    dtype: Dtype = "float64"
    #: Number of columns of the training data; values beyond them are dropped.
    n_columns: int | None = None

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        width = {} if self.n_columns is None else {"n_columns": self.n_columns}
        return {
            "format": "synthetic",
            "shape": self.shape,
            "rows": self.rows,
            "columns": self.columns,
            "seed": self.seed,
            "dtype": self.dtype,
            **width,
        }

    def fingerprint(self) -> str:
        """Digest the spec."""
        return fingerprint(self.spec())

    def blocks(self) -> list[BlockInfo]:
        """Return blocks of 8192 rows; their bytes are estimated."""
        itemsize = 4 if self.dtype == "float32" else 8
        width = 12 + SHAPES[self.shape].stored * (4 + itemsize)
        return drawn_blocks(self.rows, BLOCK_ROWS, width)

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Generate one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        seeds = np.random.SeedSequence(self.seed, spawn_key=(_PURPOSE, block))
        # A short last block is the prefix of a full one: rows do not depend on their number.
        shape: Shape = SHAPES[self.shape]
        drawn = draw_rows(np.random.default_rng(seeds), shape, self.columns, BLOCK_ROWS)
        rows = slice_rows(drawn, 0, min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS))
        return cut_rows(rows, self.n_columns, self.fingerprint(), block, size, self.dtype)


def synthetic(
    shape: str,
    rows: int,
    *,
    seed: int = 0,
    columns: int | None = None,
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> ShapedSource:
    """Return a source of synthetic sparse rows that members generate; nothing is drawn yet.

    Parameters
    ----------
    shape : "rcv1", "criteo" or "kdda"
        Data set to imitate. ``rcv1``: 47,236 columns, 74 values a row with TF-IDF weights;
        ``criteo``: 999,999 columns in 39 fields, one value of each; ``kdda``: 20,216,830 columns,
        36 equal values a row. All rows have norm 1.
    rows : int
        At least 1. The originals have 677,399, 45,840,617 and 8,407,752.
    seed : int
        At least 0. Another seed gives fresh rows of the same problem.
    columns : int, optional
        Number of columns, at least 100; by default the original's. Changes the problem.
    dtype : "float64" or "float32"
        Type of the stored values.
    n_columns : int, optional
        Number of columns of the training data.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    if shape not in SHAPES:
        raise ConfigError(
            f"data.shape is {shape!r}, wanted one of {', '.join(SHAPES)}"
            f"{nearest(str(shape), SHAPES)}",
            key="data.shape",
        )
    width = SHAPES[shape].columns if columns is None else columns
    for name, number, least in (
        ("rows", rows, 1),
        ("seed", seed, 0),
        ("columns", width, COLUMNS_MIN),
    ):
        check_whole(name, number, least)
    if width >= 2**31:
        raise ConfigError(
            f"data.columns is {width}, wanted at most {2**31 - 1}", key="data.columns"
        )
    check_dtype(dtype)
    return ShapedSource(
        shape=shape, rows=rows, columns=width, seed=seed, dtype=dtype, n_columns=n_columns
    )


def source_from_spec(spec: Mapping[str, Any]) -> ShapedSource:
    """Build the source from a spec with ``format: synthetic``.

    Raises
    ------
    ConfigError
        When a key is unknown or missing, or a setting is out of range.
    """
    check_keys(spec, {"seed", "columns", "dtype", "n_columns"}, {"shape", "rows"})
    options = {key: value for key, value in spec.items() if key not in ("format", "shape", "rows")}
    return synthetic(spec["shape"], spec["rows"], **options)
