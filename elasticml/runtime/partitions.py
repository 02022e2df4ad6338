"""Partitions of Dask collections on their way into chunks: the scheduler's and the worker's part.

A member asks the scheduler for partitions. The scheduler submits one task for each, bound to that
member's worker, so a partition that lies there does not move, and one that was lost is computed
again from its graph. The task passes the partition to the member in the worker's own memory and
returns nothing, so Dask frees the partition at once unless the user holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from distributed import Client, KilledWorker, Scheduler, get_worker
from distributed.protocol.pickle import loads

from elasticml.data.readers.dask_partitions import Key, PartitionGraph
from elasticml.errors import (
    DataError,
    ElasticmlError,
    error_from_dict,
    error_to_dict,
    fault_of,
    one_line,
)

logger = logging.getLogger(__name__)

#: Key of the requests among a Dask worker's extensions.
EXTENSION: Final = "elasticml-partitions"
#: Attempts after which a partition whose tasks Dask cancels is given up.
ATTEMPTS_MAX: Final = 20
#: Pause before the next attempt.
PAUSE_S: Final = 0.2

#: Takes a partition, in one of Dask's threads: number of the block and the values of its keys.
Take = Callable[[int, Sequence[Any]], None]


# --- on a worker -------------------------------------------------------------------------------


class PartitionRequests:
    """Requests of a worker's members for partitions.

    Parameters
    ----------
    worker : distributed.Worker
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._numbers = count()
        self._takers: dict[int, Take] = {}
        self._errors: dict[int, Exception] = {}
        worker.extensions[EXTENSION] = self

    async def request(self, job: str, blocks: Sequence[int], take: Take) -> None:
        """Ask for partitions, and return when ``take`` has been called for each.

        Raises
        ------
        ElasticmlError
            When a partition cannot be computed.
        Exception
            The first error of ``take``.
        """
        number = next(self._numbers)
        self._takers[number] = take
        try:
            reply = await self._worker.scheduler.em_partitions(
                job=job, address=self._worker.address, blocks=list(blocks), request=number
            )
            error = self._errors.pop(number, None)
            if error is not None:
                raise error
            if reply.get("error"):
                raise error_from_dict(reply["error"])
        finally:
            del self._takers[number]
            self._errors.pop(number, None)

    def deliver(self, request: int, block: int, parts: Sequence[Any]) -> None:
        """Pass a partition to the member that asked for it, in a thread of Dask."""
        take = self._takers.get(request)
        if take is None or request in self._errors:
            return
        try:
            take(block, parts)
        except Exception as error:
            self._errors.setdefault(request, error)


def hand_over(request: int, block: int, *parts: Any) -> None:
    """Pass a partition to the member that asked for it: the task that Dask runs on its worker."""
    requests = get_worker().extensions.get(EXTENSION)
    if requests is not None:
        requests.deliver(request, block, parts)


# --- on the scheduler --------------------------------------------------------------------------


