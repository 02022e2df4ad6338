"""Sources of Dask collections: what the client describes, and the chunks that workers make."""

from __future__ import annotations

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
from elasticml.data.scored_rows import with_scored_rows
from elasticml.data.source import source_from_spec
from elasticml.errors import ConfigError, DataError
from elasticml.ids import is_trained
from tests.unit.data.readers.test_table_forms import chunks_of
from tests.unit.data.rows import labels, matrix

N, D = 90, 5
RNG = np.random.default_rng(0)
X, Y, S = RNG.normal(size=(N, D)), RNG.integers(0, 2, N).astype(float), RNG.uniform(1, 2, N)
FRAME = pd.DataFrame(X, columns=list("abcde")).assign(
    city=np.where(X[:, 0] > 0, "Rome", "Oslo"), y=Y, s=S
)
TYPES = {**dict.fromkeys("abcde", "number"), "city": "text", "y": "number", "s": "number"}
IS_ROME = FRAME["city"] == "Rome"


def rows() -> Any:
    return da.from_array(X, chunks=(20, 2))


def frame(n: int = 4, **columns: Any) -> Any:
    return dd.from_pandas(FRAME.assign(**columns), npartitions=n)


def delayed(make: Any) -> list[Any]:
    return [dask.delayed(make)(slice(at, at + 30)) for at in (0, 30, 60)]


def of_unknown_size() -> Any:
    some = frame()
    some = some[some["a"] > -10]
    return em.from_dask(some[list("abcde")].to_dask_array(), some["y"], some["s"])


def with_an_empty_chunk() -> Any:
    values, targets = (da.from_array(array, chunks=(50, *array.shape[1:])) for array in (X, Y))
    return em.from_dask(
        da.concatenate([values[:0], values]), da.concatenate([targets[:0], targets])
    )


def records() -> Any:
    return dask.bag.from_sequence(FRAME.to_dict("records"), npartitions=4)


