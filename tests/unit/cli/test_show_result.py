"""The result of a finished submitted job, and where its run is fetched to."""

import json

import pytest

from elasticml.cli.submit import show_result
from elasticml.clusters.yarn.jobs.applications import Application
from elasticml.clusters.yarn.jobs.submission import Verdict
from elasticml.errors import ConfigError, DataError

CANCELLED = Verdict(state="cancelled", reason="waiting for its workers (1 of 2 were there)")
DONE = Verdict(state="done", reason="3 rounds (rounds)")


@pytest.fixture
def application(tmp_path):
    place = tmp_path / "kept"
    place.mkdir()
    return Application(id="application_1_0001", name="toy", place=str(place))


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_the_last_line_is_a_summary_even_if_the_job_has_not_started(application, tmp_path, capsys):
    show_result(application, CANCELLED, tmp_path / "run", as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == {
        "name": "toy",
        "reason": "waiting for its workers (1 of 2 were there)",
        "rounds": 0,
    }
    assert err == f"elasticml: {application.id}: cancelled after {CANCELLED.reason}\n"


def test_a_job_that_can_be_resumed_shows_its_progress(application, tmp_path, capsys):
    rounds = [{"event": "RoundEnded", "round": r, "t": r} for r in range(7)]
    kept = tmp_path / "kept"
    write(kept, "story.jsonl", "".join(json.dumps(record) + "\n" for record in rounds))
    write(kept, "checkpoint/checkpoint-6", "")
    show_result(application, CANCELLED, tmp_path / "run", as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 7
    assert f"kept as a checkpoint in {kept}/checkpoint\n" in err


def test_a_run_that_another_client_has_fetched_meanwhile_is_not_overwritten(application, tmp_path):
    # Both had found the directory free, hours before.
    write(tmp_path / "kept", "story.jsonl", "mine")
    write(tmp_path / "run", "story.jsonl", "another's")
    with pytest.raises(ConfigError) as refused:
        show_result(application, DONE, tmp_path / "run", as_json=False)
    assert refused.value.message == (
        f"{tmp_path / 'run'}: holds a run already; give another directory or remove it; "
        f"the run of {application.id} is kept, fetch it with: elasticml result {application.id} "
        "--out DIR"
    )
    assert (tmp_path / "run" / "story.jsonl").read_text() == "another's"


def test_the_cause_of_a_failure_comes_before_the_place_of_the_run(application, tmp_path, capsys):
    write(tmp_path / "kept", "story.jsonl", "mine")
    write(tmp_path / "run", "story.jsonl", "another's")
    failed = Verdict.of_error(DataError("line 3 is wrong"))
    with pytest.raises(DataError) as caught:
        show_result(application, failed, tmp_path / "run", as_json=False)
    assert caught.value.message == f"line 3 is wrong; see elasticml logs {application.id}"
    assert f"elasticml result {application.id} --out DIR\n" in capsys.readouterr().err
