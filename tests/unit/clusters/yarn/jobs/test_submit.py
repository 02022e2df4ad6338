"""Files that a submission leaves at the path of the run."""

from dataclasses import replace

import pytest

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

from elasticml.clusters.yarn.jobs.applications import Application, check_result
from elasticml.clusters.yarn.jobs.submit import SubmissionPlan, make_spec, submit_plan
from elasticml.clusters.yarn.yarn_client import YarnCallError
from elasticml.data.storage import filesystem
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, SubmissionError
from elasticml.protocol.job_record import job_record
from elasticml.specification.sections import YarnContainers
from tests.fake_yarn import FakeYarn

LOCAL = HadoopConf(values={"fs.defaultFS": "file:///"})
APPLICATION = "application_1_0001"
RECORD = job_record({"data": {"format": "synthetic_splice"}})


class YarnWithRace(FakeYarn):
    """A cluster on which another job starts while YARN decides."""

    def __init__(self, other, ends):
        super().__init__()
        self.other, self.ends = other, ends

    def submit(self, spec):
        filesystem.write_whole(self.other, b"another job's")
        raise self.ends


class RefusingYarn(FakeYarn):
    """A cluster whose queue has been stopped meanwhile."""

    def submit(self, spec):
        raise YarnCallError("queue ml is STOPPED")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster = YarnContainers(kind="yarn", workers=2, environment="venv:///opt/env")
    place = f"memory://submissions-{tmp_path.name}/run"
    spec = make_spec(cluster, "job")
    return SubmissionPlan(name="job", cluster=cluster, conf=LOCAL, spec=spec, place=place)


def test_the_output_path_of_a_waiting_job_is_reserved(plan):
    # Of two waiting jobs with one output path, the second driver took over the first one's run.
    check_result(plan.place)
    application = submit_plan(FakeYarn(), plan, RECORD, evaluates=True)
    assert application == Application(id=APPLICATION, name="job", place=plan.place)
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        check_result(plan.place)


def test_a_refused_submission_frees_the_path(plan):
    with pytest.raises(SubmissionError, match="queue ml is STOPPED"):
        submit_plan(RefusingYarn(), plan, RECORD, evaluates=True)
    assert not filesystem.exists(plan.place)


def test_a_path_that_was_taken_while_the_job_was_packed_is_left_alone(plan):
    # It was checked minutes before; then the run of another job was overwritten and removed.
    check_result(plan.place)
    other = filesystem.join(plan.place, "story.jsonl")
    filesystem.write_whole(other, b"another job's")
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        submit_plan(RefusingYarn(), plan, RECORD, evaluates=True)
    assert filesystem.names(plan.place) == ["story.jsonl"]


def test_a_shared_path_that_was_taken_meanwhile_is_left_alone(plan, tmp_path):
    shared = replace(plan, place=str(tmp_path / "run"))
    check_result(shared.place)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "story.jsonl").write_text("another job's")
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        submit_plan(FakeYarn(), shared, RECORD, evaluates=True)


@pytest.mark.parametrize("name", ["story.jsonl", "driver/attempt.json"])
def test_a_refusal_removes_the_claim_and_nothing_else(plan, name):
    other = filesystem.join(plan.place, *name.split("/"))
    with pytest.raises(SubmissionError, match="queue ml is STOPPED"):
        submit_plan(
            YarnWithRace(other, YarnCallError("queue ml is STOPPED")), plan, RECORD, evaluates=True
        )
    assert filesystem.read_bytes(other) == b"another job's"
    assert not filesystem.exists(filesystem.join(plan.place, "driver", "submitted.json"))


def test_the_claim_of_another_job_stays(plan):
    claim = filesystem.join(plan.place, "driver", "submitted.json")
    with pytest.raises(SubmissionError):
        submit_plan(YarnWithRace(claim, YarnCallError("refused")), plan, RECORD, evaluates=True)
    assert filesystem.read_bytes(claim) == b"another job's"


def test_a_job_that_may_have_been_accepted_keeps_its_path(plan):
    other = filesystem.join(plan.place, "story.jsonl")
    with pytest.raises(KeyboardInterrupt):
        submit_plan(YarnWithRace(other, KeyboardInterrupt()), plan, RECORD, evaluates=True)
    assert filesystem.names(plan.place) == ["driver", "story.jsonl"]


def test_checking_a_path_removes_only_the_check_file(plan, monkeypatch):
    # Between the check and the trial write another job claimed the path; its run was removed with
    # the trial file.
    claim = filesystem.join(plan.place, "driver", "submitted.json")
    write_whole = filesystem.write_whole

    def write_both(place, content):
        write_whole(place, content)
        write_whole(claim, b"another job's")

    monkeypatch.setattr(filesystem, "write_whole", write_both)
    check_result(plan.place)
    assert filesystem.read_bytes(claim) == b"another job's"
    assert filesystem.names(plan.place) == ["driver"]
