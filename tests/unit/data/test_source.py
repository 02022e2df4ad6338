"""Statistics of blocks merge in any order; chunk sizes follow the rule; warnings about columns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed.protocol import dumps, loads

from elasticml.data.chunks.chunk import Layout
from elasticml.data.chunks.rows import row_bounds
from elasticml.data.dataset_stats import (
    POINTS_MAX,
    BlockSummary,
    DatasetStats,
    column_warnings,
    merge_moments,
    merge_summaries,
    merge_surveys,
    moments_of,
    survey_numbers,
)
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import chunk_size, source_from_spec
from elasticml.errors import ConfigError, DataError

CSR = Layout(kind="csr", n_columns=3)
BINARY = replace(CSR, kind="binary_csr")
DENSE = Layout(kind="dense", n_columns=3)
SEQUENCES = Layout(kind="sequence", n_columns=60, alphabet="ACGT", length=5, ngrams=(1, 2))


def summary(block: int, **changed: Any) -> BlockSummary:
    made = BlockSummary(
        block=block,
        rows=2,
        n_columns=3,
        layout=CSR,
        labels={-1.0: 1, 1.0: 1},
        weight_sum=2.0,
        n_chunks=1,
        nbytes=100,
    )
    return replace(made, **changed)


def test_a_chunk_size_is_a_share_between_16_kib_and_1_mib_and_a_large_row_has_a_chunk() -> None:
    assert chunk_size(10**12, 4) == 2**20
    assert chunk_size(64 * 4 * 50_000, 4) == 50_000
    assert chunk_size(1000, 4) == 16 * 2**10
    sizes = np.array([400, 400, 5000, 300, 300, 300, 300])
    assert row_bounds(sizes, 576 + 1000).tolist() == [0, 2, 3, 6, 7]
    assert row_bounds(sizes[:0], 1000).tolist() == [0]


def test_statistics_are_the_same_in_any_order_of_summaries_and_survive_json() -> None:
    parts = [
        summary(0, counts={"{} rows were odd": 2}, vocabularies={"c": ["b", "a"]}, index_base=1),
        summary(1, n_columns=5, labels={1.0: 2}, counts={"{} rows were odd": 3}, index_base=1),
        summary(2, layout=BINARY, vocabularies={"c": ["c"]}, index_base=1),
        # An empty block has no part in the layout.
        summary(
            3, rows=0, n_columns=0, layout=replace(DENSE, n_columns=0), labels={}, weight_sum=0.0
        ),
    ]
    for one in (*parts, summary(3, layout=SEQUENCES, n_columns=60)):
        assert BlockSummary.from_json(json.loads(json.dumps(one.to_json()))) == one
    facts = merge_summaries(parts)
    assert facts == merge_summaries(parts[::-1])
    assert facts == DatasetStats(
        n_rows=6,
        n_columns=5,
        classes=(-1.0, 1.0),
        label_counts={-1.0: 2, 1.0: 4},
        layout=Layout(kind="csr", n_columns=5),
        weight_sum=6.0,
        n_blocks=4,
        n_chunks=3,
        nbytes=300,
        index_base=1,
        notes=("5 rows were odd",),
        vocabularies={"c": ("a", "b", "c")},
    )
    again = DatasetStats.from_json(json.loads(json.dumps(facts.to_json())))
    assert (again.to_json(), again.classes) == (facts.to_json(), facts.classes)
    # Dask's messages have tuples for lists.
    words = replace(facts, encoder={"classes": ["no", "yes"], "label": "late"})
    sent = loads(dumps(words.to_json()), deserialize=True)
    assert isinstance(sent["encoder"]["classes"], tuple)
    assert DatasetStats.from_json(sent).classes == facts.classes
    assert merge_summaries([summary(i, layout=BINARY) for i in range(2)]).layout == BINARY
    # A survey does not read weights.
    surveyed = summary(0, weight_sum=0.0, n_chunks=0, vocabularies={"c": ["a"]})
    assert merge_summaries([surveyed]).n_rows == 2


def test_many_labels_are_continuous() -> None:
    few = [summary(i, labels={float(i * 600 + j): 1 for j in range(600)}) for i in range(2)]
    assert merge_summaries(few[:1]).classes is not None
    assert merge_summaries(few).classes is None
    data = from_arrays(np.ones((2000, 1)), np.arange(2000.0))
    assert data.read(0, None, 1)[1].continuous


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            [summary(0), summary(1, layout=DENSE)],
            "block 1 of d is dense with 3 columns, wanted csr",
        ),
        (
            [summary(0, layout=DENSE), summary(1, layout=replace(DENSE, n_columns=4), n_columns=4)],
            "block 1 of d is dense with 4 columns, wanted dense with 3",
        ),
        ([], "d holds no examples"),
        ([summary(0, weight_sum=0.0)], "d: the weights of all examples are 0"),
    ],
)
def test_blocks_that_do_not_fit_together_are_named(parts: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        merge_summaries(parts, name="d")


def test_a_spec_without_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.path is missing: local path, or URL"):
        source_from_spec({"format": "svmlight"})


# --- surveys of columns ---------------------------------------------------------------------------

Y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
NOISE = np.array([0.3, -0.9, 0.5, 0.1, 0.7, -0.2])


def test_medians_and_moments_of_blocks_are_those_of_the_whole() -> None:
    x = np.random.default_rng(0).normal(size=50_000) ** 3
    parts = [survey_numbers([some]) for some in np.array_split(x, 7)]
    rank = (x < merge_surveys(parts).median).mean()
    assert rank == pytest.approx(0.5, abs=1 / POINTS_MAX)
    few = [survey_numbers([np.array([1.0, np.nan, 3.0])]), survey_numbers([np.array([8.0, 3.5])])]
    assert (merge_surveys(few).median, merge_surveys(few).mean) == (3.25, 15.5 / 4)
    assert merged(NOISE).correlation == pytest.approx(np.corrcoef(NOISE, Y)[0, 1])


def merged(column: Any) -> Any:
    return moments_in_parts(column[:, None], {"x": (0, None)})["x"]


def moments_in_parts(X: Any, columns: Any) -> dict[str, Any]:
    parts = [moments_of(X[k], Y[k], columns) for k in (slice(0, 2), slice(2, 6))]
    return {name: merge_moments([part[name] for part in parts]) for name in columns}


def test_a_column_or_a_value_that_is_nearly_the_label_is_named_once() -> None:
    moments = {"copy": merged(3.0 - 2.0 * Y + 1e-4 * NOISE), "noise": merged(NOISE)}
    (warning,) = column_warnings(moments)
    assert warning.startswith("column 'copy' is nearly the label (correlation -1.0000): if it")
    X, names = np.column_stack([Y, 1.0 - Y]), ["status=late", "status=on time"]
    places = {name: (k, "status") for k, name in enumerate(names)}
    dense, sparse = (moments_in_parts(some, places) for some in (X, sp.csr_array(X)))
    assert dense == sparse
    (warning,) = column_warnings({**dense, "noise": merged(NOISE)})
    assert warning == (
        "column 'status' is nearly the label ('status=late': correlation 1.0000): if it is not "
        "known when the model predicts, list it in data.ignore"
    )
