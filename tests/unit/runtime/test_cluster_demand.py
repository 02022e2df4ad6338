"""A client's cluster follows the demand of the jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from elasticml.runtime import cluster_demand
from elasticml.runtime.cluster_demand import ClusterFollower, follow_demand


class Cluster:
    """A cluster object with one worker of its user."""

    def __init__(self) -> None:
        self.plan = {0}
        self._adaptive: Any = None

    def scale(self, n: int) -> None:
        self.plan = set(range(n))

    def scale_down(self, names: list[int]) -> None:
        self.plan -= set(names)

    def sync(self, method: Any, *args: Any) -> Any:
        return method(*args)


class Client:
    """Answers with one demand after the other, and is closed after the last one."""

    def __init__(self, cluster: Any, *replies: dict[str, Any]) -> None:
        self.cluster = cluster
        self.replies = list(replies)
        self.scheduler = SimpleNamespace(em_demand=lambda: self.replies.pop(0))
        self.plans: list[list[int]] = []

    @property
    def status(self) -> str:
        self.plans.append(sorted(self.cluster.plan))
        return "running" if self.replies else "closed"

    def sync(self, call: Any) -> Any:
        return call()


def reply(workers: int, *idle: int, running: int = 1) -> dict[str, Any]:
    return {"running": running, "workers": workers, "idle": list(idle)}


def follow(client: Client) -> list[list[int]]:
    follower = ClusterFollower(client, client.cluster)  # type: ignore[arg-type]
    cluster_demand._followers[client] = follower  # type: ignore[index]
    follower._pause.set()
    follower.run()
    assert client not in cluster_demand._followers
    return [*client.plans[1:], sorted(client.cluster.plan)]


def test_it_grows_closes_idle_workers_and_keeps_those_of_its_user() -> None:
    client = Client(
        Cluster(),
        reply(3, 0),
        reply(2),  # all have members still
        reply(2, 0, 1),
        reply(0, 0, 2, running=0),
    )
    assert follow(client) == [[0, 1, 2], [0, 1, 2], [0, 2], [0]]
    assert client.replies == []


def test_an_adaptive_cluster_is_left_alone() -> None:
    cluster = Cluster()
    cluster._adaptive = SimpleNamespace(periodic_callback=object())
    assert follow(Client(cluster, reply(3), reply(0, running=0))) == [[0], [0]]


def test_a_cluster_that_cannot_scale_leaves_the_job_alone(caplog: Any) -> None:
    client = Client(Cluster(), reply(3), reply(3))
    client.cluster.scale = lambda n: 1 / 0
    assert follow(client) == [[0]]
    assert "does not follow the job's demand: division by zero" in caplog.text


def test_only_clients_of_a_cluster_object_are_followed() -> None:
    client: Any = SimpleNamespace(cluster=None)
    follow_demand(client)
    assert len(cluster_demand._followers) == 0