class PartitionFeed:
    """Submits the tasks that give a job's members their partitions.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    job : str
    graph : bytes
        A pickled :class:`PartitionGraph`.
    """

    def __init__(self, scheduler: Scheduler, job: str, graph: bytes) -> None:
        self._scheduler = scheduler
        self._job = job
        self._graph = loads(graph)
        assert isinstance(self._graph, PartitionGraph)
        self._tasks = dict(self._graph.tasks)
        self._tasks.update(_recipes(scheduler, self._outside()))
        self._user = only_users(self._tasks, self._graph.inputs)
        self._attempts = count()
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[str, set[asyncio.Task[Any]]] = {}

    def _outside(self) -> set[Key]:
        """Return the keys that the graph does not contain."""
        needed = {key for keys in self._graph.inputs for key in keys}
        for task in self._tasks.values():
            needed |= set(task.dependencies)
        return needed - self._tasks.keys()

    def holders(self) -> dict[int, tuple[str, ...]]:
        """Return the workers that hold or compute the first part of each block."""
        holders: dict[int, tuple[str, ...]] = {}
        for block, keys in enumerate(self._graph.inputs):
            state = self._scheduler.tasks.get(keys[0])
            if state is None:
                continue
            at = sorted(worker.address for worker in state.who_has or ())
            if not at and state.processing_on is not None:
                at = [state.processing_on.address]
            if at:
                holders[block] = tuple(at)
        return holders

    async def fetch(self, address: str, blocks: Sequence[int], request: int) -> dict[str, Any]:
        """Give a worker partitions; return when it has taken them, with the error if one failed."""
        task = asyncio.get_running_loop().create_task(self._fetch(address, list(blocks), request))
        waiting = self._waiting.setdefault(address, set())
        waiting.add(task)
        await asyncio.wait([task])
        waiting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return {}
        if not isinstance(error, ElasticmlError):
            logger.error("job %s: partitions failed", self._job, exc_info=error)
            error = fault_of(error, "the scheduler's part of reading Dask partitions")
        return {"error": error_to_dict(error)}

    async def _fetch(self, address: str, blocks: list[int], request: int) -> None:
        client = await self._connected()
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            keys, layers = self._request(address, blocks, request)
            futures = client.get(_high_level(layers, address), keys, sync=False)
            left: list[int] = []
            try:
                for block, future in zip(blocks, futures, strict=True):
                    error = await future.exception()
                    if error is not None and not isinstance(error, KilledWorker):
                        raise _failed(block, error)
                    if future.status != "finished":
                        left.append(block)
            finally:
                for future in futures:
                    future.release()
            blocks = left
            if not blocks:
                return
        raise DataError(
            f"partition {blocks[0]} of the Dask collection could not be computed in "
            f"{ATTEMPTS_MAX} attempts: its tasks were cancelled, or the data have no graph "
            "(scattered) and are lost"
        )

    async def _connected(self) -> Client:
        async with self._opening:
            if self._client is None:
                self._client = await Client(
                    self._scheduler.address,
                    asynchronous=True,
                    set_as_default=False,
                    security=self._scheduler.security,
                    name=f"elasticml-{self._job}",
                )
        return self._client

    def _request(
        self, address: str, blocks: Sequence[int], request: int
    ) -> tuple[list[Key], tuple[dict[Key, Any], dict[Key, Any]]]:
        """Return the keys of the blocks' tasks; those tasks, and the tasks that they share.

        What only one block needs, and the scheduler does not have, becomes one task with it: it is
        computed where its chunks are made, and freed with them. Of a block that is joined of pieces
        only the join is: Dask cuts a piece where its partition is, and moves the piece.
        """
        from dask._task_spec import Task, TaskRef

        known, attempt = self._scheduler.tasks, next(self._attempts)
        bound: dict[Key, Any] = {}
        shared: dict[Key, Any] = {}
        keys = []
        for block in blocks:
            key = f"elasticml-chunks-{self._job}-{block}-{attempt}"
            inputs = self._graph.inputs[block]
            last = Task(key, hand_over, request, block, *map(TaskRef, inputs))
            own = [last]
            for dependency in closure(inputs, self._tasks, known):
                is_joined = self._graph.joins and dependency not in inputs
                if self._user[dependency] == block and not is_joined:
                    own.append(self._tasks[dependency])
                else:
                    shared[dependency] = self._tasks[dependency]
            bound[key] = Task.fuse(*own, key=key) if len(own) > 1 else last
            keys.append(key)
        return keys, (bound, shared)

    def removed(self, address: str) -> None:
        """End the requests of a worker that is gone."""
        for task in self._waiting.pop(address, set()):
            task.cancel()

    async def close(self) -> None:
        """Release all tasks."""
        for address in list(self._waiting):
            self.removed(address)
        self._tasks = {}
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


def _recipes(scheduler: Scheduler, keys: Iterable[Key]) -> dict[Key, Any]:
    """Return the scheduler's tasks for keys and for all that those depend on.

    They are needed when the user releases persisted data and a worker is lost.
    """
    recipes: dict[Key, Any] = {}
    queue = list(keys)
    while queue:
        key = queue.pop()
        state = scheduler.tasks.get(key)
        if state is None or key in recipes or state.run_spec is None:
            continue
        recipes[key] = state.run_spec
        queue += [dependency.key for dependency in state.dependencies]
    return recipes


def only_users(
    tasks: Mapping[Key, Any], inputs: Sequence[tuple[Key, ...]]
) -> dict[Key, int | None]:
    """Return the only block that needs each task; None for tasks that several blocks need."""
    users: dict[Key, int | None] = {}
    for block, keys in enumerate(inputs):
        queue = list(keys)
        while queue:
            key = queue.pop()
            if key not in tasks:
                continue
            user = users.get(key, -1)
            if user is None or user == block:
                continue
            users[key] = block if user == -1 else None
            queue += tasks[key].dependencies
    return users


def closure(inputs: Sequence[Key], tasks: Mapping[Key, Any], known: Mapping[Key, Any]) -> list[Key]:
    """Return the tasks that have to be submitted for these keys: what the scheduler lacks."""
    found: dict[Key, None] = {}
    queue = list(inputs)
    while queue:
        key = queue.pop()
        if key in found or key in known or key not in tasks:
            continue
        found[key] = None
        queue += tasks[key].dependencies
    return list(found)


def _high_level(layers: tuple[dict[Key, Any], dict[Key, Any]], address: str) -> Any:
    """Return a graph whose first layer is bound to a worker."""
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

    bound = MaterializedLayer(layers[0], annotations={"workers": [address]})
    return HighLevelGraph(
        {"bound": bound, "shared": MaterializedLayer(layers[1])},
        {"bound": {"shared"}, "shared": set()},
    )


def _failed(block: int, error: BaseException) -> DataError:
    return DataError(
        f"partition {block} of the Dask collection could not be computed: "
        f"{type(error).__name__}: {one_line(error)}"
    )