ENCODED = np.column_stack([X, ~IS_ROME, IS_ROME])
BIG = np.where(X > 0.5, X, 0.0)
TARGETS: dict[str, Any] = {"label": "y", "weight": "s"}
#: Collections, and the values, labels and weights of their rows.
COLLECTIONS: dict[str, tuple[Any, Any, Any, Any]] = {
    "arrays": (lambda: em.from_dask(rows(), da.from_array(Y, chunks=33), S), X, Y, S),
    "float32": (lambda: em.from_dask(rows(), Y, dtype="float32"), X.astype("f4"), Y, None),
    "of unknown size": (of_unknown_size, X, Y, S),
    "an empty chunk": (with_an_empty_chunk, X, Y, None),
    "sparse": (
        lambda: em.from_dask(da.from_array(BIG, chunks=(30, D)).map_blocks(sp.csr_matrix), Y),
        *(BIG, Y, None),
    ),
    "delayed": (lambda: em.from_dask(delayed(lambda at: (X[at], Y[at], S[at]))), X, Y, S),
    "one delayed": (lambda: em.from_dask(dask.delayed(lambda: (X, Y))()), X, Y, None),
    "frame": (lambda: em.from_dask(frame(), **TARGETS), ENCODED, Y, S),
    "series": (
        lambda: em.from_dask(frame().drop(columns=["y", "s"]), frame()["y"], frame()["s"]),
        *(ENCODED, Y, S),
    ),
    "bag": (lambda: em.from_dask(records(), types=TYPES, **TARGETS), ENCODED, Y, S),
    "delayed frames": (
        lambda: em.from_dask(delayed(lambda at: FRAME.iloc[at]), types=TYPES, **TARGETS),
        *(ENCODED, Y, S),
    ),
    "delayed tables": (
        lambda: em.from_dask(
            delayed(lambda at: pa.Table.from_pandas(FRAME.iloc[at])), types=TYPES, **TARGETS
        ),
        *(ENCODED, Y, S),
    ),
    "categories and gaps": (
        lambda: em.from_dask(
            frame(day=np.arange(N) % 3, b=np.where(np.arange(N) % 2, np.nan, 4.0))[
                ["a", "day", "b", "y"]
            ],
            *(None, None),
            **{"label": "y", "categorical": ["day"], "missing": "mean"},
        ),
        *(np.column_stack([X[:, 0], np.eye(3)[np.arange(N) % 3], np.full(N, 4.0)]), Y, None),
    ),
    "labels of objects": (
        lambda: em.from_dask(
            frame()[["a"]],
            frame()["y"].map({1.0: "late", 0.0: "on time"}, meta=("late", object)),
        ),
        *(X[:, :1], 1.0 - Y, None),
    ),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_has_the_rows_of_its_partitions(name: str) -> None:
    make, *wanted = COLLECTIONS[name]
    source = make()
    chunks, facts = chunks_of(source)
    assert facts.n_rows == sum(chunk.n_rows for chunk in chunks) == N
    is_weighted = chunks[0].weights is not None
    weights = np.concatenate([chunk.weights for chunk in chunks]) if is_weighted else None
    for actual, expected in zip((matrix(chunks), labels(chunks), weights), wanted, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert source.needs_survey == (facts.encoder is not None)
    assert make().fingerprint() == source.fingerprint() or "delayed" in name or "size" in name


def test_blocks_and_fingerprints_are_known_without_the_rows() -> None:
    source: Any = em.from_dask(rows(), Y)
    assert [block.rows for block in source.blocks()] == [20, 20, 20, 20, 10]
    assert {block.rows for block in of_unknown_size().blocks()} == {None}
    assert source.fingerprint() != em.from_dask(rows(), 1 - Y).fingerprint()
    assert len({em.from_dask(frame(), label=n).fingerprint() for n in ("y", "a", "city")}) == 3
    with pytest.raises(ConfigError, match="read only by the members"):
        source.read(0, None, 1)
    rebuilt: Any = source_from_spec(source.spec())
    with pytest.raises(ConfigError, match=r"has no graph; give em.from_dask"):
        rebuilt.partition_graph()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: em.from_dask(X, Y), "X is a ndarray, wanted a Dask array.*em.from_arrays"),
        (lambda: em.from_dask(rows()), "y: .* need labels"),
        (lambda: em.from_dask(rows(), Y[1:]), "y has 89 rows and X 90"),
        (lambda: em.from_dask(rows(), Y, label="a"), "are for tables, not arrays"),
        (lambda: em.from_dask(rows(), Y, dtype="int8"), "dtype"),
        (lambda: em.from_dask(frame()), "label: name the column"),
        (lambda: em.from_dask(frame(), label="z"), "names column 'z', which the Dask collection"),
        (lambda: em.from_dask(records(), label="a"), "types: give the names and types of all col"),
        (lambda: em.from_dask(frame(2), frame(3)["y"]), "the labels have 3 partitions and X 2"),
        (lambda: em.from_dask([dask.delayed(1)], Y), "a delayed object contains its labels"),
    ],
)
def test_what_does_not_fit_is_refused(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_bad_partitions_are_named() -> None:
    wrong = da.from_array(np.where(X > 2.0, np.nan, X), chunks=(45, D))
    types = {"a": "number", "b": "number"}
    for source, words in (
        (em.from_dask(wrong, Y), r"partition . of the Dask collection, row .*wanted a finite"),
        (em.from_dask([dask.delayed(lambda: X)()]), r"is a ndarray, wanted .X, y."),
        (
            em.from_dask(dask.bag.from_sequence([1, 2]), label="a", types=types),
            "holds a int, wanted records",
        ),
    ):
        with pytest.raises(DataError, match=words):
            chunks_of(source)


def validated(source: Any) -> tuple[Any, Any]:
    """Values and labels of the training data, and of those held out."""
    chunks, facts = chunks_of(source)
    some = [
        [chunk for chunk in chunks if is_trained(chunk.id) != is_held] for is_held in (False, True)
    ]
    trained, held = (np.column_stack([matrix(part), labels(part)]) for part in some)
    assert (facts.n_rows, facts.scored_rows["validation"]) == (len(trained), len(held))
    return trained, held


@pytest.mark.parametrize("make", [lambda: em.from_dask(rows(), Y), with_an_empty_chunk])
def test_a_share_of_the_partitions_is_held_out(make: Any) -> None:
    trained, held = validated(with_scored_rows(make(), share=0.3, seed=0))
    assert 10 < len(held) < 50
    both = np.concatenate([trained, held])
    expected = np.column_stack([X, Y])
    np.testing.assert_array_equal(both[both[:, 0].argsort()], expected[X[:, 0].argsort()])


def test_other_collections_validate_by_the_names_of_their_columns_and_other_data_do_not() -> None:
    other = dd.from_pandas(FRAME[["y", "city", *"edcba"]].tail(30), npartitions=2)
    for drop in (["s"], ["s", "city"]):  # with a survey, and without
        train = em.from_dask(frame(3).drop(columns=drop), label="y")
        more = em.from_dask(other.drop(columns=drop[1:]), label="y")
        trained, held = validated(with_scored_rows(train, share=None, seed=0, validation=more))
        np.testing.assert_array_equal(held, trained[-30:])
    arrays, table = em.from_dask(rows(), Y), em.from_dask(frame(), label="y")
    for one, two, text in (
        (arrays, em.from_arrays(X, Y), "data are Dask collections and validate.data are not"),
        (em.from_arrays(X, Y), arrays, "validate.data are Dask collections and data are not"),
        (arrays, table, "validate.data: got a table, wanted arrays"),
    ):
        with pytest.raises(ConfigError, match=text):
            with_scored_rows(one, share=None, seed=0, validation=two)
