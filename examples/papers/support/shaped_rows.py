"""Synthetic sparse data of any size, with the shape of RCV1, Criteo or KDDA.

    data: {format: "support.shaped_rows:ShapedSource", shape: rcv1, rows: 20_000}

Published properties of the three data sets are reproduced: columns, stored values per row, column
frequencies, scaling of values, share of positive labels. None of their data is used. Ranks (the
most frequent column has rank 0) are drawn from ``P(rank) ~ (rank + q)^-a``; a fixed permutation
maps ranks to columns, so that frequent columns are not adjacent. Labels come from a planted
separator and noise.

Rows are drawn in blocks, each from its own seed. So any member can generate any block without a
file, and the first rows do not depend on the number of rows. The separator is fixed: another seed
gives fresh rows of the same problem, such as a test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from elasticml.arrays import F64, I64
from elasticml.compiled import kernel
from elasticml.data.chunks.rows import Rows, slice_rows
from elasticml.data.formats import DrawnRows, Format, reader
from elasticml.data.source import BlockInfo, drawn_blocks
from elasticml.specification.settings_model import Index

#: Seed that separates the draws for the label threshold from all others.
_CALIBRATION: Final = 0xCA11
_CALIBRATION_ROWS: Final = 8192
#: Up to this many columns, functions of a column are tabulated.
_TABLE_MAX: Final = 2**21


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The statistical properties of a data set's rows."""

    name: str
    #: Columns of the original.
    columns: int
    #: Draws per row: mean, log-standard deviation (0: always the mean), minimum and maximum.
    draws: tuple[float, float, int, int]
    #: Mean number of stored values; less than the draws, as some hit the same column.
    stored: float
    #: Exponent a and offset q of the power law.
    exponent: float
    offset: float
    #: Number of fields with columns of their own; a row has one value per field. 0: no fields.
    fields: int
    #: Whether values are TF-IDF weights, as in text data; else they are equal. Rows have norm 1 in
    #: either case.
    is_text: bool
    positive_share: float
    #: Label noise, in standard deviations of the planted margin.
    noise: float
    #: Scale of the rank at which planted weights begin to shrink (as its square root); 0: never.
    #: Signal in rare columns alone cannot be learnt from few rows.
    shrink_rank: float = 0.0


SHAPES: Final[dict[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape(
            name="rcv1",
            columns=47_236,
            draws=(80.0, 0.55, 8, 2000),
            stored=74.0,
            exponent=1.1,
            offset=20.0,
            fields=0,
            is_text=True,
            positive_share=0.524,
            noise=0.15,
            shrink_rank=100.0,
        ),
        Shape(
            name="criteo",
            columns=999_999,
            draws=(39.0, 0.0, 39, 39),
            stored=39.0,
            exponent=1.2,
            offset=1.5,
            fields=39,
            is_text=False,
            positive_share=0.256,
            noise=1.0,
        ),
        Shape(
            name="kdda",
            columns=20_216_830,
            draws=(37.4, 0.2, 10, 90),
            stored=36.3,
            exponent=1.05,
            offset=5.0,
            fields=0,
            is_text=False,
            positive_share=0.853,
            noise=0.7,
        ),
    )
}


def draw_rows(rng: np.random.Generator, shape: Shape, n_columns: int, n: int) -> Rows:
    """Draw rows with labels -1 and +1; the separator depends only on shape and ``n_columns``."""
    indptr, columns, values = _draw(rng, shape, n_columns, n)
    threshold, spread = _calibration(shape, n_columns)
    noise = shape.noise * spread * rng.standard_normal(n)
    noisy = _margins(shape, n_columns, indptr, columns, values) + noise
    return Rows(
        labels=np.where(noisy > threshold, 1.0, -1.0),
        n_columns=n_columns,
        indptr=indptr,
        indices=columns.astype(np.int32),
        values=values,
    )


