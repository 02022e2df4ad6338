"""The application specification of a submitted job."""

import pytest

from elasticml.clusters.yarn.jobs.submission import SUBMISSION_FILE
from elasticml.clusters.yarn.jobs.submit import make_spec, with_driver, worker_bytes, worker_count
from elasticml.errors import ConfigError
from elasticml.specification.sections import YarnContainers
from tests.unit.clusters.yarn.test_application_spec import WRITTEN

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")


@pytest.fixture
def written(tmp_path):
    def write(text=WRITTEN):
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_jobs_requests_are_in_its_application():
    cluster = YarnContainers(
        workers=6,
        workers_min=2,
        workers_max=9,
        queue="ml",
        memory="2 GiB",
        vcores=2,
        scheduler={"memory": "1 GiB"},
        tags=["a", "b"],
        node_label="fast",
        nodes=["n1"],
        environment="venv:///opt/env",
    )
    spec = make_spec(cluster, "first")
    worker, scheduler = spec.services["dask.worker"], spec.services["dask.scheduler"]
    assert (spec.name, spec.queue, spec.tags, spec.node_label) == (
        "first",
        "ml",
        {"a", "b"},
        "fast",
    )
    assert (worker_count(spec), worker_bytes(spec)) == (6, 2**31)
    assert (worker.resources.vcores, worker.nodes) == (2, ["n1"])
    assert scheduler.resources.memory == 1024
    assert "source /opt/env/bin/activate" in worker.script
    assert scheduler.env["ELASTICML_YARN_WORKERS_MIN"] == "2"
    assert scheduler.env["ELASTICML_YARN_WORKERS_MAX"] == "9"


def test_a_specification_changes_only_in_the_jobs_settings(written):
    spec = make_spec(YarnContainers(specification=written(), queue="other"), "first")
    worker = spec.services["dask.worker"]
    assert (spec.name, spec.queue, worker_count(spec)) == ("written", "other", 3)
    assert (worker.resources.memory, worker.resources.vcores) == (2048, 2)
    changed = YarnContainers(specification=written(), workers=2, memory="1 GiB", name="mine")
    spec = make_spec(changed, "first")
    worker = spec.services["dask.worker"]
    assert (spec.name, spec.queue, worker_count(spec)) == ("mine", "ml", 2)
    assert (worker.resources.memory, worker.resources.vcores) == (1024, 2)


@pytest.mark.parametrize("is_written", [False, True])
def test_the_driver_replaces_the_scheduler_and_may_be_restarted(written, tmp_path, is_written):
    cluster = YarnContainers(specification=written()) if is_written else YarnContainers()
    spec = with_driver(make_spec(cluster, "first"), tmp_path / "job.json")
    scheduler = spec.services["dask.scheduler"]
    assert scheduler.script.rstrip().endswith(" -m elasticml.clusters.yarn.jobs.job_driver")
    assert scheduler.files[SUBMISSION_FILE].source == (tmp_path / "job.json").as_uri()
    assert ("environment" in scheduler.files) == is_written
    assert scheduler.max_restarts > 0
    assert spec.services["dask.worker"].max_restarts == -1
    assert spec.max_attempts > 1


def test_a_specification_without_a_scheduler_is_refused(written, tmp_path):
    text = WRITTEN.replace("services scheduler", "services worker", 1)
    spec = make_spec(YarnContainers(specification=written(text)), "first")
    with pytest.raises(ConfigError, match="does not call dask-yarn services scheduler"):
        with_driver(spec, tmp_path / "job.json")
