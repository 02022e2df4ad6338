"""Folders and patterns of files: the rows of one file, in the order of the names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from sklearn.datasets import dump_svmlight_file

import elasticml as em
from elasticml.data.source import (
    Source,
    infer_format,
    load_all,
    read_block,
    source_from_spec,
    survey_all,
)
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.job_spec import JobSpec
from tests.unit.data.rows import labels, matrix

RNG = np.random.default_rng(5)
#: Rome is in the last parts alone.
FRAME = pd.DataFrame(
    {
        "hour": RNG.normal(size=900),
        "city": [*RNG.choice(["Lima", "Oslo"], 800), *["Rome"] * 100],
        "late": RNG.integers(0, 2, 900),
    }
)
ROWS = np.column_stack(
    [FRAME.late, FRAME.hour, *(FRAME.city == c for c in ("Lima", "Oslo", "Rome"))]
)


def to_svmlight(part: pd.DataFrame, path: Path) -> None:
    # Without the other files, one with columns from 1 on would be taken as numbered from 1.
    columns = np.column_stack([part.hour, *(part.city == c for c in ("Lima", "Oslo", "Rome"))])
    dump_svmlight_file(columns, part.late, str(path), zero_based=True)


#: By suffix: how a part is written, and how a folder is read.
FORMS: dict[str, tuple[Callable[..., Any], Callable[[str], Source]]] = {
    ".csv": (
        lambda part, path: part.to_csv(path, index=False),
        lambda path: em.read_csv(path, label="late"),
    ),
    ".csv.gz": (
        lambda part, path: part.to_csv(path, index=False),
        lambda path: em.read_csv(path, label="late"),
    ),
    ".parquet": (  # whole numbers in some files, floats in others
        lambda part, path: part.astype(
            {"late": "float64" if part.index[0] % 2 else "int64"}
        ).to_parquet(path),
        lambda path: em.read_parquet(path, label="late"),
    ),
    ".svm": (to_svmlight, lambda path: em.read_svmlight(path, n_columns=4)),
}


def write_parts(folder: Path, suffix: str = ".csv", each: int = 75) -> str:
    """Write 900 / each parts, and what is no part."""
    folder.mkdir(exist_ok=True)
    for number, start in enumerate(range(0, 900, each)):
        FORMS[suffix][0](FRAME.iloc[start : start + each], folder / f"part-{number}{suffix}")
    for name in ("_SUCCESS", ".hidden.csv", f"part-999{suffix}", "README.txt"):
        (folder / name).write_text("" if "9" in name or name == "_SUCCESS" else "hour\n1\n")
    return str(folder)


def table(source: Source) -> np.ndarray:
    chunks = load_all(source)
    return np.column_stack([labels(chunks), matrix(chunks)])


@pytest.mark.parametrize(
    ("suffix", "each"),
    [*((suffix, 75) for suffix in FORMS), (".svm", 3), (".csv", 3), (".parquet", 3)],
)
def test_a_folder_has_the_rows_of_one_file_in_the_order_of_the_numbers(
    tmp_path, suffix, each
) -> None:
    folder, read = write_parts(tmp_path / "parts", suffix, each), FORMS[suffix][1]
    np.testing.assert_allclose(table(read(folder)), ROWS, rtol=1e-15)
    np.testing.assert_allclose(table(read(f"{folder}/part-*{suffix}")), ROWS, rtol=1e-15)
    ready: Any = survey_all(read(folder))
    parts = [ready.read(block.index, None, 1) for block in ready.blocks()]
    # Many small files are read in few blocks.
    assert len(parts) < 200
    assert sum(len(chunks) for chunks, _ in parts) < 200
    (tmp_path / "parts" / f"part-7{suffix}").unlink()
    with pytest.raises((ConfigError, DataError), match=r"part-7\."):
        [ready.read(block.index, None, 1) for block in ready.blocks()]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffhour,city,late\n1,Oslo,0\n2,Lima,1",
        "late,city,hour\r\n0,Oslo,1\r\n\r\n1,Lima,2\r\n",
        'hour,city,late\n1,"Oslo",0\n2,"Lima",1\n',
        "hour,city,late\n 1 ,Oslo,0\n2,Lima,1\n",
    ],
)
def test_an_odd_one_of_many_small_files_is_read_as_it_is_alone(tmp_path, text) -> None:
    folder = write_parts(tmp_path / "parts", each=3)
    (tmp_path / "parts" / "part-150.csv").write_text(text, newline="")
    rows = np.delete(ROWS, 452, axis=0)
    rows[450:452] = [[0, 1, 0, 1, 0], [1, 2, 1, 0, 0]]
    np.testing.assert_allclose(table(em.read_csv(folder, label="late")), rows, rtol=1e-15)


def test_small_files_without_a_header_may_begin_with_a_byte_order_mark(tmp_path) -> None:
    for number in range(300):
        start = "\ufeff" if number % 2 else ""
        (tmp_path / f"{number}.csv").write_text(f"{start}{'ab'[number % 3 > 0]},{number % 2}\n")
    rows = table(em.read_csv(str(tmp_path), label="1", header=False))
    assert rows.sum(axis=0).tolist() == [150, 100, 200]


def test_an_error_in_one_of_many_small_files_names_its_line(tmp_path) -> None:
    part, folder = tmp_path / "parts" / "part-150.csv", write_parts(tmp_path / "parts", each=1)
    part.write_text("hour,city,late\n1,Oslo,0\n2,Lima,1,4\n")
    with pytest.raises(DataError, match=r"part-150\.csv, line 3: 4 fields, wanted 3"):
        load_all(em.read_csv(folder, label="late"))
    # Two damaged files that would be a sound one.
    part.write_text('hour,city,late\n1,Oslo,0\n2,"Li')
    part.with_stem("part-151").write_text('hour,city,late\nma",1\n')
    with pytest.raises(DataError, match=r"part-150\.csv"):
        load_all(em.read_csv(folder, label="late"))
    # A label is missing, which is found when the parsed table is encoded.
    part.with_stem("part-151").unlink()
    part.write_text("hour,city,late\n1,Oslo,0\n2,Lima,\n")
    with pytest.raises(DataError, match=r"line 3 of part-150\.csv"):
        load_all(em.read_csv(folder, label="late"))


def test_an_odd_one_of_many_small_parquet_files_is_read_as_it_is_alone(tmp_path) -> None:
    part, rows = tmp_path / "parts" / "part-150.parquet", FRAME.iloc[450:453]
    folder = write_parts(tmp_path / "parts", ".parquet", each=3)
    rows.to_parquet(part, row_group_size=2)
    np.testing.assert_allclose(table(em.read_parquet(folder, label="late")), ROWS, rtol=1e-15)
    for wrong, message in (
        (rows.drop(columns="hour"), r"part-150\.parquet lacks column 'hour'"),
        (rows.assign(late=[0, None, 1]), r"row 1 of row group 0 of part-150\.parquet"),
    ):
        wrong.to_parquet(part)
        with pytest.raises(DataError, match=message):
            load_all(em.read_parquet(folder, label="late"))


def test_a_change_of_any_file_changes_the_data_and_is_an_error_once_they_are_listed(
    tmp_path,
) -> None:
    source: Any = em.read_csv(write_parts(tmp_path / "parts"), label="late")
    ready: Any = survey_all(source_from_spec(source.spec()))
    part, before = tmp_path / "parts" / "part-7.csv", source.fingerprint()
    part.write_text(part.read_text() + "3,Oslo,1\n")
    assert source.fingerprint() != before
    assert len(table(source)) == 901
    assert ready.read(6, None, 1)[1].rows == 75
    with pytest.raises(DataError, match=r"part-7\.csv has changed since it was listed; start a"):
        ready.read(7, None, 1)
    # What a job lists travels with its record, and another start lists again.
    job, records = em.Job(em.CoCoA(), source), []
    for name in ("part-0.csv", "part-11.csv"):
        records.append(job.record("j", 2, [2**30, 2**30])["data"])
        (tmp_path / "parts" / name).unlink()
    assert [len(source_from_spec(data).blocks()) for data in records] == [12, 11]
    with pytest.raises(DataError, match="has 10 blocks, and block 10 is to be read"):
        source.survey(10)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "does not exist"),
        ("empty", "the folder .*empty has no file with data"),
        ("parts/*.svm", r"the pattern .*\.svm matches no file with data"),
        ("deep", "but folders, such as year=2025: name one of them"),
        ("mixed", "has folders in it, such as more, wanted files of data alone"),
    ],
)
def test_a_path_without_files_says_what_is_there(tmp_path, path, message) -> None:
    for folder in ("parts", "mixed"):
        write_parts(tmp_path / folder, each=450)
    for folder in ("empty", "deep/year=2025", "mixed/more"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match=message):
        em.read_csv(str(tmp_path / path), label="late").blocks()


def test_a_job_file_may_leave_out_a_format_that_the_files_of_a_folder_imply(tmp_path) -> None:
    folder = write_parts(tmp_path / "parts", each=450)
    file = tmp_path / "job.yaml"
    text = "data: {{path: {}, label: late}}\nalgorithm: {{name: cocoa}}\n"
    file.write_text(text.format("parts"))
    assert JobSpec.from_file(file).data.spec()["format"] == infer_format(folder) == "csv"
    file.write_text(text.format("parts/*.dat"))
    with pytest.raises(ConfigError, match=r"left out, and the name .* does not imply one"):
        JobSpec.from_file(file)
    dump_svmlight_file(np.eye(2), np.ones(2), str(tmp_path / "parts" / "x.svm"))
    assert infer_format(folder) is None


@pytest.mark.parametrize(
    "key", ["ETag", "Content-MD5", "Last-Modified", "updated", "modify", "none"]
)
def test_a_changed_remote_file_is_read_again_and_not_remembered_without_a_version(
    tmp_path, monkeypatch, key
) -> None:
    info, memory = MemoryFileSystem.info, fsspec.filesystem("memory")
    source = em.read_csv("memory://versions/a.csv", "y", numeric=["y", "a", "b"])
    for version, header in enumerate(("y,a,b", "a,y,b")):
        more = {} if key == "none" else {key: f"version {version}"}
        monkeypatch.setattr(
            MemoryFileSystem,
            "info",
            lambda self, path, more=more, **given: {**info(self, path, **given), **more},
        )
        memory.pipe_file("/versions/a.csv", f"{header}\n1,3,5\n".encode())
        chunks, _ = read_block(source, 0, 2000, 1, tmp_path)
        assert chunks[0].values.tolist() == [[3.0, 5.0] if version == 0 else [1.0, 5.0]]
    assert len(list(tmp_path.glob("*.chunks"))) == (0 if key == "none" else 2)
