"""Synthetic click logs with the shape of Criteo's: 39 fields, one value each, hashed into columns.

Published properties of the Criteo Kaggle set are reproduced: 13 numeric fields, here binned by
their logarithm, and 26 categorical fields with the original cardinalities, whose values follow a
power law; a quarter of the labels are positive. None of the original data is used. Each pair of
field and value is hashed into a column; colliding pairs are added up, as in feature hashing.

Unlike the shape ``criteo`` of ``examples/papers/support/shaped_rows.py``, where every field has its
own columns, fields share columns here, and most columns belong to rare values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.compiled import kernel
from elasticml.data.chunks.rows import Rows
from elasticml.errors import ConfigError
from examples.papers.support.shaped_rows import hashed

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Rows drawn from one seed.
BLOCK_ROWS: Final = 32_768
#: Bins of each of the 13 numeric fields.
_STEPS: Final = 40
#: Cardinalities of the 26 categorical fields, as published.
_CATEGORIES: Final = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
SIZES: Final = (_STEPS,) * 13 + _CATEGORIES
#: Parameters of ``P(rank) ~ (rank + offset)^-exponent`` within a field.
_EXPONENT: Final = 1.2
_OFFSET: Final = 1.5
#: Scale of the rank at which planted weights begin to shrink (as its square root), so that rare
#: values carry little information.
_SHRINK_RANK: Final = 100.0
#: Label noise, in standard deviations of the planted margin; share of positive labels.
_NOISE: Final = 1.0
_POSITIVE_SHARE: Final = 0.256
#: Spawn keys that separate these draws from others with the same seed.
_PURPOSE: Final = 0xC817E0
_CALIBRATION: Final = 0xCA11


def criteo_shaped(
    rows: int, *, columns: int = 1_000_000, seed: int = 0, first_block: int = 0
) -> Iterator[Rows]:
    """Generate rows block by block; the first rows do not depend on the number of rows.

    Parameters
    ----------
    rows : int
        At least 1. The original has 45,840,617.
    columns : int
        Number of columns to hash into; at least 39.
    seed : int
        From 0. Another seed gives fresh rows of the same problem.
    first_block : int
        Number of leading blocks of 32,768 rows to skip.

    Yields
    ------
    Rows
        Values float32, labels -1 and 1. Rows have norm 1, unless two values share a column.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    for name, number, least in (
        ("rows", rows, 1),
        ("columns", columns, len(SIZES)),
        ("seed", seed, 0),
        ("first_block", first_block, 0),
    ):
        if not isinstance(number, int) or number < least:
            raise ConfigError(f"{name}: got {number!r}, wanted a whole number of at least {least}")
    threshold, spread = _calibration()
    for block in range(first_block, -(-rows // BLOCK_ROWS)):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_PURPOSE, block)))
        keys, margins = _draw(rng, BLOCK_ROWS)
        noisy = margins + _NOISE * spread * rng.standard_normal(BLOCK_ROWS)
        n = min(BLOCK_ROWS, rows - block * BLOCK_ROWS)
        indptr, indices, values = _merged(_columns(keys[:n], columns))
        yield Rows(
            labels=np.where(noisy[:n] > threshold, 1.0, -1.0),
            n_columns=columns,
            indptr=indptr,
            indices=indices,
            values=values,
        )


def _draw(rng: np.random.Generator, n: int) -> tuple[I64, F64]:
    """Draw keys (n, 39), one integer for each pair of field and value, and planted margins (n,)."""
    sizes, power = np.array(SIZES, np.float64), 1.0 - _EXPONENT
    low, high = _OFFSET**power, (sizes + _OFFSET) ** power
    drawn = (low + rng.random((n, sizes.size)) * (high - low)) ** (1.0 / power) - _OFFSET
    ranks = np.clip(drawn, 0.0, sizes - 1.0).astype(np.int64)
    keys: I64 = (np.arange(sizes.size) << 32) + ranks
    u1, u2 = hashed(keys, 1), hashed(keys, 2)
    weights = np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * u2)
    margins: F64 = (weights / np.sqrt(1.0 + ranks / _SHRINK_RANK)).sum(axis=1)
    return keys, margins


def _columns(keys: I64, columns: int) -> NDArray[np.int32]:
    """Return the column of each key."""
    # Hashes are in (0, 1].
    indices = np.ceil(hashed(keys, 3) * columns) - 1.0
    return np.clip(indices, 0.0, columns - 1.0).astype(np.int32)


def _calibration() -> tuple[float, float]:
    """Return the threshold that gives the share of positives, and the margin's deviation."""
    rng = np.random.default_rng(np.random.SeedSequence(_CALIBRATION, spawn_key=(_PURPOSE,)))
    _, margins = _draw(rng, BLOCK_ROWS)
    spread = float(margins.std())
    noisy = margins + _NOISE * spread * rng.standard_normal(margins.size)
    return float(np.quantile(noisy, 1.0 - _POSITIVE_SHARE)), spread


@kernel
def _merged(
    columns: NDArray[np.int32],
) -> tuple[I64, NDArray[np.int32], NDArray[np.float32]]:
    """Sort each row's columns, and sum duplicates."""
    n, fields = columns.shape
    one, stored = np.float32(1.0 / np.sqrt(fields)), 0
    indptr = np.zeros(n + 1, np.int64)
    indices = np.empty(n * fields, np.int32)
    values = np.empty(n * fields, np.float32)
    for i in range(n):
        row = np.sort(columns[i])
        for k in range(fields):
            if k > 0 and row[k] == row[k - 1]:
                values[stored - 1] += one
            else:
                indices[stored], values[stored] = row[k], one
                stored += 1
        indptr[i + 1] = stored
    return indptr, indices[:stored].copy(), values[:stored].copy()
