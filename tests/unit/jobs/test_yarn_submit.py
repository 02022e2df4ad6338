"""What a submission leaves where the run will be."""

import pytest

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

from elasticml.data import places
from elasticml.data.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, SubmissionError
from elasticml.jobs.applications import check_result, recall
from elasticml.jobs.settings import YarnContainers
from elasticml.jobs.yarn_spec import make_spec
from elasticml.jobs.yarn_submit import Plan, submit_plan

LOCAL = HadoopConf(values={"fs.defaultFS": "file:///"})
APPLICATION = "application_1_0001"
RECORD = {"data": {"format": "synthetic_splice"}}


class Accepting:
    """A client of a cluster that takes every application."""

    def submit(self, spec):
        return APPLICATION


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
    return Plan(name="job", cluster=cluster, conf=LOCAL, spec=spec, place=place)


def test_the_place_of_a_run_that_waits_for_containers_is_nobody_elses(plan):
    # Two jobs with one result, both waiting: the second driver took over the first one's run.
    check_result(plan.place)
    application = submit_plan(Accepting(), plan, RECORD, evaluates=True)
    assert recall(APPLICATION, LOCAL) == application
    with pytest.raises(ConfigError, match="holds something already; name another place"):
        check_result(plan.place)


def test_a_submission_that_is_refused_leaves_the_place_free(plan):
    with pytest.raises(SubmissionError, match="queue ml is STOPPED"):
        submit_plan(Refusing(), plan, RECORD, evaluates=True)
    assert not places.exists(plan.place)
