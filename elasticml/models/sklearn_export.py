"""Fitted scikit-learn pipelines that encode a table as a model does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.data.chunks.rows import matrix_of
from elasticml.data.readers.tables import (
    ColumnEncoding,
    TableEncoder,
    arrow_table,
)
from elasticml.errors import ConfigError
from elasticml.models.row_input import RowInput


def pipeline(
    rows: RowInput, estimator: Callable[[NDArray[np.int64]], Any], *, is_linear: bool
) -> Any:
    """Return a fitted ``Pipeline`` of the encoding and a model.

    Parameters
    ----------
    rows : RowInput
    estimator : callable
        Returns the fitted estimator, given the model's column of each encoded one, (d,).
    is_linear : bool
        Whether two encoded columns of which at most one is not 0 may be one column of the model.

    Raises
    ------
    ConfigError
        When the job cut the encoded columns.
    """
    from sklearn.pipeline import Pipeline

    steps: list[tuple[str, Any]] = []
    order = np.arange(rows.n_columns)
    if rows.encoder is not None:
        if rows.encoder.n_columns != rows.n_columns:
            raise ConfigError(
                f"to_sklearn: data.n_columns cut the {rows.encoder.n_columns} encoded columns to "
                f"{rows.n_columns}; train without n_columns"
            )
        transformer, order = _columns(rows, is_linear)
        steps.append(("columns", transformer))
    return Pipeline([*steps, ("model", estimator(order))])


def _columns(rows: RowInput, is_linear: bool) -> tuple[Any, NDArray[np.int64]]:
    """Return a fitted ``ColumnTransformer``, and the model's column of each of its outputs."""
    import pandas
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    encoder = rows.encoder
    assert encoder is not None
    widths = [column.width for column in encoder.columns]
    starts = dict(
        zip((c.name for c in encoder.columns), np.cumsum([0, *widths[:-1]]).tolist(), strict=True)
    )
    groups: dict[str, list[ColumnEncoding]] = {}
    for column in encoder.columns:
        groups.setdefault(_group(column, is_linear), []).append(column)
    # Two rows to which scikit-learn fits exactly this state: the fills, beside missing values.
    sample = pandas.DataFrame({c.name: _sample(c) for c in encoder.columns})
    parts: list[tuple[str, Any, list[str]]] = []
    order: list[int] = []
    for group, columns in groups.items():
        names = [column.name for column in columns]
        if group == "numbers":
            parts.append((group, "passthrough", names))
            order += [starts[name] for name in names]
        elif group in ("filled", "marked"):
            imputer = SimpleImputer(add_indicator=group == "marked", keep_empty_features=True)
            parts.append((group, imputer, names))
            order += [starts[name] for name in names]
            order += [starts[name] + 1 for name in names if group == "marked"]
        elif group == "categories":
            values = [_categories(column) for column in columns]
            unknown = "ignore" if encoder.unknown == "ignore" else "error"
            parts.append((group, OneHotEncoder(categories=values, handle_unknown=unknown), names))
            for column in columns:
                places = list(range(column.width))
                order += [starts[column.name] + at for at in places]
                if None in column.categories:
                    order.append(starts[column.name] + places[-1])
        else:
            single = replace(encoder, columns=(columns[0],)).to_json()
            function = FunctionTransformer(encode_column, kw_args={"encoder": single})
            parts.append((names[0], function, names))
            order += [starts[names[0]] + at for at in range(columns[0].width)]
    transformer = ColumnTransformer(parts, verbose_feature_names_out=False)
    transformer.fit(sample)
    return transformer, np.array(order)


def _group(column: ColumnEncoding, is_linear: bool) -> str:
    if column.kind == "number":
        if column.fill is None:
            return "numbers"
        return "marked" if column.indicator else "filled"
    if column.kind == "category" and not column.other and column.is_text:
        # scikit-learn tells None and NaN apart: each gets a column.
        return "categories" if is_linear or None not in column.categories else f"own {column.name}"
    return f"own {column.name}"


def _sample(column: ColumnEncoding) -> list[Any]:
    if column.kind == "number":
        return [0.0, 0.0] if column.fill is None else [column.fill, np.nan]
    if column.kind == "date":
        return ["1970-01-01"] * 2
    first = next((text for text in column.categories if text is not None), "")
    return [first, first]


def _categories(column: ColumnEncoding) -> NDArray[Any]:
    present = [text for text in column.categories if text is not None]
    missing = [None, np.nan] if len(present) < len(column.categories) else []
    return np.array([*present, *missing], object)


def encode_column(frame: Any, encoder: Mapping[str, Any]) -> Any:
    """Encode the columns of a frame as an elasticml model does; for ``FunctionTransformer``."""
    rows = matrix_of(TableEncoder.from_json(encoder).features(arrow_table(frame), "X", _row, {}))
    if scipy.sparse.issparse(rows) and rows.nnz <= np.iinfo(np.int32).max:
        # scikit-learn's K-Means takes no other indices.
        rows.indices, rows.indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    return rows


def _row(row: int) -> str:
    return f"row {row}"
