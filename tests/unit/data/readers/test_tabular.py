"""CSV and Parquet tables become chunks: one-hot categories, and wrong cells named."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers import files, tabular
from elasticml.data.readers.tabular import TableSource, read_csv, read_parquet
from elasticml.data.source import load_all, source_from_spec, survey_all
from elasticml.errors import ConfigError, DataError
from tests.unit.data.rows import matrix

MIXED = "a,colour,b,y,w\n1,red,0,1,1\n2.5,blue,4,-1,2\n-3e1,red,5,1,0.5\n0,green,0,-1,1\n"
#: a, blue, green, red, b
MIXED_ROWS = [[1, 0, 0, 1, 0], [2.5, 1, 0, 0, 4], [-30, 0, 0, 1, 5], [0, 0, 1, 0, 0]]


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def mixed(path: str, **options: Any) -> TableSource:
    return read_csv(path, "y", weight="w", categorical=["colour"], **options)


def test_categorical_columns_must_be_surveyed_first(tmp_path: Path) -> None:
    data = mixed(write(tmp_path / "a.csv", MIXED))
    assert data.needs_survey
    with pytest.raises(ConfigError, match="survey all blocks"):
        data.read(0, None, 1)
    ready = survey_all(data)
    assert not ready.needs_survey
    again = source_from_spec(json.loads(json.dumps(ready.spec())))
    assert matrix(load_all(again)).tolist() == MIXED_ROWS
    assert again.fingerprint() == ready.fingerprint()


def test_text_labels_are_numbered_in_sorted_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,no\n2,yes\n3,no\n")
    data = survey_all(read_csv(path, -1, header=False, categorical=[-1]))
    (chunk,) = load_all(data)
    assert chunk.labels.tolist() == [0, 1, 0]
    assert chunk.values.tolist() == [[1], [2], [3]]
    test = read_csv(write(tmp_path / "b.csv", "1,maybe\n"), -1, header=False, categorical=[-1])
    with pytest.raises(DataError, match=r"line 1, column '1': value is 'maybe', wanted a label"):
        test.with_stats(merge_summaries([data.survey(0)])).read(0, None, 1)


def test_delimiters_quotes_returns_and_blank_lines_are_understood(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", '"x y"\ty\r\n"1.5"\t1\r\n\r\n2\t0\r\n')
    (chunk,) = load_all(read_csv(path, "y", delimiter="\t"))
    assert chunk.values.tolist() == [[1.5], [2]]
    path = write(tmp_path / "a.csv", "x;y\n1;a\n2;b\n")
    assert survey_all(read_csv(path, "y")).fitted_encoder().names() == ["x"]


WRONG_SETTINGS = [
    ({"label": "colur"}, r"data\.label names column 'colur'.*did you mean 'colour'"),
    ({"label": "y", "ignore": [9]}, r"data\.ignore names column 9"),
    ({"label": "y", "delimiter": "::"}, "wanted one character"),
    ({}, r"data\.label is missing"),
    ({"label": "z"}, r"it has 'a', .*, separated by ',' \(as in its first"),
    (
        {"label": "y", "numeric": ["a"], "categorical": ["a"]},
        r"numeric and data\.categorical both name column 'a'",
    ),
    ({"label": "y", "missing_columns": "fill"}, "missing_columns: got fill, wanted missing: mean"),
    ({"label": "y", "missing": "most"}, r"missing: got 'most'"),
]


@pytest.mark.parametrize(("options", "words"), WRONG_SETTINGS)
def test_wrong_column_names_and_settings_are_config_errors(tmp_path, options, words) -> None:
    path = write(tmp_path / "a.csv", MIXED)
    with pytest.raises(ConfigError, match=words):
        load_all(source_from_spec({"format": "csv", "path": path, **options}))


@pytest.mark.parametrize("batch_rows", [16, 37])
def test_a_large_row_group_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    X = np.arange(750.0).reshape(250, 3)
    columns = {"y": np.arange(250.0), **{f"x{k}": X[:, k] for k in range(3)}}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=120)
    monkeypatch.setattr(tabular, "BATCH_ROWS", batch_rows)
    monkeypatch.setattr(tabular, "PIECE_BYTES", 30 * 4 * 8)
    data = read_parquet(str(tmp_path / "a.parquet"), "y")
    pieces = [32, 32, 32, 24] if batch_rows == 16 else [37, 37, 37, 9]
    assert [block.rows for block in data.blocks()] == [*pieces, *pieces, 10]
    np.testing.assert_array_equal(matrix(load_all(data)), X)
    columns["x1"] = np.where(np.arange(250) == 119 + 71, np.nan, X[:, 1])
    pq.write_table(pa.table(columns), tmp_path / "b.parquet", row_group_size=120)
    with pytest.raises(DataError, match="the first in row 70 of row group 1"):
        load_all(read_parquet(str(tmp_path / "b.parquet"), "y"))


def write_parquet(path: Path, n_rows: int, version: int = 10**18) -> None:
    """Replace a file by one of 20,000 bytes with this modification time; not by a new inode."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": np.arange(n_rows) % 9, "y": np.ones(n_rows)}), buffer)
    written = buffer.getvalue()
    footer = 8 + int.from_bytes(written[-8:-4], "little")
    path.write_bytes(written[:-footer] + bytes(20_000 - len(written)) + written[-footer:])
    os.utime(path, ns=(version, version))


