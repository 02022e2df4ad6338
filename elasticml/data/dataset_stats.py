"""Statistics of a data set: a summary of each block, and the merged statistics of all blocks.

Those of a table's columns are what an encoding is fitted to, and what warnings follow from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from elasticml.data.chunks.body import Kind, Layout
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.json_record import JsonRecord
from elasticml.errors import DataError, shown
from elasticml.ids import Role

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


#: Labels are continuous if a block, or the data set, has more distinct ones than this.
DISTINCT_LABELS_MAX: Final = 1000
_SPARSE: Final = frozenset({"csr", "binary_csr"})
_NO_JSON: Final[Any] = Field(exclude=True)
_UNLESS_ONE: Final[Any] = Field(exclude_if=lambda ratio: ratio == 1.0)
_UNLESS_EMPTY: Final[Any] = Field(exclude_if=lambda rows: not rows)


def _readable(encoder: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Check what is read of an encoder where tables cannot be."""
    if encoder is None or isinstance(encoder.get("classes"), list | tuple | None):
        return encoder
    raise ValueError(f"classes are {shown(encoder['classes'])}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSummary(JsonRecord):
    """Statistics of one block; small enough to send to the driver."""

    block: int
    rows: int
    #: Columns that the block spans: the largest column index plus one, or the header's number.
    n_columns: int
    layout: Layout
    #: Number of rows for each distinct label; empty if ``continuous``.
    labels: Mapping[float, int] = field(default_factory=dict)
    continuous: bool = False
    #: Sum of the sample weights; the number of rows if there are none.
    weight_sum: float = 0.0
    n_chunks: int = 0
    nbytes: int = 0
    #: Notes: sentences with ``{}`` for a count, and the counts.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: Categorical columns: distinct values, sorted.
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: svmlight: index of the first column, 0 or 1.
    index_base: int | None = None
    #: Tables, in a survey: statistics of the columns whose encoding depends on them.
    columns: Mapping[str, ColumnSurvey] = field(default_factory=dict)
    #: Tables: sums of the columns, and their products with the label.
    moments: Mapping[str, ColumnMoments] = field(default_factory=dict)
    #: CSR rows: the ratio of the largest absolute values of two columns, at most; else 1.
    size_ratio: Annotated[float, _UNLESS_ONE] = 1.0
    #: Tables, in block 0: the fitted encoder as JSON.
    encoder: Mapping[str, Any] | None = None
    #: Rows that are scored and not trained on, by role; not among ``rows``.
    scored_rows: Annotated[Mapping[Role, int], _UNLESS_EMPTY] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes with their counts filled in."""
        return tuple(text.format(count) for text, count in self.counts.items() if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats(JsonRecord):
    """Statistics of the whole data set, fixed before the first round."""

    n_rows: int
    #: Features, without the intercept.
    n_columns: int
    #: Distinct labels, ascending; None if they are continuous.
    classes: tuple[float, ...] | None
    label_counts: Mapping[float, int]
    #: Kind ``csr`` if some chunks are CSR and others binary CSR.
    layout: Layout
    weight_sum: float
    n_blocks: int
    n_chunks: int = 0
    #: Bytes of all chunk bodies.
    nbytes: int = 0
    notes: tuple[str, ...] = ()
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    index_base: int | None = None
    #: Tables, after a survey: statistics of the columns; they are not part of the JSON.
    columns: Annotated[Mapping[str, ColumnSurvey], _NO_JSON] = field(default_factory=dict)
    #: Tables: sums of the columns, and their products with the label; not in the JSON.
    moments: Annotated[Mapping[str, ColumnMoments], _NO_JSON] = field(default_factory=dict)
    #: Smallest of the blocks' ratios; not in the JSON.
    size_ratio: Annotated[float, _NO_JSON] = 1.0
    #: Tables: the fitted encoder as JSON.
    encoder: Annotated[Mapping[str, Any] | None, AfterValidator(_readable)] = None
    #: Rows that are scored and not trained on, by role; not among ``n_rows``.
    scored_rows: Annotated[Mapping[Role, int], _UNLESS_EMPTY] = field(default_factory=dict)


def summarise(
    block: int,
    chunks: Sequence[Chunk],
    layout: Layout,
    **facts: Any,
) -> BlockSummary:
    """Summarise the chunks of one block.

    Parameters
    ----------
    layout : Layout
        Layout of the block; its ``n_columns`` is the number of columns that the block spans.
    **facts
        Further fields of the summary, such as its notes in ``counts``.
    """
    labels = _count_labels([chunk.labels for chunk in chunks])
    weights = (c.n_rows if c.weights is None else float(c.weights.sum()) for c in chunks)
    return BlockSummary(
        block=block,
        rows=sum(chunk.n_rows for chunk in chunks),
        n_columns=layout.n_columns,
        layout=layout,
        labels={} if labels is None else labels,
        continuous=labels is None,
        weight_sum=float(sum(weights)),
        n_chunks=len(chunks),
        nbytes=sum(chunk.nbytes for chunk in chunks),
        size_ratio=_size_ratio(chunks, layout),
        **facts,
    )


def _size_ratio(chunks: Sequence[Chunk], layout: Layout) -> float:
    """Return the ratio of the largest absolute values of two columns of CSR rows; else 1."""
    if layout.kind != "csr":
        return 1.0
    sizes = np.zeros(layout.n_columns)
    for chunk in chunks:
        if chunk.layout.kind == "csr":
            np.maximum.at(sizes, chunk.indices, np.abs(chunk.values))
    found = sizes[sizes > 0.0]
    with np.errstate(over="ignore"):
        ratio = found.max() / found.min() if found.size else 1.0
    return min(float(ratio), float(np.finfo(np.float64).max))


def _count_labels(parts: Sequence[NDArray[np.float64]]) -> dict[float, int] | None:
    """Count distinct labels; None if there are too many to be classes."""
    counted = Counter[float]()
    for labels in parts:
        values, counts = np.unique(labels, return_counts=True)
        counted.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(counted) > DISTINCT_LABELS_MAX:
            return None
    return dict(sorted(counted.items()))


def merge_summaries(summaries: Sequence[BlockSummary], *, name: str = "the data") -> DatasetStats:
    """Merge the summaries of all blocks, in any order.

    Parameters
    ----------
    name : str
        Name of the data in messages.

    Raises
    ------
    DataError
        When there is no example, all weights are 0, or blocks are incompatible.
    """
    ordered = sorted(summaries, key=lambda summary: summary.block)
    filled = [summary for summary in ordered if summary.rows] or ordered[:1]
    n_rows = sum(summary.rows for summary in filled)
    if not filled or (n_rows == 0 and not (filled[0].vocabularies or filled[0].columns)):
        raise DataError(f"{name} holds no examples; check the path and the format")
    weight_sum = sum(summary.weight_sum for summary in filled)
    if weight_sum <= 0.0 and any(summary.n_chunks for summary in filled):
        raise DataError(f"{name}: the weights of all examples are 0; give some of them a weight")
    spanned = max(summary.n_columns for summary in filled)
    layout = _merge_layouts(filled, spanned, name)
    labels, counts, scored = Counter[float](), Counter[str](), Counter[Role]()
    words: dict[str, set[str]] = {}
    columns: dict[str, list[ColumnSurvey]] = {}
    moments: dict[str, list[ColumnMoments]] = {}
    for summary in ordered:
        labels.update(summary.labels)
        counts.update(summary.counts)
        scored.update(summary.scored_rows)
        for column, survey in summary.columns.items():
            columns.setdefault(column, []).append(survey)
        for column, sums in summary.moments.items():
            moments.setdefault(column, []).append(sums)
        for column, values in summary.vocabularies.items():
            words.setdefault(column, set()).update(values)
    notes = [text.format(count) for text, count in counts.items() if count]
    widest = max((summary.n_columns for summary in ordered if not summary.rows), default=0)
    if widest > spanned:
        notes.append(
            f"rows to score have up to {widest} columns: those beyond the {spanned} of the model "
            "are left out"
        )
    continuous = any(s.continuous for s in filled) or len(labels) > DISTINCT_LABELS_MAX
    return DatasetStats(
        n_rows=n_rows,
        n_columns=spanned,
        classes=None if continuous else tuple(sorted(labels)),
        label_counts={} if continuous else dict(sorted(labels.items())),
        layout=layout,
        weight_sum=weight_sum,
        n_blocks=len(ordered),
        n_chunks=sum(summary.n_chunks for summary in filled),
        nbytes=sum(summary.nbytes for summary in filled),
        notes=tuple(notes),
        vocabularies={column: tuple(sorted(values)) for column, values in words.items()},
        index_base=filled[0].index_base,
        columns={column: merge_surveys(some) for column, some in columns.items()},
        moments={column: merge_moments(some) for column, some in moments.items()},
        size_ratio=min(summary.size_ratio for summary in filled),
        encoder=next((s.encoder for s in ordered if s.encoder is not None), None),
        scored_rows=dict(scored),
    )


def single_row_warnings(facts: DatasetStats) -> list[str]:
    """Return a sentence about classes that one row has, while others have more: mistyped labels."""
    counts, encoder = facts.label_counts, facts.encoder or {}
    single = [label for label, count in counts.items() if count == 1]
    if not single or len(counts) < 3 or len(single) == len(counts):
        return []
    words = encoder.get("classes")
    shown = [repr(words[int(one)]) if words else f"{one:g}" for one in single[:5]]
    more = ", ..." if len(single) > 5 else ""
    where = f" of column {encoder['label']!r}" if encoder.get("label") else ""
    occurs = "label {} occurs in one row" if len(single) == 1 else "labels {} occur in one row each"
    return [
        f"{occurs.format(', '.join(shown) + more + where)} of {facts.n_rows}: correct the data if "
        "the label is mistyped, or leave the row out"
    ]


def merge_layout_kinds(kinds: Sequence[Kind]) -> Kind:
    """Return the common kind of chunks: ``csr`` for a mixture of ``csr`` and ``binary_csr``.

    :func:`merge_summaries` rejects other mixtures. Without chunks the kind is dense.
    """
    distinct = set(kinds)
    if len(distinct) > 1 and distinct <= _SPARSE:
        return "csr"
    return kinds[0] if kinds else "dense"


def _merge_layouts(summaries: Sequence[BlockSummary], n_columns: int, name: str) -> Layout:
    first = summaries[0].layout
    kinds = {summary.layout.kind for summary in summaries}
    merged = replace(first, n_columns=n_columns)
    if len(kinds) > 1 and kinds <= _SPARSE:
        merged = replace(merged, kind="csr")
    for summary in summaries:
        same = replace(summary.layout, n_columns=n_columns, kind=merged.kind)
        kind_fits = summary.layout.kind == merged.kind or kinds <= _SPARSE
        is_ragged = merged.kind not in _SPARSE and summary.n_columns != summaries[0].n_columns
        if same != merged or not kind_fits or is_ragged:
            raise DataError(
                f"block {summary.block} of {name} is {summary.layout.kind} with "
                f"{summary.n_columns} columns, wanted {first.kind} with {first.n_columns} as in "
                f"block {summaries[0].block}"
            )
    return merged
