"""Files that a submission leaves at the path of the run."""

from dataclasses import replace
from datetime import datetime

import pytest

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

from elasticml.clusters.yarn.jobs.applications import Application, check_result
from elasticml.clusters.yarn.jobs.submit import (
    SubmissionPlan,
    make_spec,
    plan_submission,
    submit_plan,
)
from elasticml.clusters.yarn.yarn_client import YarnCallError
from elasticml.data.storage import filesystem
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, SubmissionError
from elasticml.protocol.job_record import job_record
from elasticml.specification.sections import YarnContainers
from tests.fake_yarn import FakeYarn
from tests.http_server import closed_url

LOCAL = HadoopConf(values={"fs.defaultFS": "file:///"})
APPLICATION = "application_1_0001"
REFUSED = YarnCallError("queue ml is STOPPED")
CLAIM = ("driver", "submitted.json")
RECORD = job_record({"data": {"format": "synthetic_splice"}})


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster = YarnContainers(kind="yarn", workers=2, environment="venv:///opt/env")
    place = f"memory://submissions-{tmp_path.name}/run"
    spec = make_spec(cluster, "job")
    return SubmissionPlan(name="job", cluster=cluster, conf=LOCAL, spec=spec, place=place)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_keytab_must_exist_before_the_resource_manager_is_asked(
    plan, tmp_path, monkeypatch, is_there
):
    keytab = tmp_path / "me.keytab"
    if is_there:
        keytab.touch()
    sites = "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
    sites += f"<value>{closed_url().removeprefix('http://')}</value></property></configuration>"
    (tmp_path / "yarn-site.xml").write_text(sites)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    cluster = plan.cluster.model_copy(update={"keytab": str(keytab), "principal": "me@X.ORG"})
    wanted = (SubmissionError, "does not answer") if is_there else (ConfigError, "there is no file")
    with pytest.raises(wanted[0], match=wanted[1]):
        plan_submission(cluster, "job", datetime(2026, 1, 1))


def test_the_output_path_of_a_waiting_job_is_reserved(plan):
    # Of two waiting jobs with one output path, the second driver took over the first one's run.
    check_result(plan.place)
    application = submit_plan(FakeYarn(), plan, RECORD)
    assert application == Application(id=APPLICATION, name="job", place=plan.place)
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        check_result(plan.place)


class RefusingYarn(FakeYarn):
    """A cluster that refuses a job; another job may write a file meanwhile."""

    def __init__(self, other="", ends=REFUSED):
        super().__init__()
        self.other, self.ends = other, ends

    def submit(self, spec):
        if self.other:
            filesystem.write_whole(self.other, b"another job's")
        raise self.ends


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_path_that_was_taken_while_the_job_was_packed_is_left_alone(plan, tmp_path, is_shared):
    # It was checked minutes before; then the run of another job was overwritten and removed.
    plan = replace(plan, place=str(tmp_path / "run")) if is_shared else plan
    check_result(plan.place)
    filesystem.write_whole(filesystem.join(plan.place, "story.jsonl"), b"another job's")
    with pytest.raises(ConfigError, match="is not empty; name another directory"):
        submit_plan(RefusingYarn(), plan, RECORD)
    assert filesystem.names(plan.place) == ["story.jsonl"]


@pytest.mark.parametrize(
    ("other", "ends", "is_claimed"),
    [
        ("", REFUSED, False),
        ("story.jsonl", REFUSED, False),
        ("driver/attempt.json", REFUSED, False),
        # The claim of another job stays, and that of one that may have been accepted.
        ("driver/submitted.json", REFUSED, True),
        ("story.jsonl", KeyboardInterrupt(), True),
    ],
)
def test_a_refusal_removes_the_claim_and_nothing_else(plan, other, ends, is_claimed):
    path = filesystem.join(plan.place, *other.split("/")) if other else ""
    expected = KeyboardInterrupt if isinstance(ends, KeyboardInterrupt) else SubmissionError
    with pytest.raises(expected):
        submit_plan(RefusingYarn(path, ends), plan, RECORD)
    assert filesystem.exists(filesystem.join(plan.place, *CLAIM)) == is_claimed
    assert filesystem.exists(plan.place) == bool(other)
    assert not other or filesystem.read_bytes(path) == b"another job's"


def test_checking_a_path_removes_only_the_check_file(plan, monkeypatch):
    # Between the check and the trial write another job claimed the path; its run was removed with
    # the trial file.
    claim = filesystem.join(plan.place, *CLAIM)
    write_whole = filesystem.write_whole

    def write_both(place, content):
        write_whole(place, content)
        write_whole(claim, b"another job's")

    monkeypatch.setattr(filesystem, "write_whole", write_both)
    check_result(plan.place)
    assert filesystem.read_bytes(claim) == b"another job's"
    assert filesystem.names(plan.place) == ["driver"]
