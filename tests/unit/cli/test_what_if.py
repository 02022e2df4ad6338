"""``elasticml report --what-if``, on simulated runs of small jobs."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from elasticml.cli.main import main
from elasticml.report.run_reader import read_run
from elasticml.report.what_if import what_if_rows

pytestmark = pytest.mark.slow

JOB = {
    "name": "small",
    "data": {"format": "synthetic_splice", "rows": 2000, "length": 30},
    "algorithm": {"name": "batch_gradient", "l2": 1e-3},
    "cluster": {"workers": 4},
    "absent": "taylor",
    "stop": {"rounds": 16},
    "faults": [
        {"round": 3, "lose": 2, "how": "kill", "exchange": 1},
        {"round": 9, "return": 2},
    ],
}


@dataclass(frozen=True)
class Answer:
    """Output of a command, and its exit code."""

    exit_code: int
    output: str


def asked(*arguments: object) -> Answer:
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stderr(output):
        patched.setattr("signal.signal", lambda *_: None)
        with contextlib.redirect_stdout(output), pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
    return Answer(int(caught.value.code or 0), output.getvalue())


def made(folder: Path, **changes) -> Path:
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump({**JOB, **changes}))
    result = asked("simulate", job, "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = made(tmp_path_factory.mktemp("run"))
    result = asked("report", path, "--what-if", "taylor,stall,ignore,no-failure")
    assert result.exit_code == 0, result.output
    return path


def test_simulating_the_runs_own_rule_gives_its_objective_in_every_round(run):
    own, ghost = read_run(run), read_run(run / "what-if" / "taylor")
    for column in ("round", "members", "absent_examples"):
        assert np.array_equal(ghost.history.column(column), own.history.column(column))
    np.testing.assert_allclose(
        ghost.history.column("objective"), own.history.column("objective"), rtol=1e-12
    )


def test_other_rules_differ_from_the_run_from_its_first_loss(run):
    own = read_run(run).history.column("objective")
    for rule in ("stall", "ignore", "no-failure"):
        other = read_run(run / "what-if" / rule).history.column("objective")
        assert np.array_equal(other[:3], own[:3])
        assert not np.array_equal(other, own)


def test_page_has_figures_and_a_table_of_all_rules(run):
    page = (run / "report.html").read_text()
    for words in ("Under other rules, by round", "rounds lost", "this run (taylor)", "no-failure"):
        assert words in page
    assert (run / "what-if.png").read_bytes()[:4] == b"\x89PNG"


def test_a_run_that_stalls_loses_the_rounds_that_it_waits(run):
    names = ("no-failure", "stall")
    free, stalled = what_if_rows([read_run(run / "what-if" / n) for n in names], names)
    assert free.rounds_lost == 0
    assert stalled.rounds_lost == 6  # rounds 3 to 8


@pytest.mark.slow
def test_second_report_simulates_only_what_is_new(run):
    kept = run / "what-if" / "stall" / "story.jsonl"
    before = kept.stat().st_mtime_ns
    result = asked("report", run, "--what-if", "stall,reload")
    assert result.exit_code == 0, result.output
    assert kept.stat().st_mtime_ns == before
    assert (run / "what-if" / "reload" / "key.json").is_file()
    (run / "what-if" / "stall" / "key.json").write_text("{}")
    asked("report", run, "--what-if", "stall")
    assert kept.stat().st_mtime_ns > before


def test_what_cannot_be_simulated_is_a_one_line_error(run, tmp_path):
    for modes, words in (
        (",", "got no rule, wanted some of auto"),
        ("never", "'never', wanted some of auto"),
        ("freeze", "what-if freeze:"),
    ):
        result = asked("report", run, "--what-if", modes)
        assert result.exit_code == 2
        assert words in result.output
        assert "Traceback" not in result.output
    assert asked("report", run, run, "--what-if", "stall").exit_code == 2
    assert "not a run" in asked("report", tmp_path, "--what-if", "stall").output.lower()


def test_missing_data_are_named(tmp_path):
    data = tmp_path / "points.svm"
    data.write_text("".join(f"{k % 2} 1:{k % 7} 2:{k % 3}\n" for k in range(200)))
    path = made(tmp_path, data={"format": "svmlight", "path": str(data)})
    data.unlink()
    result = asked("report", path, "--what-if", "stall")
    assert result.exit_code == 2
    assert "points.svm" in result.output
    assert not (path / "what-if").exists()
