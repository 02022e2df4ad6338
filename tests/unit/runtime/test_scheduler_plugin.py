"""The scheduler's plugin while workers come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Client

from elasticml.errors import ConfigError
from elasticml.runtime import scheduler_plugin
from elasticml.runtime.scheduler_plugin import ElasticmlScheduler
from tests.unit.runtime.test_dask_points import in_process


@pytest.mark.asyncio
async def test_a_worker_that_ends_while_the_plugin_is_loaded_leaves_the_others() -> None:
    async with in_process(2) as cluster, Client(cluster, asynchronous=True) as client:
        ending, staying = cluster.workers.values()
        loads, loaded = staying.handlers["plugin-add"], asyncio.Event()

        async def end(comm: Any, **_: Any) -> None:
            comm.abort()

        async def load(plugin: bytes, name: str) -> Any:
            done = await loads(plugin=plugin, name=name)
            loaded.set()
            return done

        ending.handlers["plugin-add"], staying.handlers["plugin-add"] = end, load
        await client.register_plugin(ElasticmlScheduler())
        async with asyncio.timeout(60.0):
            await loaded.wait()
        assert "elasticml-member" in staying.plugins
        assert "elasticml" in cluster.scheduler.plugins


@pytest.mark.asyncio
async def test_only_workers_announce_themselves() -> None:
    """An address that is none was offered to every later job, whose submission failed with it."""
    async with in_process(1) as cluster, Client(cluster, asynchronous=True) as client:
        await client.register_plugin(ElasticmlScheduler())
        plugin = cluster.scheduler.plugins["elasticml"]
        for address in (7, None, ["tcp://127.0.0.1:1"]):
            with pytest.raises(ConfigError, match="wanted a list of addresses"):
                await client.scheduler.em_announce(address=address)
        assert await client.scheduler.em_announce(address="tcp://127.0.0.1:1") == []
        for wrong in ({"address": 7, "grace_s": 1.0}, {"address": "w", "grace_s": "soon"}):
            with pytest.raises(ConfigError):
                await client.scheduler.em_stopping(**wrong)
        assert plugin.ready <= set(cluster.scheduler.workers)


@pytest.mark.asyncio
async def test_a_worker_that_does_not_answer_holds_up_neither_the_plugin_nor_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_plugin, "LOADING_S_MAX", 0.01)
    async with in_process(2) as cluster, Client(cluster, asynchronous=True) as client:
        stopped, staying = cluster.workers.values()
        answers, loaded = asyncio.Event(), asyncio.Event()
        loads = staying.handlers["plugin-add"]

        async def stand(**_: Any) -> None:
            await answers.wait()

        async def load(plugin: bytes, name: str) -> Any:
            done = await loads(plugin=plugin, name=name)
            loaded.set()
            return done

        stopped.handlers["plugin-add"], staying.handlers["plugin-add"] = stand, load
        async with asyncio.timeout(60.0):
            await client.register_plugin(ElasticmlScheduler())
            await loaded.wait()
        assert not answers.is_set()
        answers.set()
