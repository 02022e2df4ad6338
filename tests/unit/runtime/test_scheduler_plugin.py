"""The scheduler's plugin while workers come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Client

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
