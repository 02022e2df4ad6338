"""A Dask cluster on a real YARN: plain Dask work, scaling, ways to reach it, errors."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
import urllib.request

import pytest
from distributed import Client
from distributed.core import Status

import elasticml as em
from elasticml.errors import ConfigError, ElasticmlError
from tests.waiting import LOST_DEADLINE, until

pytestmark = [pytest.mark.yarn, pytest.mark.slow, pytest.mark.timeout(900)]

ENVIRONMENT = f"python://{sys.executable}"
SMALL = {"worker_memory": "512 MiB", "scheduler_memory": "512 MiB", "queue": "ml"}
WAIT_S_MAX = 120


#: As in dask-yarn's manual; only the environment is this machine's.
WRITTEN = f"""
name: written-for-dask-yarn
queue: ml
services:
  dask.scheduler:
    resources: {{memory: 512 MiB, vcores: 1}}
    script: {sys.executable} -m dask_yarn.cli services scheduler
  dask.worker:
    resources: {{memory: 512 MiB, vcores: 1}}
    instances: 1
    max_restarts: 2
    depends: [dask.scheduler]
    script: {sys.executable} -m dask_yarn.cli services worker --nthreads 2
"""


@pytest.fixture(scope="module")
def cluster(mini_yarn, skein_client):
    """A cluster with its scheduler in a container."""
    with em.YarnCluster(
        environment=ENVIRONMENT, n_workers=2, skein_client=skein_client, **SMALL
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        client.wait_for_workers(1, timeout=WAIT_S_MAX)
        yield client


def workers_of(cluster):
    return {worker["name"] for worker in cluster.scheduler_info["workers"].values()}


def test_plain_dask_work_runs_on_encrypted_connections_with_a_dashboard_and_logs(client, cluster):
    import dask.array as da

    client.wait_for_workers(2, timeout=WAIT_S_MAX)
    assert client.submit(lambda x: x + 1, 41).result(timeout=WAIT_S_MAX) == 42
    assert da.ones((300, 300), chunks=100).sum().compute() == 90_000
    addresses = [cluster.scheduler_address, *client.nthreads()]
    assert [address.partition("://")[0] for address in addresses] == ["tls"] * 3
    assert cluster.status is Status.running
    with pytest.raises(OSError, match=r"in|out"):  # a client without the key
        Client(cluster.scheduler_address.replace("tls://", "tcp://"), timeout=2)
    with urllib.request.urlopen(cluster.dashboard_link, timeout=30) as page:
        assert page.status == 200
    assert {container.id for container in cluster.workers()} == workers_of(cluster)
    assert set(cluster.logs()) == {"Scheduler", *client.nthreads()}
    assert set(cluster.logs(scheduler=False, workers=[])) == set()


def test_scaling_down_loses_no_result(client, cluster):
    cluster.scale(3)
    client.wait_for_workers(3, timeout=WAIT_S_MAX)
    futures = client.map(lambda x: x * x, range(30))
    assert sum(client.gather(futures)) == 8555
    cluster.scale(1)
    until(lambda: len(workers_of(cluster)) == 1, "one worker")
    assert [container.id for container in cluster.workers()] == list(workers_of(cluster))
    retried = [future for future in futures if future.status != "finished"]
    assert (retried, sum(client.gather(futures))) == ([], 8555)


def test_adaptive_scaling_follows_the_load_within_limits(client, cluster):
    cluster.adapt(minimum=2, maximum=2, interval="200ms", wait_count=1)
    client.wait_for_workers(2, timeout=WAIT_S_MAX)
    cluster.adapt(minimum=0, maximum=1, interval="200ms", wait_count=1)
    until(lambda: len(workers_of(cluster)) == 0, "no worker without work")
    assert client.submit(lambda: 5).result(timeout=WAIT_S_MAX) == 5
    cluster.scale(1)


def test_other_processes_find_the_cluster_by_its_application(client, cluster, skein_client):
    with em.YarnCluster.from_application_id(cluster.app_id, skein_client) as other:
        assert other.scheduler_address == cluster.scheduler_address
        with Client(other) as another:
            assert another.submit(lambda: 6).result(timeout=WAIT_S_MAX) == 6
    assert other.status is Status.closed
    with pytest.raises(ConfigError, match="the cluster is closed; make a new YarnCluster"):
        other.scale(1)
    assert skein_client.application_report(cluster.app_id).state == "RUNNING"


def test_a_container_finds_its_own_cluster(client, cluster):
    def look():
        import elasticml as em

        with em.YarnCluster.from_current() as own:
            return own.app_id, len(own.workers())

    app_id, count = client.submit(look).result(timeout=WAIT_S_MAX)
    assert (app_id, count) == (cluster.app_id, len(cluster.workers()))


def test_async_code_and_a_local_scheduler_without_encryption(mini_yarn, skein_client):
    async def use():
        async with em.YarnCluster(
            environment=ENVIRONMENT,
            n_workers=1,
            deploy_mode="local",
            security="none",
            tags=["one"],
            name="local",
            skein_client=skein_client,
            asynchronous=True,
            **SMALL,
        ) as cluster:
            async with Client(cluster, asynchronous=True) as client:
                result = await client.submit(lambda: 7)
            services = set(cluster.spec.services)
            report = skein_client.application_report(cluster.app_id)
            return result, services, cluster.scheduler_address, cluster, report

    result, services, address, cluster, report = asyncio.run(use())
    assert (result, services, address.partition("://")[0]) == (7, {"dask.worker"}, "tcp")
    assert (report.name, report.queue.split(".")[-1], report.tags) == ("local", "ml", {"one"})
    assert cluster.status is Status.closed
    until(
        lambda: skein_client.application_report(cluster.app_id).final_status == "SUCCEEDED",
        "the end of the application",
    )


def test_a_program_that_ends_without_closing_leaves_nothing_and_prints_nothing(
    mini_yarn, skein_client, tmp_path
):
    """A specification written for dask-yarn, used by a program that just ends."""
    (tmp_path / "written.yaml").write_text(WRITTEN)
    script = """
        import sys
        import elasticml as em
        from distributed import Client
        cluster = em.YarnCluster.from_specification(sys.argv[1])
        client = Client(cluster)
        print(cluster.app_id, client.submit(lambda: 8).result(timeout=120))
    """
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(script), tmp_path / "written.yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    app_id, result = done.stdout.split()
    # Libraries warn of their own imports; nothing else is printed.
    printed = done.stderr.replace(LOST_DEADLINE, "").splitlines()
    message = [line for line in printed if not re.match(r"\s|/.*site-packages", line)]
    assert (result, message) == ("8", [])
    until(
        lambda: skein_client.application_report(app_id).final_status == "SUCCEEDED",
        "the end of the application",
    )
    assert skein_client.application_report(app_id).name == "written-for-dask-yarn"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"queue": "nowhere"}, "queue 'nowhere' is unknown"),
        ({"worker_memory": "64 GiB"}, "64"),
        ({"keytab": "/nowhere/me.keytab", "principal": "me"}, "no file /nowhere/me.keytab"),
        ({"keytab": "/nowhere/me.keytab"}, "without a principal"),
        ({"node_label": "gold"}, "gold"),
    ],
)
def test_a_request_that_can_never_run_is_refused_at_once(mini_yarn, arguments, says):
    with pytest.raises(ElasticmlError, match=says) as caught:
        em.YarnCluster(environment=ENVIRONMENT, **{**SMALL, **arguments})
    assert isinstance(caught.value, em.errors.ConfigError | em.errors.SubmissionError)
    assert "\n" not in caught.value.message


def test_an_environment_that_no_node_has_is_reported(mini_yarn, skein_client):
    with pytest.raises(em.errors.SubmissionError, match="/nowhere/env") as caught:
        em.YarnCluster(environment="venv:///nowhere/env", skein_client=skein_client, **SMALL)
    assert "\n" not in caught.value.message


def test_an_application_that_has_ended_cannot_be_found(mini_yarn, skein_client):
    with pytest.raises(em.errors.SubmissionError, match="cannot be found"):
        em.YarnCluster.from_application_id("application_1_0001", skein_client)
