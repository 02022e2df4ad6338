"""What a submission leaves where the run will be."""

from dataclasses import replace

import pytest

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

from elasticml.clusters.yarn.jobs.applications import Application, check_result
from elasticml.clusters.yarn.jobs.submit import SubmissionPlan, make_spec, submit_plan
from elasticml.data.storage import filesystem
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, SubmissionError
from elasticml.jobs.job_sections import YarnContainers

LOCAL = HadoopConf(values={"fs.defaultFS": "file:///"})
APPLICATION = "application_1_0001"
RECORD = {"data": {"format": "synthetic_splice"}}


class Accepting:
    """A client of a cluster that takes every application."""

    def submit(self, spec):
        return APPLICATION


class Meanwhile:
    """A client of a cluster on which another job begins while YARN decides."""

    def __init__(self, other, ends):
        self.other, self.ends = other, ends

    def submit(self, spec):
        filesystem.write_whole(self.other, b"another job's")
        raise self.ends


class Refusing:
    """A client of a cluster whose queue has been stopped meanwhile."""

    def submit(self, spec):
        raise ValueError("queue ml is STOPPED")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster = YarnContainers(kind="yarn", workers=2, environment="venv:///opt/env")
    place = f"memory://submissions-{tmp_path.name}/run"
    spec = make_spec(cluster, "job")
    return SubmissionPlan(name="job", cluster=cluster, conf=LOCAL, spec=spec, place=place)


def test_the_place_of_a_run_that_waits_for_containers_is_nobody_elses(plan):
    # Two jobs with one result, both waiting: the second driver took over the first one's run.
    check_result(plan.place)
    application = submit_plan(Accepting(), plan, RECORD, evaluates=True)
    assert application == Application(id=APPLICATION, name="job", place=plan.place)
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        check_result(plan.place)


def test_a_submission_that_is_refused_leaves_the_place_free(plan):
    with pytest.raises(SubmissionError, match="queue ml is STOPPED"):
        submit_plan(Refusing(), plan, RECORD, evaluates=True)
    assert not filesystem.exists(plan.place)


def test_a_place_that_was_taken_while_the_job_was_packed_is_left_alone(plan):
    # It was looked at minutes before; then the run of another job was written over, and removed.
    check_result(plan.place)
    other = filesystem.join(plan.place, "story.jsonl")
    filesystem.write_whole(other, b"another job's")
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        submit_plan(Refusing(), plan, RECORD, evaluates=True)
    assert filesystem.names(plan.place) == ["story.jsonl"]


def test_a_shared_path_that_was_taken_meanwhile_is_left_alone(plan, tmp_path):
    shared = replace(plan, place=str(tmp_path / "run"))
    check_result(shared.place)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "story.jsonl").write_text("another job's")
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        submit_plan(Accepting(), shared, RECORD, evaluates=True)


@pytest.mark.parametrize("name", ["story.jsonl", "driver/attempt.json"])
def test_a_refusal_removes_the_claim_and_nothing_else(plan, name):
    other = filesystem.join(plan.place, *name.split("/"))
    with pytest.raises(SubmissionError, match="queue ml is STOPPED"):
        submit_plan(
            Meanwhile(other, ValueError("queue ml is STOPPED")), plan, RECORD, evaluates=True
        )
    assert filesystem.read_bytes(other) == b"another job's"
    assert not filesystem.exists(filesystem.join(plan.place, "driver", "submitted.json"))


def test_the_claim_of_another_job_stays(plan):
    claim = filesystem.join(plan.place, "driver", "submitted.json")
    with pytest.raises(SubmissionError):
        submit_plan(Meanwhile(claim, ValueError("refused")), plan, RECORD, evaluates=True)
    assert filesystem.read_bytes(claim) == b"another job's"


def test_a_job_that_may_have_been_accepted_keeps_its_place(plan):
    other = filesystem.join(plan.place, "story.jsonl")
    with pytest.raises(KeyboardInterrupt):
        submit_plan(Meanwhile(other, KeyboardInterrupt()), plan, RECORD, evaluates=True)
    assert filesystem.names(plan.place) == ["driver", "story.jsonl"]


def test_trying_a_place_removes_only_the_trial(plan, monkeypatch):
    # Between the look and the trial another job claimed the place; with the trial its run went.
    claim = filesystem.join(plan.place, "driver", "submitted.json")
    write_whole = filesystem.write_whole

    def write_both(place, content):
        write_whole(place, content)
        write_whole(claim, b"another job's")

    monkeypatch.setattr(filesystem, "write_whole", write_both)
    check_result(plan.place)
    assert filesystem.read_bytes(claim) == b"another job's"
    assert filesystem.names(plan.place) == ["driver"]
