"""Statistics of a table's columns, block by block, from which an encoding is fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.json_record import JsonRecord
from elasticml.errors import shown

#: Distinct values that a block reports of one column; beyond them only the most frequent ones.
VALUES_MAX: Final = 100_000
#: Points by which a block describes the distribution of a column's numbers; up to twice as many
#: distinct values are exact. The median of all blocks is off by at most this share of the ranks.
POINTS_MAX: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSurvey(JsonRecord):
    """Counts of a categorical column's values, or moments and quantiles of a numeric column."""

    rows: int = 0
    missing: int = 0
    #: Rows of each value, most frequent first; of categorical columns.
    values: Mapping[str, int] = field(default_factory=dict)
    #: Whether a block had more values than it reports.
    is_cut: bool = False
    #: Sum of the numbers that are not missing.
    total: float = 0.0
    #: Numbers, ascending, and how many rows each represents.
    points: tuple[tuple[float, int], ...] = ()
    #: The first text of a column that was not taken for one, and where it is.
    word: str | None = None

    @property
    def mean(self) -> float:
        """Mean of the numbers; 0 if all are missing."""
        present = self.rows - self.missing
        return self.total / present if present else 0.0

    @property
    def median(self) -> float:
        """Median of the numbers; 0 if all are missing."""
        if not self.points:
            return 0.0
        values, counts = (np.array(part) for part in zip(*self.points, strict=True))
        ends = np.cumsum(counts)
        below = values[np.searchsorted(ends, ends[-1] / 2.0)]
        above = values[np.searchsorted(ends, ends[-1] / 2.0, side="right")]
        return float((below + above) / 2.0)


def survey_texts(counts: Mapping[str, int], rows: int, missing: int) -> ColumnSurvey:
    """Return the statistics of a categorical column in one block."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ColumnSurvey(
        rows=rows,
        missing=missing,
        values=dict(ordered[:VALUES_MAX]),
        is_cut=len(ordered) > VALUES_MAX,
    )


def survey_numbers(parts: Sequence[NDArray[np.float64]]) -> ColumnSurvey:
    """Return the statistics of a numeric column in one block; NaN are missing values."""
    numbers = np.concatenate([*parts, np.empty(0)])
    present = np.sort(numbers[~np.isnan(numbers)])
    values, counts = np.unique(present, return_counts=True)
    if len(values) > 2 * POINTS_MAX:
        bounds = np.linspace(0, present.size, POINTS_MAX + 1).astype(int)
        values = present[(bounds[:-1] + bounds[1:]) // 2]
        counts = np.diff(bounds)
    return ColumnSurvey(
        rows=numbers.size,
        missing=numbers.size - present.size,
        total=float(present.sum()),
        points=tuple(zip(values.tolist(), counts.tolist(), strict=True)),
    )


def merge_surveys(surveys: Sequence[ColumnSurvey]) -> ColumnSurvey:
    """Merge the statistics of one column in all blocks, which are in order."""
    values, points = Counter[str](), Counter[float]()
    for one in surveys:
        values.update(one.values)
        for number, count in one.points:
            points[number] += count
    return ColumnSurvey(
        rows=sum(one.rows for one in surveys),
        missing=sum(one.missing for one in surveys),
        values=dict(sorted(values.items(), key=lambda item: (-item[1], item[0]))),
        is_cut=any(one.is_cut for one in surveys),
        total=sum(one.total for one in surveys),
        points=tuple(sorted(points.items())),
        word=next((one.word for one in surveys if one.word is not None), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMoments(JsonRecord):
    """Sums of a numeric column, or of a value of a categorical one, and products with the label."""

    #: Sums of 1, x, x^2, y, y^2 and x y over the rows.
    sums: tuple[float, ...]
    #: The categorical column, if the moments are those of one of its values.
    column: str | None = None

    @property
    def correlation(self) -> float:
        """Correlation with the label; 0 if one of them is constant."""
        n, x, xx, y, yy, xy = self.sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        # Of nearly constant columns only rounding errors are left.
        if n * xx - x * x <= 1e-9 * n * xx or n * yy - y * y <= 1e-9 * n * yy:
            return 0.0
        return float((n * xy - x * y) / np.sqrt(spread))


def moments_of(
    X: Any, y: NDArray[np.float64], columns: Mapping[str, tuple[int, str | None]]
) -> dict[str, ColumnMoments]:
    """Return the moments of some columns and the labels, by the columns' names.

    Parameters
    ----------
    X : array or CSR array (n, d)
    y : ndarray (n,)
    columns : mapping
        The position of each column; of a value of a categorical column also that column's name.
    """
    # Not by BLAS, whose threads take far longer than one for short columns.
    yy = float(np.einsum("i,i", y, y))
    if isinstance(X, np.ndarray):
        rows = np.ascontiguousarray(X.T)  # one transposition reads each cache line once
        sums, squares = rows.sum(axis=1), np.einsum("ji,ji->j", rows, rows)
        table = np.stack([sums, squares, np.einsum("ji,i->j", rows, y)])
    else:
        table = np.stack([X.sum(axis=0), (X * X).sum(axis=0), X.T @ y])
    label = (float(y.sum()), yy)
    return {
        name: ColumnMoments(
            sums=(float(y.size), float(x), float(xx), *label, float(xy)), column=column
        )
        for name, (place, column) in columns.items()
        for x, xx, xy in [table[:, place]]
    }


def merge_moments(parts: Sequence[ColumnMoments]) -> ColumnMoments:
    """Merge the moments of one column in all blocks, which are in order."""
    return ColumnMoments(
        sums=tuple(float(sum(column)) for column in zip(*(p.sums for p in parts), strict=True)),
        column=parts[0].column,
    )


#: A column with this correlation with the label most likely would not be known at prediction.
CORRELATION_MAX: Final = 0.999


def column_warnings(moments: Mapping[str, ColumnMoments]) -> list[str]:
    """Return sentences about copies of the label."""
    copies: dict[str, str] = {}
    for name, one in moments.items():
        if abs(one.correlation) > CORRELATION_MAX:
            value = "" if one.column is None else f"{name!r}: "
            copies.setdefault(
                one.column or name, f"({value}correlation {one.correlation:.4f}): if it "
            )
    return [
        f"column {shown(column)} is nearly the label {why}is not known when the model predicts, "
        "list it in data.ignore"
        for column, why in copies.items()
    ]
