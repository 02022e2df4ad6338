"""Submitted jobs as their client sees them, from the files of the run."""

import json
from datetime import datetime

import pytest

from elasticml.clusters.yarn.jobs.applications import (
    Application,
    StoryReader,
    check_result,
    default_result,
    follow_application,
    home_place,
    load_application,
    save_application,
    status_at,
    verdict_of,
)
from elasticml.clusters.yarn.jobs.submission import Attempt, Verdict, write_attempt, write_verdict
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, JobFailedError
from tests.fake_yarn import FakeYarn, application_status

LOCAL = HadoopConf(values={"fs.defaultFS": "file:///"})


def failed(**changes):
    return application_status(**{"state": "FINISHED", "final_status": "FAILED", **changes})


def write_story(place, records):
    place.mkdir(exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (place / "story.jsonl").write_text(text)


def test_runs_are_kept_in_the_users_home_on_the_clusters_file_system(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    conf = HadoopConf(values={"fs.defaultFS": "hdfs://nn:8020"})
    assert home_place(conf) == "hdfs://nn:8020/user/me"


def test_a_run_has_its_own_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = default_result(LOCAL, "a job", now)
    assert first == f"{tmp_path}/elasticml/runs/a-job-20260102-030405"
    check_result(first)
    write_verdict(first, Verdict(state="done", reason=""))
    assert default_result(LOCAL, "a job", now) == f"{first}-2"
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        check_result(first)


def test_an_application_is_known_to_the_user_who_submitted_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    application = Application(id="application_1_0001", name="toy", place="/shared/runs/toy")
    save_application(LOCAL, application)
    assert load_application("application_1_0001", LOCAL) == application
    with pytest.raises(ConfigError, match="application_1_0002: no job of yours"):
        load_application("application_1_0002", LOCAL)


def test_a_restarted_story_is_read_from_its_resumption_point(tmp_path):
    place = tmp_path / "place"
    reader = StoryReader(str(place))
    assert reader.news() == []
    rounds = [{"event": "RoundEnded", "round": r, "t": r} for r in range(4)]
    write_story(place, rounds[:3])
    assert reader.news() == rounds[:3]
    write_story(place, rounds)
    assert reader.news() == rounds[3:]
    resumed = {"event": "JobResumed", "round": 1}
    write_story(place, [*rounds[:2], resumed])
    assert reader.news() == [resumed]
    write_story(place, [*rounds[:2], resumed, {**rounds[2], "t": 9}])
    assert reader.news() == [{**rounds[2], "t": 9}]
    assert status_at(str(place)).round == 3


def test_the_drivers_verdict_takes_precedence_over_yarns(tmp_path):
    application = Application(id="application_1_0001", name="toy", place=str(tmp_path))
    verdict = verdict_of(application, failed(diagnostics="AM Container exited with code 1."))
    assert verdict.reason == "application_1_0001 ended as FAILED: AM Container exited with code 1"
    assert isinstance(verdict.to_error(), JobFailedError)
    verdict = verdict_of(application, failed(final_status="KILLED"))
    assert verdict.reason == "application_1_0001 was killed: YARN does not say why"
    write_verdict(str(tmp_path), Verdict(state="done", reason="3 rounds"))
    assert verdict_of(application, failed(final_status="KILLED")).state == "done"


def test_a_failed_job_is_reported_before_yarn_has_given_up_its_application(tmp_path):
    # Clients waited for three more attempts, each of which only read that the job was over.
    place = str(tmp_path / "place")
    verdict = Verdict.of_error(JobFailedError("the loss is not finite; lower the step"))
    write_attempt(place, Attempt(number=1))
    write_verdict(place, verdict)
    application = Application(id="application_1_0001", name="toy", place=place)
    story, messages, told = [{"event": "RoundEnded", "round": 0, "t": 0.5}], [], []
    write_story(tmp_path / "place", story)
    assert follow_application(FakeYarn(), application, told.extend, messages.append) == verdict
    assert told == story
    assert messages == ["application_1_0001 is RUNNING in queue ml"]
