"""Sources of Dask collections: what the client describes, and the chunks that workers make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

import elasticml as em
from elasticml.data.readers.dask_partitions import DaskSource, has_partitions
from elasticml.data.scored_rows import with_scored_rows
from elasticml.data.source import merge_summaries, source_from_spec
from elasticml.errors import ConfigError, DataError
from elasticml.ids import is_trained
from tests.unit.data.rows import labels, matrix

N, D = 90, 5
RNG = np.random.default_rng(0)
X, Y, S = RNG.normal(size=(N, D)), RNG.integers(0, 2, N).astype(float), RNG.uniform(1, 2, N)
FRAME = pd.DataFrame(X, columns=list("abcde")).assign(
    city=np.where(X[:, 0] > 0, "Rome", "Oslo"), y=Y, s=S
)
TYPES = {**dict.fromkeys("abcde", "number"), "city": "text", "y": "number", "s": "number"}


def made(source: Any) -> tuple[list[Any], Any]:
    """The chunks of all partitions as members make them, and the facts of the data."""
    graph = source.partition_graph()
    parts = [list(dask.get(graph.tasks, list(keys))) for keys in graph.inputs]
    there: Any = source_from_spec(source.spec())
    assert there.fingerprint() == source.fingerprint()
    assert has_partitions(there)
    if there.needs_survey:
        surveys = [there.survey_of(block, some) for block, some in enumerate(parts)]
        there = source_from_spec(there.with_stats(merge_summaries(surveys)).spec())
    blocks = [there.chunks_of(block, some, 1000, 2) for block, some in enumerate(parts)]
    chunks = [chunk for some, _ in blocks for chunk in some]
    return chunks, merge_summaries([summary for _, summary in blocks])


def read(source: DaskSource) -> tuple[Any, Any, Any]:
    """Values, labels and weights of all rows."""
    chunks, facts = made(source)
    assert facts.n_rows == sum(chunk.n_rows for chunk in chunks) == N
    weights = [chunk.weights for chunk in chunks]
    return (
        matrix(chunks),
        np.array(labels(chunks)),
        None if weights[0] is None else np.concatenate(weights),
    )


def same(actual: Sequence[Any], *wanted: Any) -> None:
    for one, other in zip(actual, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_arrays_are_aligned_to_the_rows_of_X():
    rows = da.from_array(X, chunks=(20, 2))
    source = em.from_dask(rows, da.from_array(Y, chunks=33), S)
    assert [block.rows for block in source.blocks()] == [20, 20, 20, 20, 10]
    same(read(source), X, Y, S)
    single = em.from_dask(rows, Y, dtype="float32")
    same(read(single)[:2], X.astype(np.float32), Y)


def test_chunks_of_unknown_size_and_empty_partitions():
    rows = dd.from_pandas(FRAME, npartitions=3)
    some = rows[rows["a"] > -10]
    values = some[list("abcde")].to_dask_array()
    source = em.from_dask(values, some["y"], some["s"])
    assert {block.rows for block in source.blocks()} == {None}
    same(read(source), X, Y, S)
    none = da.concatenate([da.zeros((4, D), chunks=4)[:0], da.from_array(X, chunks=(50, D))])
    targets = da.concatenate([da.zeros(4, chunks=4)[:0], da.from_array(Y, chunks=50)])
    same(read(em.from_dask(none, targets))[:2], X, Y)


def test_sparse_partitions():
    dense = np.where(X > 0.5, X, 0.0)
    rows = da.from_array(dense, chunks=(30, D)).map_blocks(sp.csr_matrix)
    same(read(em.from_dask(rows, Y))[:2], dense, Y)


@pytest.mark.parametrize("kind", ["frame", "series", "bag", "delayed", "arrow"])
def test_tables_are_encoded_with_the_categories_of_all_partitions(kind: str):
    frame = dd.from_pandas(FRAME, npartitions=4)
    if kind == "frame":
        source = em.from_dask(frame, label="y", weight="s")
    elif kind == "series":
        source = em.from_dask(frame.drop(columns=["y", "s"]), frame["y"], frame["s"])
    elif kind == "bag":
        bag = dask.bag.from_sequence(FRAME.to_dict("records"), npartitions=4)
        source = em.from_dask(bag, label="y", weight="s", types=TYPES)
    else:
        make = pa.Table.from_pandas if kind == "arrow" else (lambda part: part)
        parts = [dask.delayed(make)(FRAME.iloc[at : at + 30]) for at in (0, 30, 60)]
        source = em.from_dask(parts, label="y", weight="s", types=TYPES)
    assert source.needs_survey
    is_rome = FRAME["city"] == "Rome"
    same(read(source), np.column_stack([X, ~is_rome, is_rome]), Y, S)


def test_columns_of_the_dtype_category_numbers_listed_as_such_and_missing_values():
    table = FRAME[["a", "city"]].assign(
        y=Y, day=np.arange(N) % 3, b=np.where(np.arange(N) % 2, np.nan, 4.0)
    )
    frame = dd.from_pandas(table.astype({"city": "category"}), npartitions=4)
    source = em.from_dask(frame, label="y", categorical=["day"], missing="mean")
    rows, targets, weights = read(source)
    assert rows.shape == (N, 1 + 2 + 3 + 1)
    assert weights is None
    np.testing.assert_array_equal(rows[:, -1], 4.0)
    np.testing.assert_array_equal(targets, Y)


def test_delayed_partitions_of_arrays():
    def part(at: int) -> tuple[Any, ...]:
        return X[at : at + 30], Y[at : at + 30], S[at : at + 30]

    same(read(em.from_dask([dask.delayed(part)(at) for at in (0, 30, 60)])), X, Y, S)
    whole = dask.delayed(lambda: (X, Y))()
    same(read(em.from_dask(whole))[:2], X, Y)


def test_the_same_partitions_have_the_same_fingerprint():
    rows = da.from_array(X, chunks=(30, D))
    assert em.from_dask(rows, Y).fingerprint() == em.from_dask(rows, Y).fingerprint()
    assert em.from_dask(rows, Y).fingerprint() != em.from_dask(rows, 1 - Y).fingerprint()
    frame = dd.from_pandas(FRAME, npartitions=4)
    prints = {em.from_dask(frame, label=label).fingerprint() for label in ("y", "a", "city")}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: em.from_dask(X, Y), "X is a ndarray, wanted a Dask array.*em.from_arrays"),
        (lambda: em.from_dask(da.from_array(X)), "y: .* need labels"),
        (lambda: em.from_dask(da.from_array(X), Y[1:]), "y has 89 rows and X 90"),
        (lambda: em.from_dask(da.from_array(X), Y, label="a"), "are for tables, not arrays"),
        (lambda: em.from_dask(dd.from_pandas(FRAME, npartitions=2)), "label: name the column"),
        (
            lambda: em.from_dask(dd.from_pandas(FRAME, npartitions=2), label="z"),
            "names column 'z', which the Dask collection does not have",
        ),
        (
            lambda: em.from_dask(dask.bag.from_sequence([{"a": 1}]), label="a"),
            "types: give the names and types of all columns",
        ),
        (
            lambda: em.from_dask(
                dd.from_pandas(FRAME, npartitions=2), dd.from_pandas(FRAME["y"], npartitions=3)
            ),
            "the labels have 3 partitions and X 2",
        ),
        (lambda: em.from_dask([dask.delayed(1)], Y), "a delayed object contains its labels"),
        (lambda: em.from_dask(da.from_array(X), Y, dtype="int8"), "dtype"),
    ],
)
def test_what_does_not_fit_is_refused(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()


def test_bad_partitions_are_named():
    rows = da.from_array(np.where(X > 2.0, np.nan, X), chunks=(45, D))
    with pytest.raises(
        DataError, match=r"partition . of the Dask collection, row .*wanted a finite"
    ):
        read(em.from_dask(rows, Y))
    wrong = [dask.delayed(lambda: X)()]
    with pytest.raises(DataError, match=r"is a ndarray, wanted .X, y."):
        read(em.from_dask(wrong))
    bag = dask.bag.from_sequence([1, 2])
    with pytest.raises(DataError, match="holds a int, wanted records"):
        read(em.from_dask(bag, label="a", types={"a": "number", "b": "number"}))


def test_the_client_and_a_rebuilt_source_read_no_rows():
    source = em.from_dask(da.from_array(X, chunks=(30, D)), Y)
    with pytest.raises(ConfigError, match="read only by the members"):
        source.read(0, None, 1)
    rebuilt: Any = source_from_spec(source.spec())
    with pytest.raises(ConfigError, match=r"has no graph; give em.from_dask"):
        rebuilt.partition_graph()


def validated(source: Any) -> tuple[Any, Any]:
    """Values and labels of the training data, and of those held out."""
    chunks, facts = made(source)
    wanted = []
    for is_held in (False, True):
        some = [chunk for chunk in chunks if is_trained(chunk.id) != is_held]
        wanted.append(np.column_stack([matrix(some), labels(some)]))
    assert (facts.n_rows, facts.scored_rows["validation"]) == (len(wanted[0]), len(wanted[1]))
    return wanted[0], wanted[1]


def test_a_share_of_the_partitions_is_held_out():
    source = em.from_dask(da.from_array(X, chunks=(20, D)), Y)
    trained, held = validated(with_scored_rows(source, share=0.3, seed=0, validation=None))
    assert 10 < len(held) < 50
    both = np.concatenate([trained, held])
    expected = np.column_stack([X, Y])
    np.testing.assert_array_equal(both[both[:, 0].argsort()], expected[X[:, 0].argsort()])


def test_other_collections_validate_by_the_names_of_their_columns():
    frame = dd.from_pandas(FRAME.drop(columns="s"), npartitions=3)
    other = dd.from_pandas(FRAME[["y", "city", *"edcba"]].tail(30), npartitions=2)
    for drop in ([], ["city"]):  # with a survey, and without
        train = em.from_dask(frame.drop(columns=drop), label="y")
        more = em.from_dask(other.drop(columns=drop), label="y")
        trained, held = validated(with_scored_rows(train, share=None, seed=0, validation=more))
        np.testing.assert_array_equal(held, trained[-30:])


def test_collections_are_not_validated_by_other_data():
    arrays = em.from_dask(da.from_array(X, chunks=(20, D)), Y)
    table = em.from_dask(dd.from_pandas(FRAME, npartitions=2), label="y")
    for train, other, text in (
        (arrays, em.from_arrays(X, Y), "data are Dask collections and validate.data are not"),
        (em.from_arrays(X, Y), arrays, "validate.data are Dask collections and data are not"),
        (arrays, table, "validate.data: got a table, wanted arrays"),
    ):
        with pytest.raises(ConfigError, match=text):
            with_scored_rows(train, share=None, seed=0, validation=other)


def test_columns_of_objects_are_texts():
    frame = dd.from_pandas(FRAME, npartitions=2)
    words = {1.0: "late", 0.0: "on time"}
    late = frame["y"].map(words, meta=("late", object))
    for source in (
        em.from_dask(frame.assign(late=late)[["a", "late"]], label="late"),
        em.from_dask(frame[["a"]], late),
    ):
        np.testing.assert_array_equal(read(source)[1], 1.0 - Y)
