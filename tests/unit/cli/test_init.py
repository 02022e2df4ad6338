"""``elasticml init``: a job file that runs, from the head of a data file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from click.testing import CliRunner

from elasticml.cli.main import elasticml
from elasticml.errors import ConfigError
from elasticml.jobs.job_spec import JobSpec


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(
        {
            "tail": [f"N{i}" for i in range(60)],
            "carrier": rng.choice(["AA", "UA"], 60),
            "distance": 1000.0 * rng.random(60),
            "gate": rng.random(60),
            "day": pandas.date_range("2013-01-01", periods=60),
        }
    )
    table.loc[::9, "gate"] = np.nan
    table["Class"] = np.where(table["distance"] > 500.0, "late", "on time")
    table["delay"] = table["distance"] / 7.0
    table.to_csv("flights.csv", index=False, sep=";")
    table.to_parquet("flights.parquet", index=False)
    Path("parts").mkdir()
    table.to_csv("parts/0.csv", index=False, sep=";")
    table[["gate", "delay", "day"]].to_csv("days.csv", index=False)
    (tmp_path / "rows.svm").write_text("# comment\n1 1:0.5\n-1 2:1\n")
    return tmp_path


def written(*arguments):
    done = CliRunner().invoke(elasticml, ["init", *arguments, "--out", "job.yaml"])
    assert done.exit_code == 0, done.exception
    return JobSpec.from_file("job.yaml"), done.output, Path("job.yaml").read_text()


@pytest.mark.parametrize("name", ["flights.csv", "flights.parquet", "parts"])
def test_a_table_becomes_a_job_that_runs(folder, name):
    file, output, text = written(name)
    spec = file.data.spec()
    assert (spec["label"], spec["missing"], spec["ignore"]) == ("Class", "median", ["tail"])
    assert (file.algorithm.loss, file.algorithm.scale) == ("logistic", "auto")
    assert "label       Class (by its name): 2 classes: " in output
    assert "missing in gate (7)" in text
    assert "text, which becomes categories: carrier (2 different)" in text
    run = CliRunner().invoke(
        elasticml, ["simulate", "job.yaml", "--out", "run", "--set", "stop.rounds=20"]
    )
    assert "accuracy 1.0" in run.output or "accuracy 0.9" in run.output, run.output


def test_a_number_to_predict_is_a_regression(folder):
    file, output, _ = written("flights.csv", "--label", "delay")
    assert (file.data.spec()["label"], file.algorithm.loss) == ("delay", "squared")
    assert "label       delay (as given): numbers from " in output
    assert "another column" not in output


def test_a_label_that_is_only_the_last_column_is_said_to_be_a_guess(folder):
    pandas.read_csv("days.csv")[["gate", "delay"]].to_csv("last.csv", index=False)
    _, output, _ = written("last.csv")
    assert "label       delay (the last column): numbers from " in output
    assert "another column: elasticml init DATA --label COLUMN" in output


def test_numbers_of_rows_are_ignored_and_gaps_are_no_category(folder):
    table = pandas.read_csv("flights.csv", sep=";")
    table.loc[::5, "carrier"] = None
    table.drop(columns="tail").to_csv("indexed.csv")  # the index is a column without a name
    file, _, text = written("indexed.csv")
    assert file.data.spec()["ignore"] == [""]
    assert "numbers: distance, gate, delay" in text
    assert "carrier (2 different)" in text


def test_marks_among_numbers_mean_missing_values_and_a_word_in_a_late_row_a_category(folder):
    rows = [
        f"{i % 7},{'?' if i % 9 == 0 else '-' if i % 5 == 0 else i},{i % 2}" for i in range(1500)
    ]
    Path("marks.csv").write_text("\n".join(["x,marked,late", *rows, "unknown,3,1"]))
    file, _, text = written("marks.csv")
    assert file.data.spec()["na_values"] == ["-"]
    assert "numbers: x, marked" in text
    run = CliRunner().invoke(
        elasticml, ["simulate", "job.yaml", "--out", "run", "--set", "stop.rounds=3"]
    )
    assert run.exit_code == 0, run.exception
    notes = json.loads(Path("run/summary.json").read_text())["notes"]
    assert f"text became categories: 'x' ('unknown' in {folder}/marks.csv, line 1502)" in notes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flights.csv", "--label", "delai"], "has no column 'delai'; did you mean 'delay'?"),
        (["days.csv"], "and the last one, 'day', holds dates; name the column of the labels, one"),
        (["points.npy"], "got 'points.npy', wanted a known file name, or --format"),
        (["nowhere.csv"], "nowhere.csv does not exist"),
    ],
)
def test_what_cannot_be_described_is_refused_and_nothing_written(folder, arguments, message):
    done = CliRunner().invoke(elasticml, ["init", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert message in done.exception.message
    assert not (folder / "job.yaml").exists()
    (folder / "job.yaml").write_text("")
    done = CliRunner().invoke(elasticml, ["init", "rows.svm"])
    assert "--out: job.yaml exists already" in done.exception.message


def test_a_format_of_a_module_in_the_working_folder_is_found(tmp_path):
    shutil.copy(Path(__file__).parents[3] / "examples" / "libffm.py", tmp_path / "mine.py")
    (tmp_path / "rows.ffm").write_text("1 0:1:0.5 1:4:1\n0 0:2:1\n" * 5)
    command = Path(sys.executable).with_name("elasticml")  # has no import path of its own
    words = [command, "init", "rows.ffm", "--format", "mine:LibFFM"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "format: mine:LibFFM" in (tmp_path / "job.yaml").read_text()


def test_an_svmlight_file(folder):
    file, output, _ = written("rows.svm")
    assert (file.data.spec()["format"], file.algorithm.loss) == ("svmlight", "logistic")
    assert "2 classes: 1 (1), -1 (1)" in output
