"""Failures of a peer, a round or a file in the Snap ML study and the bench of linear peers."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tests.bench import linear_peers, out_of_core
from tests.bench.peers import fits
from tests.bench.peers.problems import write

STUDIES = Path(__file__).resolve().parents[2] / "examples" / "papers"


@pytest.fixture(autouse=True)
def _studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))


def tiny(folder: Path, *names: str) -> None:
    for name in names:
        write(folder, name, sp.csr_matrix(np.eye(4, dtype=np.float32)), np.array([1.0, -1, 1, -1]))


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("are_iterations", "report"), [(True, 5), (False, 9)])
def test_only_iterations_that_change_nothing_end_a_peer_s_line(
    tmp_path, monkeypatch, capsys, are_iterations, report
):
    from support import snapml_fit

    tiny(tmp_path, "a", "b")
    # It stays the same for seven efforts, and then improves.
    models = [np.zeros(4)] * 7 + [np.array([0.1, -0.1, 0.1, -0.1])] * 2
    made = fits.Fits(lambda effort: (0.5, models[effort]), len(models), are_iterations)
    monkeypatch.setitem(snapml_fit.PEERS, "one", lambda *_: made)
    task = {"folder": str(tmp_path), "train": "a", "test": "b", "peer": "one", "threads": 1}
    snapml_fit.main({**task, "l2": 0.1, "limit_s": math.inf})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum("objective" in line for line in lines) == report


def test_efforts_of_a_task_are_all_fitted(tmp_path, monkeypatch, capsys):
    from support import snapml_fit

    tiny(tmp_path, "a", "b")
    made = fits.Fits(lambda effort: (0.5 + effort, np.zeros(4)), 9)
    monkeypatch.setitem(snapml_fit.PEERS, "one", lambda *_: made)
    task = {"folder": str(tmp_path), "train": "a", "test": "b", "peer": "one", "threads": 1}
    snapml_fit.main({**task, "l2": 0.1, "limit_s": 0.0, "efforts": [3] * 6})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["s"] for line in lines if "s" in line] == [3.5] * 6


def test_more_effort_of_ours_does_not_count_as_more_iterations(tmp_path):
    from tests.bench.peers.problems import Data, Problem

    tiny(tmp_path, "a")
    data, problem = Data(tmp_path, "a"), Problem(model="logistic", l2=0.1)
    results = {peer: fits.PEERS[peer](data, problem, 1) for peer in ("elasticml", "lbfgs")}
    assert {peer: made.are_iterations for peer, made in results.items()} == {
        "elasticml": False,
        "lbfgs": True,
    }


def test_missing_peers_are_tried_again_and_each_python_has_its_own_results(tmp_path, monkeypatch):
    from support import snapml_peers
    from support.snapml_store import Store

    made: list[tuple[str, str]] = []

    def process(task: dict[str, Any], python: str) -> list[dict[str, Any]]:
        made.append((task["peer"], python))
        if python == "without" or task["peer"] == "vw":
            return [{"none": "ImportError"}]
        efforts = task.get("efforts", [3])
        return [{"effort": k, "s": 1.0, "objective": 0.5, "logloss": 0.5} for k in efforts]

    monkeypatch.setattr(snapml_peers, "process", process)

    def others(python: str) -> list[str]:
        made.clear()
        once, repeated = snapml_peers.runs(Store(folder=tmp_path), ("a", "b"), 0.1, python)
        assert len(once) == 11
        assert all([line["effort"] for line in fits] == [3] * 5 for fits in repeated.values())
        return [peer for peer, own in made if own == python]

    there = ["snapml", "snapml", "dask-ml", "spark"]
    each = [*there, "vw"]
    assert [others("without"), others("without")] == [each, each]
    repeats = [*each, *there]
    assert [others("with"), others("with"), others("another")] == [repeats, ["vw"], repeats]


def test_the_table_has_the_median_of_the_repeated_fits():
    from support import snapml_peers

    def fit(effort: int, s: float, objective: float) -> dict[str, float]:
        return {"effort": effort, "s": s, "objective": objective, "logloss": objective}

    once = {"a": [fit(0, 9.0, 2.0), fit(1, 8.0, 1.0005), fit(2, 7.0, 1.0)], "b": [fit(0, 6.0, 2.0)]}
    repeated = {"a": [fit(1, s, 1.0005) for s in (5.0, 1.0, 2.0, 4.0, 3.0)]}
    rows = snapml_peers.table(once, repeated).splitlines()[2:]
    assert rows == ["a | 3 [1, 5] | 1.00050 | 1.00000 | – | ", "b | – | – | 2.00000 | – | "]


def test_a_peer_that_does_not_end_reports_its_last_objective_and_the_reason(monkeypatch):
    from support import snapml_peers

    def run(command: Sequence[Any], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"], b'{"s": 1.5}\n{"s": ')

    monkeypatch.setattr(snapml_peers.subprocess, "run", run)
    lines = snapml_peers.process({"threads": 1, "limit_s": 10.0}, "python")
    assert lines == [{"s": 1.5}, {"none": "no end after 100 s"}]
    assert not snapml_peers.has_ended(lines)


def test_the_bench_stores_finished_runs_under_all_that_they_depend_on(
    tmp_path, monkeypatch, capsys
):
    made: list[str] = []

    def run(task: dict[str, Any], python: str) -> list[dict[str, Any]]:
        made.append(task["peer"])
        return [{"failed": "no"} if task["peer"] == "snapml" else {"effort": 0, "objective": 0.5}]

    monkeypatch.setattr(linear_peers, "run", run)
    tiny(tmp_path, "a")
    options = {"sets": ["a"], "models": ["logistic"], "peers": ["elasticml", "snapml"]}
    options |= {
        "threads": [1],
        "only": "find",
        "begin_s": math.inf,
        "end_s": math.inf,
        "repeats": 1,
        "l1": 0.1,
    }
    options |= {
        "targets": [1e-3, 1e-5],
        "intercept": False,
        "cpu": False,
        "json": None,
        "cores": None,
    }

    def again(**other: Any) -> list[str]:
        made.clear()
        settings = {"C": [1.0], "limit_s": ["60"], "python": "python", **options, **other}
        linear_peers.study(tmp_path, argparse.Namespace(**settings))
        name = f"a | logistic C={settings['C'][0]:g} | 1"
        assert f"snapml, {name}: no" in capsys.readouterr().out
        return list(made)

    both = ["elasticml", "snapml"]
    assert [again(), again()] == [both, ["snapml"]]
    for other in ({"C": [10.0]}, {"limit_s": ["5"]}, {"python": "another"}):
        assert [again(**other), again(**other), again()] == [both, ["snapml"], ["snapml"]]


def test_a_peer_of_the_bench_that_does_not_end_has_failed(monkeypatch):
    def run(command: Sequence[Any], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"], b'{"effort": 0}\n{"eff')

    monkeypatch.setattr(linear_peers.subprocess, "run", run)
    lines = linear_peers.run({"threads": 1, "limit_s": 8.0}, "python")
    assert lines == [{"effort": 0}, {"failed": "no end after 100 s"}]


# --- streaming ------------------------------------------------------------------------------------


def test_files_are_on_disk_before_the_cache_is_emptied(tmp_path, monkeypatch):
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: done.append("written"))
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: done.append("forgotten"))
    (tmp_path / "0.chunks").write_bytes(b"1")
    out_of_core.forget(tmp_path)
    assert done == ["written", "forgotten"]


def test_a_limit_is_the_data_s_share_on_top_of_the_process_s_memory(tmp_path, monkeypatch):
    from support import snapml_streaming

    limits: list[int] = []

    def load(source: Any, limit: int) -> Any:
        limits.append(limit)
        if len(limits) == 2:
            raise StopIteration
        return out_of_core.load(source, limit)

    monkeypatch.setattr(snapml_streaming, "load", load)
    monkeypatch.setattr(snapml_streaming, "resident_bytes", lambda: 10**9)
    with pytest.raises(StopIteration):
        snapml_streaming.measured(tmp_path / "data", 500, 0.25, is_cold=False)
    # The first is eight times all bytes.
    assert limits[1] == limits[0] // 32 + 10**9


# --- rounds ---------------------------------------------------------------------------------------


def rounds_of(*gaps: float) -> dict[str, Any]:
    return {"rounds": [[float(k), gap, 0.5] for k, gap in enumerate(gaps)], "said": []}


def test_rounds_that_never_come_near_are_a_row_and_no_point():
    from support import snapml_rounds

    results = {
        1: rounds_of(0.5, 0.4),
        2: rounds_of(0.5, 0.1, 0.1),
        3: rounds_of(0.1, 0.01, 0.0),
        0: rounds_of(),
    }
    lines, table = snapml_rounds._link("a link", results, 1e-4)
    assert [t2 for t2, _ in lines["a link, measured"]] == [3.0]
    assert all(math.isfinite(s) for _, s in lines["a link, measured"])
    rows = {row.split(" | ")[0]: row.split(" | ")[3] for row in table.splitlines()[2:]}
    assert [rows[t2] for t2 in ("1", "2", "policy")] == ["not reached"] * 3
    assert float(rows["3"]) > 0.0


# --- the command line -----------------------------------------------------------------------------


def study() -> ModuleType:
    """The program, called like a peer."""
    spec = importlib.util.spec_from_file_location("snapml_study", STUDIES / "snapml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--limit", "nan"], "--limit: got nan, wanted seconds"),
        (["--peers-python", "/nonexistent"], "got /nonexistent, wanted a program that can be run"),
        (["--out", __file__], f"--out: got {__file__}, wanted a folder"),
        (["--members", "0"], "--members: got 0, wanted at least 1"),
    ],
)
def test_impossible_options_are_reported_before_anything_is_run(
    tmp_path, monkeypatch, capsys, words, text
):
    module = study()
    monkeypatch.setattr(module, "run", lambda *_: pytest.fail("ran"))
    with pytest.raises(SystemExit):
        module.main(["--out", str(tmp_path), *words])
    assert text in capsys.readouterr().err


def test_a_finished_figure_is_kept_if_the_next_one_fails(tmp_path, monkeypatch):
    module = study()

    def run(name: str, *_: Any) -> Any:
        if name == "streaming":
            raise OSError("no disk")
        return module.Figure(title=name, panels=(), tables=(("a table", "of it"),))

    monkeypatch.setattr(module, "run", run)
    with pytest.raises(OSError, match="no disk"):
        module.main(["--out", str(tmp_path), "--figures", "single", "streaming"])
    assert "of it" in (tmp_path / "tables.md").read_text()
    assert list(json.loads((tmp_path / "figures.json").read_text())) == ["single"]
