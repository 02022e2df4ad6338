"""A job's requests to its cluster: more members, and releases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elasticml.errors import SubmissionError
from elasticml.runtime.scaler import Containers

pytestmark = pytest.mark.asyncio


class Few:
    """A cluster that grants two workers at most, and fails when it has none left."""

    def __init__(self) -> None:
        self.left = 2
        self.released: list[str] = []

    async def request(self, count: int) -> int:
        if self.left == 0:
            raise SubmissionError("no machine is free")
        granted = min(count, self.left)
        self.left -= granted
        return granted

    async def release(self, addresses: Sequence[str]) -> None:
        self.released += addresses


async def test_workers_that_the_cluster_does_not_grant_are_missing() -> None:
    cluster = Few()
    containers = Containers(cluster, lambda address: None)
    missing, reason = await containers.request(3)
    assert (missing, reason) == (1, "the cluster has as many workers as it may have")
    assert await containers.request(3) == (3, "no machine is free")
    await containers.release(["a", "b"])
    assert cluster.released == ["a", "b"]


async def test_without_a_scaler_only_idle_workers_are_available() -> None:
    invited: list[str] = []
    containers = Containers(None, invited.append)
    assert await containers.request(1) == (1, "this cluster starts no workers for a job")
    await containers.release(["a", "b", "c"])
    containers.forget("a")
    missing = [(await containers.request(n))[0] for n in (1, 2)]
    assert (missing, invited) == ([0, 1], ["b", "c"])


async def test_a_cluster_that_follows_the_demand_is_awaited_for_what_idle_workers_lack() -> None:
    asked: list[int] = []

    async def more_workers(count: int) -> tuple[int, str]:
        asked.append(count)
        return 1, "no more within 300 s"

    containers = Containers(None, lambda address: None, more_workers)
    await containers.release(["a"])
    assert await containers.request(1) == (0, "this cluster starts no workers for a job")
    await containers.release(["a"])
    assert await containers.request(4) == (2, "no more within 300 s")
    assert asked == [3]