def _draw(rng: np.random.Generator, shape: Shape, n_columns: int, n: int) -> tuple[I64, I64, F64]:
    """Draw row pointers (n + 1,), columns (stored,), ascending in a row, and values (stored,)."""
    counts = _counts(rng, shape, n)
    if shape.fields:
        ranks = _field_ranks(rng, shape, n_columns, n)
    else:
        ranks = _power_law(rng.random(counts.sum()), shape, np.float64(n_columns))
    columns = ranks * _permutation(n_columns)[0] % n_columns
    indptr, columns, multiplicities = _sorted_rows(counts, columns)
    values = np.ones(columns.size)
    if shape.is_text:
        values = (1.0 + np.log(multiplicities)) * _of_columns(_rarity, shape, n_columns, columns)
    row = np.repeat(np.arange(n), np.diff(indptr))
    lengths = np.sqrt(np.bincount(row, values * values, n))
    return indptr, columns, values / lengths[row]


@kernel
def _sorted_rows(counts: I64, drawn: I64) -> tuple[I64, I64, I64]:
    """Sort each row's columns; return row pointers, distinct columns, and their multiplicities."""
    n = counts.size
    indptr, columns, multiplicities = (
        np.zeros(n + 1, np.int64),
        drawn.copy(),
        np.ones(drawn.size, np.int64),
    )
    begin, stored = 0, 0
    for i in range(n):
        end = begin + counts[i]
        row = np.sort(drawn[begin:end])
        for k in range(row.size):
            if k > 0 and row[k] == row[k - 1]:
                multiplicities[stored - 1] += 1
            else:
                columns[stored] = row[k]
                stored += 1
        indptr[i + 1] = stored
        begin = end
    return indptr, columns[:stored], multiplicities[:stored]


def _of_columns(
    function: Callable[[I64, Shape, int], F64], shape: Shape, n_columns: int, columns: I64
) -> F64:
    """Evaluate a function of columns, by a lookup table if there are few of them."""
    if n_columns > _TABLE_MAX:
        return function(columns, shape, n_columns)
    return _table(function, shape, n_columns)[columns]


@lru_cache(maxsize=8)
def _table(function: Callable[[I64, Shape, int], F64], shape: Shape, n_columns: int) -> F64:
    return function(np.arange(n_columns), shape, n_columns)


@lru_cache(maxsize=16)
def _permutation(n_columns: int) -> tuple[int, int]:
    """Return the factors from ranks to columns and back: ``column = rank * step mod n_columns``."""
    step = max(1, int(n_columns * 0.6180339887))
    while math.gcd(step, n_columns) != 1:
        step += 1
    return step, pow(step, -1, n_columns)


def _counts(rng: np.random.Generator, shape: Shape, n: int) -> I64:
    mean, spread, least, most = shape.draws
    logs = math.log(mean) - 0.5 * spread**2 + spread * rng.standard_normal(n)
    counts: I64 = np.clip(np.rint(np.exp(logs)), least, most).astype(np.int64)
    return counts


def _power_law(u: F64, shape: Shape, n_ranks: F64 | np.float64) -> I64:
    """Return ranks below ``n_ranks`` from uniform numbers, by inverse transform sampling."""
    power = 1.0 - shape.exponent
    first, last = shape.offset**power, (n_ranks + shape.offset) ** power
    drawn = (first + u * (last - first)) ** (1.0 / power) - shape.offset
    ranks: I64 = np.clip(drawn, 0.0, n_ranks - 1.0).astype(np.int64)
    return ranks


def _rarity(columns: I64, shape: Shape, n_columns: int) -> F64:
    """Return the columns' inverse document frequency: log(1 + 1 / expected share of rows)."""
    ranks = columns * _permutation(n_columns)[1] % n_columns
    power = 1.0 - shape.exponent
    total = ((n_columns + shape.offset) ** power - shape.offset**power) / power
    expected = shape.draws[0] * (ranks + shape.offset) ** -shape.exponent / total
    rarity: F64 = np.log1p(1.0 / -np.expm1(-expected))
    return rarity


def _field_ranks(rng: np.random.Generator, shape: Shape, n_columns: int, n: int) -> I64:
    """Draw one rank of each field for every row, (n * fields,)."""
    sizes = field_sizes(shape.fields, n_columns)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    u = rng.random((n, shape.fields))
    ranks: I64 = (_power_law(u, shape, sizes.astype(np.float64)) + first).ravel()
    return ranks


