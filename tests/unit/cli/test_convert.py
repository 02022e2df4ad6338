"""``elasticml convert``: formats by name, settings, job files, and output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from elasticml.cli.convert import _Progress, convert
from elasticml.data.readers.converted import read_converted
from elasticml.data.source import load_all
from elasticml.errors import ElasticmlError


def ask(*arguments: str) -> str:
    done = CliRunner().invoke(convert, list(arguments))
    if isinstance(done.exception, ElasticmlError):
        return done.exception.message
    # A slow conversion prints its progress to stderr.
    return done.stdout if done.exit_code == 0 else done.output


def test_a_file_is_converted_by_its_name_with_the_readers_settings(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,a\n1,2\n0,3\n")
    output = ask(str(tmp_path / "a.csv"), str(tmp_path / "made"), "--set", "label=y")
    assert f"{{format: chunks, path: {tmp_path / 'made'}}}" in output
    assert load_all(read_converted(str(tmp_path / "made")))[0].values.tolist() == [[2.0], [3.0]]


def test_a_job_files_data_are_converted(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:2\n-1 2:3\n")
    (tmp_path / "job.yaml").write_text(
        "data: {format: svmlight, path: a.svm, test: b.svm, chunk_size: 1 MiB, cache: false}\n"
    )
    output = ask(
        str(tmp_path / "job.yaml"), str(tmp_path / "made"), "--set", "dtype=float32", "--json"
    )
    assert json.loads(output)["rows"] == 2
    assert load_all(read_converted(str(tmp_path / "made")))[0].values.dtype == "float32"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("a.foo", "made"), "has no known file extension"),
        (("a.svm", "made", "--format", "svmlite"), "did you mean 'svmlight'?"),
        (("a.svm", "made", "--set", "lable=y"), "data.lable is not a setting"),
        (("a.svm", "made", "--chunk-size", "lots"), "lots"),
        (("a.svm", "made"), "a.svm does not exist"),
        (("a.svm", "made", "--like", "nothing"), "chunks.json is missing"),
        (("job.yaml", "made"), "job.yaml"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in ask(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.svm").write_text("1 1:2\n-1 2:3\n")

    def interrupt(self: object, written: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_Progress, "__call__", interrupt)
    done = CliRunner().invoke(convert, [str(tmp_path / "a.svm"), str(tmp_path / "made")])
    assert (done.exit_code, "nothing was written" in done.output) == (130, True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.svm"]
