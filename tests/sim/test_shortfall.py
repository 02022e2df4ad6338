"""A job that misses its tolerance says so, everywhere with the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import elasticml as em
from elasticml.cli.job_options import print_summary
from elasticml.jobs.follow import follow
from elasticml.jobs.simulated_job import SimulatedJob
from elasticml.protocol.job_record import job_record
from elasticml.report.live import read_story
from elasticml.report.panel import panel_html
from elasticml.report.run_reader import read_run
from elasticml.sim.simulation import simulate
from elasticml.training.shortfall import shortfall
from tests.own_penalties import PATH
from tests.sim.small_jobs import points, record

#: Makes no progress at all.
STILL = {"optimizer": "gd", "step": "constant", "step_size": 1e-30}


def end(stop: Any, **algorithm: Any) -> tuple[int, str, str]:
    """Return rounds, reason and shortfall of a job."""
    section = {"name": "batch_gradient", "l2": 1e-2, "tolerance": None, **algorithm}
    absent = "taylor" if section["name"] == "batch_gradient" else "reload"
    made = record(algorithm=section, absent=absent, stop=stop)
    summary = simulate(made, points()).summary
    return summary["rounds"], summary["stopped_by"], summary.get("unconverged", "")


@pytest.mark.parametrize(
    ("stop", "algorithm", "reason", "words"),
    [
        ({"rounds": 3}, {}, "3 rounds", "of the first one, wanted 1e-06, after 3 rounds; scale"),
        ({"rounds": 3}, {"tolerance": 0.0}, "3 rounds", ""),
        ({"rounds": 3}, {"tolerance": 0.9}, "gradient norm <= 0.9 of the first", ""),
        ({"rounds": 1, "gap": 1e-9}, {"tolerance": 0.0}, "1 rounds", "wanted 1e-09, after 1 round"),
        ({"rounds": 9, "objective": 0.6}, {"tolerance": 0.0}, "objective <= 0.6", ""),
        (
            {"rounds": 3, "objective": 0.1},
            {"tolerance": 0.0, "scale": "maxabs"},
            "3 rounds",
            "wanted 0.1, after 3 rounds; allow more rounds (stop: {rounds: 30})",
        ),
        (
            {"rounds": 9},
            {"name": "cocoa", "loss": "hinge", "tolerance": 1e-9},
            "9 rounds",
            "wanted 1e-09, after 9 rounds; scale",
        ),
    ],
)
def test_a_job_with_a_limit_says_how_far_its_model_is(
    stop: Any, algorithm: Any, reason: str, words: str
) -> None:
    _, stopped_by, unconverged = end(stop, **algorithm)
    assert stopped_by.startswith(reason)
    assert words in unconverged
    assert bool(words) == unconverged.startswith("not converged: the ")


def test_that_a_penalty_has_no_conjugate_is_said_where_a_gap_was_wanted() -> None:
    section = {"name": "primal_cocoa", "penalty": f"{PATH}Silent", "tolerance": 1e-6}

    def words(**stop: Any) -> str:
        made = record(algorithm=section, absent="reload", stop={"rounds": 30, **stop})
        return shortfall(job_record(made), [], rounds=30, reason="30 rounds")

    assert (
        "no method conjugate, after 30 rounds; give it that method or set tolerance: 0" in words()
    )
    assert words(objective=0.1).endswith("allow more rounds (stop: {rounds: 300})")


def test_a_job_that_makes_no_progress_ends_unless_it_was_asked_for_rounds() -> None:
    rounds, reason, words = end({"rounds": 1000}, **STILL)
    assert (rounds, reason) == (101, "no progress in 100 rounds")
    assert "is 1 of the first one" in words
    assert "after 101 rounds (no progress in 100 rounds); scale the columns" in words
    assert "more rounds" not in words
    assert end({"rounds": 130}, **STILL, tolerance=0.0) == (130, "130 rounds", "")


def test_result_command_page_and_report_begin_with_it(tmp_path: Path, capsys: Any) -> None:
    job = em.Job(em.BatchGradient(l2=1e-2), points(), name="short", stop=em.Stop(rounds=3))
    result = follow(SimulatedJob(job.record("short", 2), job.source), run_dir=tmp_path / "run")
    words = result.summary["unconverged"]
    assert repr(result).startswith(f"<{words}. Result of short: 3 rounds")
    assert repr(em.Result.load(tmp_path / "run")) == repr(result)
    print_summary(result.summary, as_json=False)
    assert capsys.readouterr().out.splitlines()[-1] == words
    print_summary(result.summary, as_json=True)
    assert capsys.readouterr().err == f"elasticml: {words}\n"
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<span class="badge unconverged">not converged</span>' in page
    assert '<p class="warn">not converged: the gradient' in page
    assert read_run(tmp_path / "run").badge == "not converged"
    live = read_story("short", result.story)
    shown = live.to_json()
    assert (shown["state"], shown["badge"], shown["note"]) == ("done", "not converged", words)
    assert '<span class="small">not converged</span>' in panel_html(live, 1.0)
