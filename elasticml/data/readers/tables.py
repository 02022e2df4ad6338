"""What all tables have in common, whether they are in files, in frames or in Dask collections.

That is the roles of their columns, the survey of the training rows, and the encoder fitted to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import pyarrow
import pyarrow.compute
import scipy.sparse
from numpy.typing import NDArray
from pydantic import Field, field_serializer, field_validator
from pydantic.json_schema import SkipJsonSchema

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import matrix_of
from elasticml.data.column_survey import (
    ColumnMoments,
    ColumnSurvey,
    merge_moments,
    moments_of,
    moments_of_values,
    survey_numbers,
    survey_texts,
)
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.formats import Format
from elasticml.data.readers.table_encoding import (
    ColumnEncoding,
    ColumnType,
    Place,
    TableEncoder,
    are_dates,
    days_of,
    is_number,
    listed,
    numbers,
    some_rows,
    texts,
    with_label,
)
from elasticml.data.source import HeldOut
from elasticml.errors import ConfigError, DataError, shown
from elasticml.specification.settings_model import (
    AS_TUPLE,
    KEEP_INT,
    Count,
    Dtype,
    Flag,
    SettingsModel,
    did_you_mean,
)

#: Most distinct values of a column that the user lists as categorical.
VOCABULARY_MAX: Final = 100_000
#: Most distinct values of a column that is categorical because it holds text.
VOCABULARY_OF_TEXT: Final = 1000
#: Tables with more columns are not searched for columns to warn of.
_MOMENTS_MAX: Final = 1000
#: Nor are categorical columns with more values.
_VALUES_MAX: Final = 50


#: A column: its name, or its position.
Column = int | str
#: Given as any sequence.
Columns = Annotated[Sequence[Column], AS_TUPLE]
#: How missing numbers are filled: with a column's mean, median, or a constant.
Fill = Literal["error", "mean", "median"] | Annotated[float, KEEP_INT]
DatePart = Literal["days", "year", "month", "day", "weekday", "hour"]


class TableOptions(SettingsModel):
    """How the columns of a table become features.

    Parameters
    ----------
    label, weight : str or int
        Column name, or position from 0; -1 is the last column.
    categorical : sequence of str or int
        Columns to encode as one-hot at their position, with values sorted, besides those that hold
        text. May include the label, whose values become 0, 1, ... in sorted order. A column holds
        numbers if all its cells in all rows are numbers or missing, else text; it may also hold
        ``true`` and ``false`` alone, or dates such as ``2013-01-31``,
        ``2013-01-31T05:15:00Z``, ``2013/1/31`` or ``31.1.2013``; ``1/31/2013`` where a day above 12
        shows that the month is first.
        The result's notes name the first text of each column.
    numeric : sequence of str or int
        Columns in which text is an error, which names its line; it does not make them categories.
        Where all columns are numbers and listed, a pass over the data is saved.
    ignore : sequence of str or int
        Columns that are not features.
    missing : "error", "mean", "median" or float
        Missing values: an error; or numbers are replaced by the column's mean, median or a
        constant, missing categories become one of their own, and rows without a label are skipped.
    missing_indicator : bool
        Whether each column of numbers gets another one that marks the missing ones.
    max_categories : int, optional
        Most categories of a column; by default 100,000 if ``categorical`` lists it, else 1,000.
    rare : "other" or "hash"
        In columns with more values: the less frequent ones share a column, or all values are
        hashed into ``max_categories`` columns.
    dates : sequence of "days", "year", "month", "day", "weekday", "hour"
        Numbers that represent a date: days since 1970, weekdays from Monday, which is 0.
    unknown : "ignore" or "error"
        At prediction, values that training did not see: zeros (or the shared column), or an error.
    missing_columns : "error" or "fill"
        At prediction, columns that the data lack: an error, or their values are missing.
    extra_columns : "ignore" or "error"
        At prediction, columns that training did not have.
    """

    path: str = Field(kw_only=False, description="local path, or URL that fsspec opens")
    label: Column = Field(
        kw_only=False,
        description="column of the labels: its name, or its position from 0; -1 is the last",
    )
    weight: Column | None = None
    categorical: Columns = ()
    numeric: Columns = ()
    ignore: Columns = ()
    missing: Fill = "error"
    missing_indicator: Flag = False
    max_categories: Count | None = None
    rare: Literal["other", "hash"] = "other"
    dates: Annotated[Sequence[DatePart], AS_TUPLE, Field(min_length=1)] = ("days",)
    unknown: Literal["ignore", "error"] = "ignore"
    missing_columns: Literal["error", "fill"] = "error"
    extra_columns: Literal["ignore", "error"] = "ignore"
    dtype: Dtype = "float64"
    n_columns: Annotated[int, Field(ge=1)] | None = None
    #: The fitted encoding of the columns, from a survey of all blocks, or of the training data.
    encoder: SkipJsonSchema[Any] = Field(default=None, repr=False)
    #: Columns that the survey has made categories, and the cell that is no number of each.
    words: SkipJsonSchema[dict[str, str] | None] = Field(default=None, repr=False)

    @field_validator("encoder", mode="after")
    @classmethod
    def _read_encoder(cls, fitted: Any) -> Any:
        return TableEncoder.from_json(fitted) if isinstance(fitted, Mapping) else fitted

    @field_serializer("encoder")
    def _write_encoder(self, encoder: Any) -> Any:
        return None if encoder is None else encoder.to_json()

    def check(self) -> None:
        """Check constraints between fields."""
        if self.missing == "error" and self.missing_columns == "fill":
            raise ValueError("missing_columns: got fill, wanted missing: mean, median, a number")
        if self.missing == "error" and self.missing_indicator:
            raise ValueError("missing_indicator: got true, wanted missing: mean, median, a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The roles of a table's columns, by name; ``features`` in the order of the table."""

    label: str
    weight: str | None
    features: tuple[str, ...]
    #: Columns that the user lists as categorical.
    listed: frozenset[str]
    #: Columns in which text is an error: the weights, and those that the user lists as numeric.
    numeric: frozenset[str]
    #: Type of each used column.
    types: Mapping[str, ColumnType]

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that must be read."""
        return (self.label, *([] if self.weight is None else [self.weight]), *self.features)

    @property
    def categorical(self) -> tuple[str, ...]:
        """All columns with a vocabulary, sorted."""
        text = {name for name in (self.label, *self.features) if self.types[name] == "text"}
        return tuple(sorted(text | self.listed))


class TableFormat(Format, TableOptions):
    """A table, whose rows an encoder turns into numbers; it is fitted to the training rows."""

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding depends on all blocks and was not fitted yet."""
        if self.encoder is not None:
            return False
        if self.categorical:
            return True
        columns = self.roles()
        has_numbers = any(columns.types[name] != "text" for name in columns.features)
        return bool(columns.categorical) or (self.missing in ("mean", "median") and has_numbers)

    def names_and_types(self) -> tuple[Sequence[str], Sequence[ColumnType]]:
        """Return the names and types of the columns."""
        raise NotImplementedError

    def _separated(self) -> str:
        """Return how columns are separated, for messages."""
        return ""

    def roles(self) -> TableColumns:
        """Return the roles of the columns, given by name or by position (from 0; -1 is the last).

        Raises
        ------
        ConfigError
            When a column does not exist (suggests the nearest name), or no feature is left.
        """
        names, types = self.names_and_types()

        def find(column: str | int, key: str) -> str:
            if isinstance(column, str) and column in names:
                return column
            if isinstance(column, int) and -len(names) <= column < len(names):
                return names[column]
            raise ConfigError(
                f"data.{key} names column {shown(column)}, which {self.path} does not have; it has "
                f"{', '.join(map(shown, names[:20]))}{', ...' if len(names) > 20 else ''}"
                f"{self._separated()}{did_you_mean(column, names)}"
            )

        if len(set(names)) != len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise DataError(f"{self.path}, line 1: column {shown(twice)} is in the header twice")
        label = find(self.label, "label")
        weight = None if self.weight is None else find(self.weight, "weight")
        excluded = {label, weight, *(find(column, "ignore") for column in self.ignore)}
        features = tuple(name for name in names if name not in excluded)
        if not features:
            raise ConfigError(
                f"{self.path} has no column besides {label!r}{self._separated()}, wanted features"
            )
        listed = frozenset(find(column, "categorical") for column in self.categorical)
        numeric = frozenset(find(column, "numeric") for column in self.numeric)
        both = sorted(listed & numeric)
        if both:
            raise ConfigError(
                f"data.numeric and data.categorical both name column {shown(both[0])}; name it in "
                "one"
            )
        by_name = dict(zip(names, types, strict=True)) | dict.fromkeys(self.words or (), "text")
        by_name |= dict.fromkeys(numeric, "number")
        return TableColumns(
            label=label,
            weight=weight,
            features=features,
            listed=listed & {label, *features},
            numeric=numeric if weight is None else numeric | {weight},
            types={name: by_name[name] for name in names if name not in excluded or name == label},
        )

    def options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"encoder", "words"})
        return {"format": self.format, **given}

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        if self.encoder is not None:
            return {**super().spec(), "encoder": self.encoder.to_json()}
        return {**super().spec(), "words": self.words}

    def fitted_encoder(self) -> TableEncoder:
        """Return the encoder; one that depends on no statistics is not kept.

        Raises
        ------
        ConfigError
            When the encoding needs a survey and none was done.
        """
        if self.encoder is None and self.needs_survey:
            raise ConfigError(
                f"the encoding of {self.path} depends on all rows: survey all blocks and read with "
                "the merged facts"
            )
        fitted: TableEncoder = self.encoder or self._fit({})
        return fitted

    def with_encoder(self, encoder: TableEncoder) -> Self:
        """Return a source with the encoding of another table."""
        return self.model_copy(update={"encoder": encoder})

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source with the encoding that a survey gives, or that of the training data.

        Where the survey has found text among numbers, the source needs another survey.
        """
        words = {name: one.word for name, one in facts.columns.items() if one.word is not None}
        if words:
            return self.model_copy(update={"words": {**(self.words or {}), **words}})
        if facts.columns:
            return self.with_encoder(self._fit(facts.columns))
        source = self if facts.n_columns == 0 else self.with_columns(facts.n_columns)
        if facts.encoder is None:
            return source
        return source.with_encoder(TableEncoder.from_json(facts.encoder))

    def _fit(self, surveys: Mapping[str, ColumnSurvey]) -> TableEncoder:
        """Return the encoder of the table.

        Raises
        ------
        DataError
            When the label has too many values to be classes.
        """
        notes: list[str] = []
        columns, cells = self.roles(), {**self._texts(), **(self.words or {})}
        words = [
            n for n in columns.features if n not in columns.listed and n in columns.categorical
        ]
        dates = [n for n in words if surveys[n].values and are_dates(surveys[n].values)]
        columns = replace(columns, types={**columns.types, **dict.fromkeys(dates, "date")})
        surveys = {**surveys, **{n: _survey_dates(n, surveys[n], self.path) for n in dates}}
        found = [n for n in words if n not in dates]
        if found:
            first = [f"{shown(n)} ({cells[n]})" if n in cells else shown(n) for n in found[:10]]
            more = ", ..." if len(found) > 10 else ""
            notes.append(f"text became categories: {', '.join(first)}{more}")
        mostly = [name for name in found if name in cells and _is_mostly_numbers(surveys[name])]
        if mostly:
            notes.append(
                f"most values are numbers in {listed(mostly)}: if the text there means a missing "
                "value, name it in data.na_values; data.numeric makes it an error"
            )
        encodings = [self._encoding(n, columns, surveys.get(n), notes) for n in columns.features]
        label, classes = columns.label, None
        if label in columns.categorical:
            if len(surveys[label].values) > VOCABULARY_OF_TEXT:
                example = f" (the first is {cells[label]})" if label in cells else ""
                raise DataError(
                    f"column {shown(label)} of {self.path}, the label, holds "
                    f"{len(surveys[label].values)} different texts{example}, wanted numbers or at "
                    f"most {VOCABULARY_OF_TEXT} classes; correct data.label"
                )
            classes = tuple(sorted(surveys[label].values))
        elif columns.types[label] == "boolean":
            classes = ("false", "true")
        return TableEncoder(
            label=label,
            classes=classes,
            is_boolean=label not in columns.categorical and classes is not None,
            weight=columns.weight,
            columns=tuple(encodings),
            skips_unlabelled=self.missing != "error",
            unknown=self.unknown,
            missing_columns=self.missing_columns,
            extra_columns=self.extra_columns,
            delimiter=getattr(self, "delimiter", None),
            header=getattr(self, "header", True),
            na_values=getattr(self, "na_values", ()),
            notes=tuple(notes),
        )

    def _encoding(
        self, name: str, columns: TableColumns, survey: ColumnSurvey | None, notes: list[str]
    ) -> ColumnEncoding:
        """Return the encoding of one feature column."""
        fill: float | None = None
        if self.missing != "error":
            fill = 0.0
            if isinstance(self.missing, int | float):
                fill = float(self.missing)
            elif survey is not None and name not in columns.categorical:
                fill = survey.mean if self.missing == "mean" else survey.median
        if name not in columns.categorical:
            is_date = columns.types[name] == "date"
            return ColumnEncoding(
                name=name,
                kind="date" if is_date else "number",
                fill=fill,
                # Like the category of missing values, only if training has some.
                indicator=self.missing_indicator and (survey is None or survey.missing > 0),
                parts=tuple(self.dates) if is_date else (),
                is_boolean=columns.types[name] == "boolean",
            )
        assert survey is not None
        fill = None if fill is None else 0.0
        default = VOCABULARY_MAX if name in columns.listed else VOCABULARY_OF_TEXT
        most = self.max_categories or default
        values = list(survey.values)
        if len(values) <= most and not survey.is_cut:
            # Missing values are a category if there are any; values that training lacks are zeros.
            none = [None] if fill is not None and survey.missing else []
            return ColumnEncoding(
                name=name,
                kind="category",
                fill=fill,
                categories=(*sorted(values), *none),
                is_text=columns.types[name] == "text",
            )
        count = f"{'more than ' if survey.is_cut else ''}{len(values)}"
        if self.rare == "hash":
            notes.append(
                f"column {shown(name)} has {count} values, which are hashed into {most} columns"
            )
            return ColumnEncoding(name=name, kind="hash", fill=fill, buckets=most)
        kept = values[: most - 1]
        share = 1.0 - sum(survey.values[value] for value in kept) / max(1, survey.rows)
        notes.append(
            f"column {shown(name)} has {count} values: the {len(kept)} most frequent have columns "
            f"of their own, the others ({share:.1%} of the rows) share one"
        )
        return ColumnEncoding(
            name=name, kind="category", fill=fill, categories=tuple(sorted(kept)), other=True
        )

    def _texts(self) -> Mapping[str, str]:
        """Return the first cell of each column of text."""
        return {}

    def surveyed(
        self,
        block: int,
        tables: Sequence[tuple[Any, Place]],
        path: str,
        held: HeldOut = None,
        words: Mapping[str, str] | None = None,
    ) -> BlockSummary:
        """Return the statistics of a block's columns that the encoding depends on.

        They are those of the rows that have a label and are not held out; the classes are those of
        all rows.

        Parameters
        ----------
        held : callable, optional
            From the number of rows that have a label, a mask of those that are held out.
        words : mapping, optional
            Columns that were not taken for text and hold some, and the first such cell of each.

        Raises
        ------
        DataError
            For missing values, unless the job imputes them.
        """
        columns, accepts = self.roles(), self.missing != "error"
        n_rows = sum(table.num_rows for table, _ in tables)
        if accepts:
            tables = [with_label(table, columns.label, place) for table, place in tables]
        trained = tables if held is None else _not_held(tables, held)
        surveys = {
            name: ColumnSurvey(rows=n_rows, word=cell) for name, cell in (words or {}).items()
        }
        for name in columns.categorical:
            counts = Counter[str]()
            rows = missing = 0
            is_label = name == columns.label
            for table, place in tables if is_label else trained:
                column = texts(table, name, path, place, accepts)
                rows, missing = rows + len(column), missing + (0 if is_label else column.null_count)
                for one in pyarrow.compute.value_counts(column.drop_null()).to_pylist():
                    counts[one["values"]] += one["counts"]
            surveys[name] = survey_texts(counts, rows, missing)
        if self.missing in ("mean", "median"):
            for name in columns.features:
                if name in surveys:
                    continue
                read = days_of if columns.types[name] == "date" else numbers
                surveys[name] = survey_numbers([read(t, name, path, at, True) for t, at in trained])
        surveys.setdefault(columns.label, ColumnSurvey(rows=n_rows))
        return BlockSummary(
            block=block,
            rows=n_rows,
            n_columns=0,
            layout=Layout(kind="dense", dtype=self.dtype, n_columns=0),
            columns=surveys,
        )

    def surveyed_columns(self, columns: TableColumns) -> Sequence[str]:
        """Return the columns that :func:`surveyed` reads."""
        numbers = columns.features if self.missing in ("mean", "median") else ()
        return tuple(dict.fromkeys((columns.label, *columns.categorical, *numbers)))

    def encoded(self, tables: Iterable[tuple[Any, Place]], path: str) -> Iterator[Rows]:
        """Yield the rows of a block's tables."""
        encoder = self.fitted_encoder()
        for table, place in tables:
            notes = dict[str, int]()
            yield replace(encoder.rows(table, path, place, notes), notes=notes)

    def chunks_of_rows(
        self, block: int, parts: Iterable[Rows], chunk_bytes: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Partition the rows of a block into chunks; its summary has the columns' moments."""
        moments = dict[str, ColumnMoments]()
        observed = self._observed(parts, moments)
        chunks, summary = super().chunks_of_rows(block, observed, chunk_bytes)
        return chunks, replace(summary, moments=moments)

    def _observed(self, parts: Iterable[Rows], moments: dict[str, ColumnMoments]) -> Iterator[Rows]:
        """Yield rows, and collect the moments of their columns."""
        encoder = self.fitted_encoder()
        for rows in parts:
            for column, some in _column_moments(encoder, rows).items():
                before = moments.get(column)
                moments[column] = some if before is None else merge_moments([before, some])
            yield rows

    def facts_of(self, block: int) -> dict[str, Any]:
        """Return the encoding, with the first block."""
        if block:
            return {}
        encoder = self.fitted_encoder()
        return {
            "counts": {note.replace("{", "(").replace("}", ")"): 1 for note in encoder.notes},
            "vocabularies": encoder.vocabularies(),
            "encoder": encoder.to_json(),
        }


def roles_of_vectors(
    columns: tuple[Column | None, Column | None], vectors: tuple[Any, Any], names: Iterable[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the columns of labels and weights, and the new columns for those that are vectors.

    Parameters
    ----------
    columns : tuple
        Columns of labels and weights in the table, or None.
    vectors : tuple
        Labels and weights that are no columns of it, or None.
    names : iterable of str
        The columns of the table.

    Raises
    ------
    ConfigError
        When one is both, there are no labels, or values are the name of a column.
    """
    roles, joined = list[Any](), dict[str, Any]()
    for column, vector, key in zip(columns, vectors, ("label", "weight"), strict=True):
        if vector is None:
            roles.append(column)
            continue
        if column is not None:
            raise ConfigError(f"{key}: got {column!r} and values, wanted one of them")
        if isinstance(vector, str):
            raise ConfigError(f"{key}: got {vector!r} as values; name a column by {key}={vector!r}")
        roles.append(key if key not in names else f"elasticml {key}")
        joined[roles[-1]] = vector
    if roles[0] is None:
        raise ConfigError("label: name the column of the labels, or give y")
    return roles, joined


def _column_moments(encoder: TableEncoder, rows: Rows) -> dict[str, ColumnMoments]:
    """Return sizes of the columns, and their products with the labels, for warnings."""
    starts = np.cumsum([0, *(column.width for column in encoder.columns)])
    numeric: dict[str, int] = {}
    values: dict[str, slice] = {}
    for column, start in zip(encoder.columns, starts.tolist(), strict=False):
        if column.kind in ("number", "date"):
            numeric[column.name] = start
        elif column.kind == "category" and column.width <= _VALUES_MAX:
            values[column.name] = slice(start, start + column.width)
    if not 0 < len(numeric) + len(values) <= _MOMENTS_MAX:
        return {}
    X, y = matrix_of(rows), rows.labels
    X = X.tocsc() if scipy.sparse.issparse(X) else X
    some = X[:, list(numeric.values())].toarray() if scipy.sparse.issparse(X) else X
    # One transposition reads each cache line once, not once per column.
    columns = np.ascontiguousarray(some.T)
    at = range(len(numeric)) if scipy.sparse.issparse(X) else numeric.values()
    moments = {name: moments_of(columns[k], y) for name, k in zip(numeric, at, strict=True)}
    names = encoder.names()
    for name, place in values.items():
        moments |= moments_of_values(name, names[place], X[:, place], y)
    return moments


def _not_held(
    tables: Sequence[tuple[Any, Place]], held: Callable[[int], NDArray[np.bool_]]
) -> list[tuple[Any, Place]]:
    sizes = [table.num_rows for table, _ in tables]
    masks = np.split(~held(sum(sizes)), np.cumsum(sizes)[:-1])
    return [some_rows(*one, mask) for one, mask in zip(tables, masks, strict=True)]


def _survey_dates(name: str, texts: ColumnSurvey, path: str) -> ColumnSurvey:
    """Return the statistics of dates whose texts were counted."""
    column = pyarrow.table({name: list(texts.values)})
    days = days_of(column, name, path, lambda row: f"value {row}", False)
    ordered = sorted(zip(days.tolist(), texts.values.values(), strict=True))
    return replace(
        survey_numbers([days]),
        rows=texts.rows,
        missing=texts.missing,
        total=sum(day * n for day, n in ordered),
        points=tuple(ordered),
        values={},
    )


def _is_mostly_numbers(survey: ColumnSurvey) -> bool:
    counted = sum(count for text, count in survey.values.items() if is_number(text))
    return 2 * counted > sum(survey.values.values())