@lru_cache(maxsize=16)
def _field_sizes(fields: int, n_columns: int) -> tuple[int, ...]:
    low, high = 1.0, 2.0
    while _geometric(high, fields) < n_columns:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _geometric(middle, fields) < n_columns else (low, middle)
    sizes = [int(2.0 * low**k) for k in range(fields)]
    sizes[-1] += n_columns - sum(sizes)
    return tuple(sizes)


def _geometric(ratio: float, fields: int) -> int:
    return sum(int(2.0 * ratio**k) for k in range(fields))


def field_sizes(fields: int, n_columns: int) -> I64:
    """Return the columns of each field: a geometric sequence from 2 that sums to ``n_columns``."""
    return np.array(_field_sizes(fields, n_columns), np.int64)


def _margins(shape: Shape, n_columns: int, indptr: I64, columns: I64, values: F64) -> F64:
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    terms = values * _of_columns(_separator, shape, n_columns, columns)
    return np.bincount(rows, terms, indptr.size - 1).astype(np.float64)


def _separator(columns: I64, shape: Shape, n_columns: int) -> F64:
    """Return the planted weights of columns: normal variates hashed from the column numbers."""
    u1, u2 = (hashed(columns, salt) for salt in (1, 2))
    weights: F64 = np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * u2)
    if shape.shrink_rank:
        ranks = columns * _permutation(n_columns)[1] % n_columns
        weights /= np.sqrt(1.0 + ranks / shape.shrink_rank)
    return weights


def hashed(numbers: I64, salt: int) -> F64:
    """Hash integers to uniform numbers in (0, 1], with SplitMix64's finalizer."""
    with np.errstate(over="ignore"):
        z = (numbers.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    uniform: F64 = ((z >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    return uniform


@lru_cache(maxsize=16)
def _calibration(shape: Shape, n_columns: int) -> tuple[float, float]:
    """Return the threshold that gives the share of positives, and the margin's deviation."""
    rng = np.random.default_rng(np.random.SeedSequence(_CALIBRATION, spawn_key=(n_columns,)))
    drawn = _draw(rng, shape, n_columns, _CALIBRATION_ROWS)
    margins = _margins(shape, n_columns, *drawn)
    spread = float(margins.std())
    noisy = margins + shape.noise * spread * rng.standard_normal(margins.size)
    return float(np.quantile(noisy, 1.0 - shape.positive_share)), spread


#: Rows drawn from one seed.
BLOCK_ROWS: Final = 8192
#: Least number of columns that a shape can be reduced to.
COLUMNS_MIN: Final = 100
#: Spawn key that separates these draws from others with the same seed.
_PURPOSE: Final = 0x5A9E


class ShapedSource(Format):
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

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """

    reader = "synthetic"

    shape: Literal["rcv1", "criteo", "kdda"] = Field(
        kw_only=False, description="data set to imitate"
    )
    rows: DrawnRows = Field(kw_only=False, description="number of examples")
    seed: Index = 0
    columns: Annotated[int, Field(ge=COLUMNS_MIN, lt=2**31)] | None = None

    def blocks(self) -> list[BlockInfo]:
        """Return blocks of 8192 rows; their bytes are estimated."""
        itemsize = 4 if self.dtype == "float32" else 8
        width = 12 + SHAPES[self.shape].stored * (4 + itemsize)
        return drawn_blocks(self.rows, BLOCK_ROWS, width)

    def rows_of(self, block: int) -> Iterator[Rows]:
        """Generate one block."""
        seeds = np.random.SeedSequence(self.seed, spawn_key=(_PURPOSE, block))
        # A short last block is the prefix of a full one: rows do not depend on their number.
        shape: Shape = SHAPES[self.shape]
        columns = shape.columns if self.columns is None else self.columns
        drawn = draw_rows(np.random.default_rng(seeds), shape, columns, BLOCK_ROWS)
        yield slice_rows(drawn, 0, min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS))


synthetic = reader(ShapedSource)
