"""One table in five forms: pandas, polars, Parquet, CSV and Dask give the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticml as em
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.dask_partitions import has_partitions
from elasticml.data.scored_rows import held_out_rows, with_scored_rows
from elasticml.data.source import Source, source_from_spec, survey_all
from elasticml.errors import ConfigError, DataError
from elasticml.ids import is_trained
from tests.unit.data.rows import labels, matrix

N = 120
RNG = np.random.default_rng(0)


def gaps(values: Any, every: int) -> list[Any]:
    return [None if k % every == 3 else value for k, value in enumerate(values)]


#: Numbers, whole numbers, a code that is listed as a category, text, true and false, dates; gaps.
COLUMNS: dict[str, Any] = {
    "size": gaps(RNG.normal(size=N).tolist(), 7),
    "rooms": gaps(RNG.integers(1, 9, N).tolist(), 11),
    "zip": gaps((2**53 + RNG.integers(1, 4, N)).tolist(), 13),
    "city": gaps(RNG.choice(["Rome", "Oslo", "São Paulo"], N).tolist(), 5),
    "new": RNG.choice([True, False], N).tolist(),
    "built": gaps([f"20{k % 23:02}-0{1 + k % 9}-1{k % 9}" for k in range(N)], 17),
    "y": RNG.integers(0, 2, N).tolist(),
}
TABLE = pa.table(COLUMNS).set_column(
    5, "built", pa.array(COLUMNS["built"], pa.string()).cast(pa.date32())
)
OPTIONS: dict[str, Any] = {"categorical": ["zip"], "missing": "median", "missing_indicator": True}


def frame() -> pd.DataFrame:
    made = TABLE.to_pandas(integer_object_nulls=True)
    return made.astype({"rooms": float, "zip": "Int64", "built": "datetime64[us]"})


def csv(folder: Path) -> Source:
    rows = zip(*COLUMNS.values(), strict=True)
    text = [",".join("" if c is None else str(c) for c in row) for row in rows]
    path = folder / "a.csv"
    path.write_text("\n".join([",".join(COLUMNS), *text]).replace("True", "true") + "\n")
    return em.read_csv(path, "y", **OPTIONS)


def parquet(folder: Path) -> Source:
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=50)
    return em.read_parquet(folder / "a.parquet", "y", **OPTIONS)


FORMS = {
    "pandas": lambda folder: em.from_frame(frame(), label="y", **OPTIONS),
    "pandas category": lambda folder: em.from_pandas(
        frame().astype({"city": "category"}), label="y", **OPTIONS
    ),
    "polars": lambda folder: em.from_frame(pl.from_arrow(TABLE), label="y", **OPTIONS),
    "polars series": lambda folder: em.from_frame(
        pl.from_arrow(TABLE.drop_columns("y")), pl.Series(COLUMNS["y"]), **OPTIONS
    ),
    "arrow": lambda folder: em.from_frame(TABLE, label=-1, **OPTIONS),
    "parquet": parquet,
    "csv": csv,
    "dask": lambda folder: em.from_dask(
        dd.from_pandas(frame(), npartitions=3, sort=False), label="y", **OPTIONS
    ),
}


def chunks_of(source: Any) -> tuple[list[Any], Any]:
    """The chunks of all rows as a job reads them, and the facts of the data."""
    if not has_partitions(source):
        ready = survey_all(source)
        blocks = [ready.read(block.index, 2000, 2) for block in ready.blocks()]
    else:
        graph = source.partition_graph()
        parts = [list(dask.get(graph.tasks, list(keys))) for keys in graph.inputs]
        ready = source_from_spec(source.spec())
        assert (ready.fingerprint(), has_partitions(ready)) == (source.fingerprint(), True)
        if ready.needs_survey:
            surveys = [ready.with_parts(some).survey(block) for block, some in enumerate(parts)]
            ready = source_from_spec(ready.with_stats(merge_summaries(surveys)).spec())
        blocks = [ready.with_parts(some).read(block, 2000, 2) for block, some in enumerate(parts)]
    chunks = [chunk for some, _ in blocks for chunk in some]
    return chunks, merge_summaries([summary for _, summary in blocks])


#: Rows of each block; of all in one, unless a form has others.
BLOCKS = {"parquet": [50, 50, 20], "dask": [40, 40, 40]}


@pytest.mark.parametrize("form", FORMS)
def test_encoded_rows_are_equal_bit_for_bit(tmp_path: Path, form: str) -> None:
    wanted, facts = chunks_of(FORMS["arrow"](tmp_path))
    chunks, there = chunks_of(FORMS[form](tmp_path))
    assert matrix(chunks).tobytes() == matrix(wanted).tobytes()
    assert labels(chunks) == labels(wanted) == COLUMNS["y"]
    assert there.encoder["columns"] == facts.encoder["columns"]
    assert there.moments.keys() == facts.moments.keys()


@pytest.mark.parametrize("form", FORMS)
def test_a_held_out_share_has_no_part_in_the_encoding(tmp_path: Path, form: str) -> None:
    sizes, seed = BLOCKS.get(form, [N]), 5
    held = np.concatenate([held_out_rows(seed, k, n, 0.8) for k, n in enumerate(sizes)])
    trained = em.from_frame(TABLE.filter(pa.array(~held)), label="y", **OPTIONS)
    wanted, facts = chunks_of(trained)
    chunks, there = chunks_of(with_scored_rows(FORMS[form](tmp_path), share=0.8, seed=seed))
    assert there.encoder["columns"] == facts.encoder["columns"]
    assert there.encoder["columns"] != chunks_of(FORMS[form](tmp_path))[1].encoder["columns"]
    some = [chunk for chunk in chunks if is_trained(chunk.id)]
    assert matrix(some).tobytes() == matrix(wanted).tobytes()
    assert there.scored_rows == {"validation": int(held.sum())}


def test_a_class_that_only_held_out_rows_have_is_a_class() -> None:
    words = pa.table({"a": range(N), "y": ["rare", *["no", "yes"] * (N // 2)][:N]})
    seed = next(k for k in range(99) if held_out_rows(k, 0, N, 0.1)[0])
    source = with_scored_rows(em.from_frame(words, label="y"), share=0.1, seed=seed)
    assert chunks_of(source)[1].encoder["classes"] == ["no", "rare", "yes"]


#: Values of a column that is listed as a category, and their texts; one block has whole ones alone.
CODES = [1.0, 2.0, None, 2.0**53 + 2, 1.0, 2.5, float("inf"), -float("inf"), 1e300, 0.1, 1e19, -3.0]
TEXTS = ["-3", "-inf", "0.1", "1", "1e+19", "1e+300", "2", "2.5", "9007199254740994", "inf", ""]


@pytest.mark.parametrize("form", ["pandas", "polars", "parquet", "dask", "category"])
def test_a_category_is_never_rounded_nor_reported_as_damage(tmp_path: Path, form: str) -> None:
    table = pa.table({"code": CODES, "y": range(len(CODES))})
    options: dict[str, Any] = {"label": "y", "categorical": ["code"], "missing": 0.0}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    frame = table.to_pandas()
    source = {
        "pandas": lambda: em.from_frame(frame, **options),
        "category": lambda: em.from_frame(frame.astype({"code": "category"}), **options),
        "polars": lambda: em.from_frame(pl.from_arrow(table).fill_null(float("nan")), **options),
        "parquet": lambda: em.read_parquet(tmp_path / "a.parquet", **options),
        "dask": lambda: em.from_dask(dd.from_pandas(frame, npartitions=3), **options),
    }[form]()
    chunks, facts = chunks_of(source)
    assert facts.encoder["columns"][0]["categories"] == [text or None for text in TEXTS]
    assert (matrix(chunks).sum(axis=1) == 1.0).all()


@pytest.mark.parametrize("values", [[[1], [2]], [{"a": 1}, {"a": 2}], [b"\xff", b"a"]])
def test_values_that_are_no_categories_are_named(values: list[Any]) -> None:
    table = pa.table({"code": values, "y": [0, 1]})
    with pytest.raises(DataError, match="column 'code' of the frame cannot be categories"):
        survey_all(em.from_frame(table, label="y", categorical=["code"]))
    with pytest.raises(DataError, match=r"column 'code' of the frame holds .*, wanted numbers"):
        em.from_frame(table, label="y").read(0, None, 1)


NAME = "a" * 10_000
LONG = pa.table({NAME: ["x", "y"], "y": [0, 1]})


def test_what_is_no_frame_or_does_not_fit_is_refused() -> None:
    for call, error, words in (
        (lambda: em.from_frame(TABLE), ConfigError, "label: name the column of the labels"),
        (lambda: em.from_frame(TABLE, "day"), ConfigError, "name a column by label='day'"),
        (lambda: em.from_frame(TABLE, label="z"), ConfigError, "names column 'z', which the frame"),
        (lambda: em.from_frame(TABLE, [1, 2]), DataError, "120 rows and 2 values of label"),
        (lambda: em.from_frame(TABLE, TABLE["y"], label="y"), ConfigError, "'y' and values"),
        (
            lambda: em.from_frame(TABLE, label="y", fill=1),
            ConfigError,
            "fill is not a setting",
        ),
        (lambda: em.from_frame(np.eye(2), label=0), DataError, "the frame cannot be read as a"),
        (lambda: em.from_frame(TABLE.slice(0, 0), label="y"), DataError, "holds no rows"),
        (
            lambda: survey_all(em.from_frame(LONG, label="y", numeric=[NAME])).read(0, None, 1),
            DataError,
            "row 0, column 'aaa.*': value is 'x', wanted a number",
        ),
        (lambda: em.from_frame(LONG, label="z"), ConfigError, "it has 'aaa"),
    ):
        with pytest.raises(error, match=words) as caught:
            call()
        assert len(str(caught.value)) < 400
    source: Any = em.from_frame(TABLE, label="y", **OPTIONS)
    there: Any = source_from_spec(json.loads(json.dumps(source.spec())))
    assert (there.fingerprint(), there.needs_survey) == (source.fingerprint(), False)
    assert there.blocks() == source.blocks()
    with pytest.raises(ConfigError, match="rows in memory cannot be read again"):
        there.read(0, None, 1)


def test_test_data_that_lack_a_column_are_refused() -> None:
    ready: Any = survey_all(em.from_frame(TABLE, label="y", **OPTIONS))
    short = em.from_frame(TABLE.drop_columns(["rooms"]), label="y").with_encoder(ready.encoder)
    with pytest.raises(DataError, match="the frame lacks column 'rooms'"):
        short.read(0, None, 1)
