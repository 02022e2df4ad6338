"""Folders and patterns of files: the rows of one file, in the order of the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe
import fsspec
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file

import elasticml as em
from elasticml.data.source import (
    Source,
    infer_format,
    load_all,
    source_from_spec,
    survey_all,
)
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.job_spec import JobSpec
from tests.unit.data.rows import labels, matrix


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    city = rng.choice(["Lima", "Oslo"], 120)
    city[100:] = "Rome"  # only in the last parts
    late = rng.integers(0, 2, 120)
    return pd.DataFrame({"hour": np.arange(120.0), "city": city, "late": late})


def write_parts(frame: pd.DataFrame, folder: Path, suffix: str = ".csv") -> str:
    folder.mkdir()
    for number, start in enumerate(range(0, len(frame), 10)):
        part = frame.iloc[start : start + 10]
        part.to_csv(folder / f"part-{number}{suffix}", index=False)
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden.csv").write_text("hour\n1\n")
    (folder / "part-99.csv").write_text("")
    (folder / "README.txt").write_text("about these files")
    return str(folder)


def table(source: Source) -> np.ndarray:
    chunks = load_all(source)
    return np.column_stack([labels(chunks), matrix(chunks)])


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.xz"])
def test_a_folder_has_the_rows_of_one_file_in_the_order_of_the_numbers(
    tmp_path: Path, frame: pd.DataFrame, suffix: str
) -> None:
    frame.to_csv(tmp_path / "all.csv", index=False)
    whole = table(em.read_csv(str(tmp_path / "all.csv"), label="late"))
    folder = write_parts(frame, tmp_path / "parts", suffix)
    np.testing.assert_array_equal(table(em.read_csv(folder, label="late")), whole)
    np.testing.assert_array_equal(
        table(em.read_csv(f"{folder}/part-*{suffix}", label="late")), whole
    )
    assert whole.shape == (120, 1 + 1 + 3)


def test_a_folder_that_dask_wrote_has_the_rows_of_the_frame(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    folder = str(tmp_path / "written")
    dask.dataframe.from_pandas(frame, npartitions=12).to_parquet(folder)
    read = table(em.read_parquet(folder, label="late"))
    np.testing.assert_array_equal(read[:, 1], frame.hour)
    np.testing.assert_array_equal(read[:, -1], frame.city == "Rome")
    assert read.shape == (120, 5)  # without the index that Dask stores


def test_files_in_memory_of_another_file_system_are_listed(frame: pd.DataFrame) -> None:
    memory = fsspec.filesystem("memory")
    for start in (0, 60):
        memory.pipe_file(
            f"/em-parts/p{start}.csv", frame.iloc[start : start + 60].to_csv(index=False).encode()
        )
    for path in ("memory://em-parts", "memory://em-parts/p*.csv"):
        source = em.read_csv(path, label="late")
        np.testing.assert_array_equal(table(source)[:, 1], frame.hour)
    # The name of the folder implies no format; the source knows it.
    source = em.read_csv("memory://em-parts", label="late")
    model = em.LogisticRegression().fit(source)
    assert model.predict(source).tolist() == model.predict(frame.drop(columns="late")).tolist()


def test_the_first_file_says_for_all_how_columns_are_numbered(tmp_path: Path) -> None:
    X = np.eye(4)
    dump_svmlight_file(X[:2], np.ones(2), str(tmp_path / "a.svm"), zero_based=True)
    # Without the other file this one would be taken as numbered from 1.
    dump_svmlight_file(X[2:], np.ones(2), str(tmp_path / "b.svm"), zero_based=True)
    read = table(em.read_svmlight(str(tmp_path), n_columns=4))
    np.testing.assert_array_equal(read[:, 1:], X)


def test_a_change_of_any_file_is_a_change_of_the_data(tmp_path: Path, frame: pd.DataFrame) -> None:
    source = em.read_csv(write_parts(frame, tmp_path / "parts"), label="late")
    before = source.fingerprint()
    part = tmp_path / "parts" / "part-7.csv"
    part.write_text(part.read_text() + "3,Oslo,1\n")
    assert source.fingerprint() != before
    assert len(table(source)) == 121


def test_what_a_job_lists_travels_with_its_record_and_another_start_lists_again(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    folder = write_parts(frame, tmp_path / "parts")
    job = em.Job(em.CoCoA(), em.read_csv(folder, label="late"))
    records = []
    for name in ("part-0.csv", "part-1.csv"):
        records.append(job.record("j", 2, [2**30, 2**30])["data"])
        (tmp_path / "parts" / name).unlink()
    assert [len(source_from_spec(data).blocks()) for data in records] == [12, 11]


def test_a_file_that_changes_after_a_job_has_listed_it_is_an_error(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    source = em.read_csv(write_parts(frame, tmp_path / "parts"), label="late")
    ready = survey_all(source_from_spec(source.spec()))
    part = tmp_path / "parts" / "part-7.csv"
    part.write_text(part.read_text() + "3,Oslo,1\n")
    assert ready.read(6, None, 1)[1].rows == 10
    with pytest.raises(DataError, match=r"part-7\.csv has changed since it was listed; start a"):
        ready.read(7, None, 1)
    part.unlink()
    with pytest.raises((ConfigError, DataError), match=r"part-7\.csv"):
        ready.read(7, None, 1)


def test_an_error_names_the_file_in_which_it_is(tmp_path: Path, frame: pd.DataFrame) -> None:
    folder = tmp_path / "parts"
    source = em.read_csv(write_parts(frame, folder), label="late", numeric=["hour"])
    (folder / "part-3.csv").write_text("hour,city,late\n1,Oslo,0\nsoon,Oslo,1\n")
    with pytest.raises(DataError, match=r"part-3\.csv, line 3, column 'hour': value is 'soon'"):
        table(source)
    (folder / "part-3.csv").write_text("hour,late\n1,0\n")
    with pytest.raises(DataError, match=r"part-3\.csv lacks column 'city'"):
        table(source)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".svm"])
def test_many_small_files_are_read_in_few_blocks_and_an_error_names_one_of_them(
    tmp_path: Path, suffix: str
) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"late": rng.integers(0, 2, 900), "hour": rng.normal(size=900)})
    if suffix != ".svm":
        frame["city"] = rng.choice(["Lima", "Oslo", "Rome"], 900)
    for number in range(300):
        part, path = frame.iloc[3 * number : 3 * number + 3], tmp_path / f"part-{number}{suffix}"
        match suffix:
            case ".svm":
                dump_svmlight_file(part[["hour"]], part.late, str(path), zero_based=False)
            case ".parquet":  # whole numbers in some files, floats in others
                part.astype({"late": "float64" if number % 2 else "int64"}).to_parquet(path)
            case _:
                part.to_csv(path, index=False)
    folder = str(tmp_path)
    if suffix == ".svm":
        source: Any = em.read_svmlight(folder)
    else:
        read = em.read_parquet if suffix == ".parquet" else em.read_csv
        source = read(folder, label="late")
    wanted = [frame.late, frame.hour]
    if suffix != ".svm":
        wanted += [frame.city == city for city in ("Lima", "Oslo", "Rome")]
    ready = survey_all(source)
    np.testing.assert_allclose(table(ready), np.column_stack(wanted), rtol=1e-15)
    parts = [ready.read(block.index, None, 1) for block in ready.blocks()]
    assert len(parts) < 200
    assert sum(len(chunks) for chunks, _ in parts) < 200
    if suffix == ".csv":
        (tmp_path / "part-123.csv").write_text("late,hour,city\n1,2,Lima\n0,oops,Oslo\n")
        plain = em.read_csv(folder, label="late", numeric=["hour"])
        with pytest.raises(DataError, match=r"line 3 of part-123.csv|part-123.csv, line 3"):
            survey_all(plain)
    (tmp_path / f"part-7{suffix}").unlink()
    with pytest.raises((ConfigError, DataError), match=r"part-7\."):
        [ready.read(block.index, None, 1) for block in ready.blocks()]


def test_files_that_vanish_while_a_job_reads_are_an_error(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    source = em.read_csv(write_parts(frame, tmp_path / "parts"), label="late")
    (tmp_path / "parts" / "part-11.csv").unlink()
    with pytest.raises(DataError, match="has 11 blocks, and block 11 is to be read"):
        source.survey(11)


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
def test_a_path_without_files_says_what_is_there(
    tmp_path: Path, frame: pd.DataFrame, path: str, message: str
) -> None:
    write_parts(frame, tmp_path / "parts")
    write_parts(frame, tmp_path / "mixed")
    for folder in ("empty", "deep/year=2025", "mixed/more"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match=message):
        em.read_csv(str(tmp_path / path), label="late").blocks()


def test_a_local_folder_implies_the_format_of_its_files(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    folder = write_parts(frame, tmp_path / "parts")
    assert infer_format(folder) == "csv"
    dump_svmlight_file(np.eye(2), np.ones(2), str(tmp_path / "parts" / "x.svm"))
    assert infer_format(folder) is None


def test_a_job_file_may_leave_out_a_format_that_the_name_implies(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    write_parts(frame, tmp_path / "parts")
    file = tmp_path / "job.yaml"
    text = "data: {{path: {}, label: late}}\nalgorithm: {{name: cocoa}}\n"
    file.write_text(text.format("parts"))
    assert JobSpec.from_file(file).data.spec()["format"] == "csv"
    file.write_text(text.format("parts/*.dat"))
    with pytest.raises(ConfigError, match=r"left out, and the name .* does not imply one"):
        JobSpec.from_file(file)