@pytest.mark.parametrize("settled_ns", [0, tabular._SETTLED_NS])
def test_another_parquet_file_of_the_same_size_and_time_is_listed_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled_ns: int
) -> None:
    monkeypatch.setattr(tabular, "_SETTLED_NS", settled_ns)
    opened, footers = list[str](), pq.ParquetFile
    path = tmp_path / "a.parquet"

    def open_footer(source: Any, **options: Any) -> Any:
        opened.append(str(path))
        return footers(source, **options)

    write_parquet(path, 800)
    data = read_parquet(str(path), "y")
    monkeypatch.setattr(pq, "ParquetFile", open_footer)
    assert [block.rows for _ in range(3) for block in data.blocks()] == [800] * 3
    # One that has changed just now may change again without another time of change.
    assert len(opened) == (1 if settled_ns == 0 else 3)
    before = path.stat()
    write_parquet(path, 1000)
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        write_parquet(path, 1000)
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert [block.rows for block in data.blocks()] == [1000]
    assert len(matrix(load_all(data))) == 1000


def test_a_parquet_file_replaced_while_it_is_listed_is_not_remembered_as_the_listed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "_SETTLED_NS", 0)
    path = tmp_path / "a.parquet"
    write_parquet(path, 800)
    data = read_parquet(str(path), "y")
    listed = data.list_files()
    write_parquet(path, 1000, version=2 * 10**18)
    assert [part.rows for part in data.list_blocks(listed)] == [1000]
    write_parquet(path, 800)
    assert [part.rows for part in data.list_blocks(listed)] == [800]


