"""The resource manager's answers for schedulers and versions that the mini YARN does not run."""

import json

import pytest

from elasticml.clusters.yarn.resource_manager import ResourceManager
from elasticml.clusters.yarn.rm_responses import (
    Resources,
    read_nodes,
    read_queues,
)
from elasticml.errors import SubmissionError
from tests.http_server import closed_url, serving

NOTHING = {"memory": 0, "vCores": 0}
#: From a fair scheduler (Hadoop 3.4.2), without unused parts.
FAIR = {
    "scheduler": {
        "schedulerInfo": {
            "type": "fairScheduler",
            "rootQueue": {
                "queueName": "root",
                "preemptable": True,
                "maxResources": {"memory": 6144, "vCores": 16},
                "steadyFairResources": {"memory": 6144, "vCores": 16},
                "usedResources": NOTHING,
                "maxContainerAllocation": {"memory": 4096, "vCores": 4},
                "childQueues": {
                    "queue": [
                        {
                            "type": "fairSchedulerLeafQueueInfo",
                            "queueName": "root.ml",
                            "preemptable": False,
                            "maxResources": {"memory": 4096, "vCores": 8},
                            "steadyFairResources": {"memory": 3072, "vCores": 8},
                            "usedResources": {"memory": 1024, "vCores": 1},
                            "maxContainerAllocation": {"memory": 4096, "vCores": 4},
                        }
                    ]
                },
            },
        }
    }
}
#: The answer of standby resource managers (Hadoop 3.4.2, two of them).
STANDBY = (307, {"Location": "http://localhost:18204/ws/v1/cluster/nodes"}, b"This is standby RM.")
STANDBY_INFO = (200, {}, b'{"clusterInfo":{"id":1,"state":"STARTED","haState":"STANDBY"}}')
ACTIVE_INFO = (200, {}, b'{"clusterInfo":{"id":1,"state":"STARTED","haState":"ACTIVE"}}')


def test_queues_of_a_fair_scheduler():
    root, ml = read_queues(FAIR)
    assert (root.path, root.is_leaf, ml.path, ml.name, ml.is_leaf) == (
        "root",
        False,
        "root.ml",
        "ml",
        True,
    )
    assert (ml.is_preemptable, ml.maximum) == (False, Resources(memory_mib=4096, vcores=8))
    assert (ml.used, ml.container_max) == (
        Resources(memory_mib=1024, vcores=1),
        Resources(memory_mib=4096, vcores=4),
    )


def test_a_cluster_without_nodes_answers_null():
    assert read_nodes({"nodes": None}) == []


def test_a_node_of_an_older_version_reports_its_total_in_parts():
    node = {
        "id": "n:1",
        "nodeHostName": "n",
        "state": "RUNNING",
        "availMemoryMB": 1024,
        "usedMemoryMB": 3072,
        "availableVirtualCores": 3,
        "usedVirtualCores": 1,
    }
    (result,) = read_nodes({"nodes": {"node": [node]}})
    assert (result.total, result.labels) == (Resources(memory_mib=4096, vcores=4), ())


def test_of_several_resource_managers_the_active_one_is_asked():
    requests = []

    def standby(method, path, headers, body):
        requests.append("standby")
        return STANDBY_INFO if path.endswith("/info") else STANDBY

    def active(method, path, headers, body):
        requests.append("active")
        return ACTIVE_INFO if path.endswith("/info") else (200, {}, b'{"nodes": null}')

    with serving(standby) as first, serving(active) as second:
        rm = ResourceManager([closed_url(), first, second])
        assert rm.info()["haState"] == "ACTIVE"
        assert rm.nodes() == []
    assert requests == ["standby", "active", "active"]


def test_resource_managers_that_are_all_down_or_standby_are_named():
    closed = closed_url()
    with serving(lambda *request: STANDBY) as url, pytest.raises(SubmissionError) as raised:
        ResourceManager([closed, url]).nodes()
    message = raised.value.message
    assert message.startswith("the resource manager does not answer: 127.0.0.1:")
    assert f"{url} is on standby; start it, or correct yarn.resourcemanager.webapp.addr" in message


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {}, b"<html/>"), "answers 404, wanted its web service; correct yarn.resource"),
        ((403, {}, b"no"), r"refuses this user \(403\); kinit, or ask for permission"),
        (
            (
                403,
                {},
                json.dumps({"RemoteException": {"message": "User ann\n may not"}}).encode(),
            ),
            r"refuses this user \(User ann may not\)",
        ),
    ],
)
def test_other_servers_and_refusals_are_one_line(answer, message):
    with serving(lambda *request: answer) as url, pytest.raises(SubmissionError, match=message):
        ResourceManager([url]).queues()


def test_a_fifo_scheduler_has_one_queue():
    (only,) = read_queues({"scheduler": {"schedulerInfo": {"type": "fifoScheduler"}}})
    assert (only.name, only.is_leaf) == ("default", True)