def test_remembered_pieces_of_parquet_files_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "_SETTLED_NS", 0)
    monkeypatch.setattr(tabular, "_PIECES_MAX", 5)
    footers = tabular._Footers()
    for name, n_groups in (("a", 2), ("b", 2), ("c", 3), ("d", 6)):
        table = pa.table({"y": np.ones(n_groups)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
        footers.pieces(files.file_info(str(tmp_path / f"{name}.parquet")))
    assert [Path(path).stem for path in footers._known] == ["b", "c"]


@pytest.mark.parametrize("n_rows", [700, 1000])
def test_a_parquet_file_with_other_rows_than_were_listed_has_changed(
    tmp_path: Path, n_rows: int
) -> None:
    for name in ("a", "b"):
        write_parquet(tmp_path / f"{name}.parquet", 800)
    source: Any = survey_all(read_parquet(str(tmp_path), "y").listed_once())
    parts = [source.files.parts(block.index)[0] for block in source.blocks()]
    write_parquet(tmp_path / "b.parquet", n_rows)
    for block in (parts[1:], parts):
        with pytest.raises(DataError, match=r"b\.parquet has changed since it was listed"):
            list(source.read_parts(0, block))


def test_small_parquet_files_that_are_large_in_memory_are_not_read_at_once(tmp_path: Path) -> None:
    columns = {"text": ["x" * 1000] * 1000, "y": np.ones(1000)}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    for number in range(1, 60):
        shutil.copy(tmp_path / "0.parquet", tmp_path / f"{number}.parquet")
    source: Any = survey_all(read_parquet(str(tmp_path), "y", categorical=["text"]))
    parts = [source.files.parts(block.index)[0] for block in source.blocks()]
    assert len(parts) == 60
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        n_rows = sum(len(rows.labels) for rows in source.read_parts(0, parts))
    finally:
        pa.set_memory_pool(usual)
    assert n_rows == 60_000
    assert 8 << 20 < counted.max_memory() < 40 << 20


def test_parquet_has_dictionaries_and_the_row_index_that_pandas_stores_is_no_feature(
    tmp_path: Path,
) -> None:
    texts = pa.array(["x", "y", "x"]).dictionary_encode()
    columns = {"c": texts, "k": [7, 5, 7], "y": [1.0, 0.0, 1.0], "__index_level_0__": [5, 7, 9]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = survey_all(read_parquet(str(tmp_path / "a.parquet"), "y", categorical=["c", "k"]))
    assert matrix(load_all(data)).tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]]


FLIGHTS = """carrier,when,delay,late,far
AA,2013-01-01,1,no,true
UA,2013-01-02,,yes,false
,2013-01-05,4,yes,true
AA,2013-01-04,7,,true
UA,,7,no,false
"""


def flights(path: str, **options: Any) -> TableSource:
    return read_csv(path, "late", missing="mean", **options)


def test_types_are_inferred_and_missing_values_are_imputed(tmp_path: Path) -> None:
    data = flights(write(tmp_path / "a.csv", FLIGHTS), dates=["days", "weekday"])
    assert data.needs_survey
    ready = survey_all(data)
    chunks, summary = ready.read(0, None, 1)
    assert ready.encoder is not None
    assert ready.encoder.names() == [
        *("carrier=AA", "carrier=UA", "carrier="),
        *("when.days", "when.weekday", "delay", "far"),
    ]
    day = 15706.0  # 2013-01-01, a Tuesday
    mean_day = day + (0 + 1 + 4) / 3  # of the rows that have a label
    assert matrix(chunks).tolist() == [
        [1, 0, 0, day, 1, 1, 1],
        [0, 1, 0, day + 1, 2, 4, 0],
        [0, 0, 1, day + 4, 5, 4, 1],
        [0, 1, 0, mean_day, 2, 7, 0],
    ]
    assert chunks[0].labels.tolist() == [0, 1, 1, 0]
    assert ready.encoder.classes == ("no", "yes")
    assert "1 rows without a label in column 'late' were skipped" in summary.notes
    assert "1 missing values of column 'delay' became 4" in summary.notes


@pytest.mark.parametrize(
    "dates",
    [
        ["2013-01-01", "2013-01-02", "2013-01-13"],
        ["2013/1/1", "2013/1/2", "2013/01/13"],
        ["1.1.2013", "02.01.2013", "13.1.2013"],
        ["1/1/2013", "1/2/2013", "01/13/2013"],
        ["2013/1/1 0:00", "2013/1/2 00:00", "2013/01/13 00:00:00"],
    ],
)
def test_dates_are_read_as_people_write_them(tmp_path: Path, dates: list[str]) -> None:
    frame = pd.DataFrame({"when": [*dates, None], "late": [0, 1, 0, 1]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for read in (read_csv, read_parquet):
        data = survey_all(read(str(tmp_path / f"a.{read.__name__[5:]}"), "late", missing="mean"))
        assert data.encoder is not None
        assert data.encoder.names() == ["when.days"]
        days = matrix(data.read(0, None, 1)[0])
        assert days[:, 0].tolist() == [15706, 15707, 15718, pytest.approx(47131 / 3)]


@pytest.mark.parametrize("dates", [["1/2/2013", "3/4/2013"], ["13/1/2013", "1/2/2013"], ["5", "x"]])
def test_text_that_is_no_date_for_sure_is_a_category(tmp_path: Path, dates: list[str]) -> None:
    path = write(tmp_path / "a.csv", "when,late\n" + "".join(f"{d},1\n" for d in dates))
    encoder = survey_all(read_csv(path, "late")).encoder
    assert encoder is not None
    assert encoder.names() == [f"when={d}" for d in sorted(dates)]


def test_only_columns_with_gaps_are_marked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b,y\n1,2,0\n3,,1\n4,6,1\n")
    data = survey_all(read_csv(path, "y", missing="mean", missing_indicator=True))
    assert data.encoder is not None
    assert data.encoder.names() == ["a", "b", "b is missing"]
    # A constant needs no statistics, which would tell the columns with gaps.
    data = survey_all(read_csv(path, "y", missing=0, missing_indicator=True))
    fitted = data.with_stats(merge_summaries([data.read(0, None, 1)[1]]))
    names = ["a", "a is missing", "b", "b is missing"]
    assert fitted.fitted_encoder().names() == names


@pytest.mark.parametrize("rare", ["other", "hash"])
def test_columns_of_many_values_share_columns_and_say_so(tmp_path: Path, rare: Any) -> None:
    lines = "".join(f"v{i},{i % 2}\n" for i in range(20)) + "v3,1\nv3,1\nv5,0\n"
    data = survey_all(
        read_csv(write(tmp_path / "a.csv", "c,y\n" + lines), "y", max_categories=3, rare=rare)
    )
    chunks, summary = data.read(0, None, 1)
    rows = matrix(chunks)
    assert rows.shape == (23, 3)
    assert (rows.sum(axis=1) == 1).all()
    if rare == "other":
        assert rows.sum(axis=0).tolist() == [3, 2, 18]
    assert "column 'c' has 20 values" in " ".join(summary.notes)


@pytest.mark.parametrize("n_bytes", [2**23, 40])
def test_a_word_in_any_row_makes_a_column_a_category_unless_it_must_be_numeric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", n_bytes)
    rows = "".join(f"{i % 3},{i % 2}\n" for i in range(1500))
    path = write(tmp_path / "a.csv", f"x,y\n{rows}oh,1\n2,0\n")
    ready = survey_all(read_csv(path, "y"))
    chunks, summary = ready.read(0, None, 1)
    assert summary.notes == (
        f"text became categories: 'x' ('oh' in {path}, line 1502)",
        "most values are numbers in 'x': if the text there means a missing value, name it in "
        "data.na_values; data.numeric makes it an error",
    )
    assert ready.fitted_encoder().names() == ["x=0", "x=1", "x=2", "x=oh"]
    assert matrix(chunks)[:3].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    wrong = r"a\.csv, line 1502, column 'x': value is 'oh', wanted a number; correct it, add it to"
    with pytest.raises(DataError, match=wrong):
        load_all(read_csv(path, "y", numeric=["x"]))
    ready = survey_all(read_csv(path, "y", na_values=["oh"], missing="mean"))
    assert ready.fitted_encoder().names() == ["x"]
    # Without a survey the parser finds the cell.
    listed = read_csv(path, "y", numeric=["x", "y"])
    assert not listed.needs_survey
    with pytest.raises(DataError, match=wrong):
        load_all(listed)


def test_blank_and_padded_cells_are_missing_and_labels_with_a_word_are_classes(
    tmp_path: Path,
) -> None:
    text = 'a,b,y\n1, u,0\n  ,v, 1\n" NA ", ? ,None\n4,"  ",x\n'
    data = survey_all(read_csv(write(tmp_path / "a.csv", text), "y", missing=0))
    assert data.fitted_encoder().names() == ["a", "b= u", "b=v", "b="]
    assert data.fitted_encoder().classes == (" 1", "0", "x")
    assert matrix(load_all(data)).tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [4, 0, 0, 1]]
