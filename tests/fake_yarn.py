"""A YARN in memory: the protocol of ``elasticml.clusters.yarn.yarn_client``, without a cluster."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from elasticml.clusters.yarn.notice_parser import EXITS, HELLO, MARKS, NODES
from elasticml.clusters.yarn.tls import Credentials
from elasticml.clusters.yarn.yarn_client import (
    ApplicationLostError,
    ApplicationStatus,
    ContainerState,
    ServiceContainer,
    YarnCallError,
)

ACTIVE: tuple[ContainerState, ...] = ("waiting", "requested", "running")

#: A test waits at most this long for another thread.
WAIT_S = 60.0


class FakeStore:
    """A key-value store; ``lose`` is the end of the master that holds it."""

    def __init__(self, **values: bytes) -> None:
        self.values: dict[str, bytes] = values
        self._watches: list[FakeWatch] = []
        self.watched: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.was_left: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lost: str | None = None

    def get(self, key: str) -> bytes | None:
        self._check()
        return self.values.get(key)

    def put(self, key: str, value: bytes, owner: str | None = None) -> None:
        self._check()
        self.values[key] = value
        self._tell(key, value)

    def pop(self, key: str) -> bytes | None:
        self._check()
        value = self.values.pop(key, None)
        self._tell(key, None)
        return value

    def wait(self, key: str) -> bytes:
        with self.watch(key) as changes:
            while key not in self.values:
                changes.get()
        return self.values[key]

    def with_prefix(self, prefix: str) -> dict[str, bytes]:
        self._check()
        return {key: value for key, value in self.values.items() if key.startswith(prefix)}

    @contextmanager
    def watch(self, prefix: str) -> Iterator[FakeWatch]:
        self._check()
        watch = FakeWatch(prefix)
        self._watches.append(watch)
        self.watched.put(prefix)
        try:
            yield watch
        finally:
            self._watches.remove(watch)
            self.was_left.put(prefix)

    def lose(self, why: str = "the master is gone", *, for_good: bool = True) -> None:
        """End the master; unless it is for good, another follows at once."""
        self._lost = why if for_good else None
        for watch in list(self._watches):
            watch.queue.put(ApplicationLostError(why))

    def _check(self) -> None:
        if self._lost is not None:
            raise ApplicationLostError(self._lost)

    def _tell(self, key: str, value: bytes | None) -> None:
        for watch in list(self._watches):
            if key.startswith(watch.prefix):
                watch.queue.put((key, value))


class FakeWatch:
    """The changes of some keys."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def get(self) -> tuple[str, bytes | None] | None:
        change = self.queue.get()
        if isinstance(change, Exception):
            raise change
        return change

    def stop(self) -> None:
        self.queue.put(None)


class FakeAgent:
    """The agent in an application's master: writes its documents, in the form of a real one."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self._items: dict[str, list[dict[str, Any]]] = {EXITS: [], NODES: []}
        self._seq = 0

    def hello(self, heartbeat_ms: int = 1000) -> None:
        """Write that the agent runs."""
        versions = {"hadoop": "3.4.2", "java": "17.0.15"}
        self._write(HELLO, {"t": 1, "heartbeat_ms": heartbeat_ms, **versions})

    def mark(
        self,
        *marks: tuple[str, float, int],
        at_s: float | None = None,
        strict: bool = False,
        seq: int | None = None,
    ) -> None:
        """Write which containers are marked, when they were last marked, and how often."""
        self._seq = self._seq + 1 if seq is None else seq
        at_s = time.time() if at_s is None else at_s
        listed = [
            {"id": id, "first": 1, "last": round(last_s * 1000), "count": count, "strict": strict}
            for id, last_s, count in marks
        ]
        requests = [{"n": 1, "mib": 128, "vcores": 1, "where": "*"}]
        document = {"seq": self._seq, "t": round(at_s * 1000), "marks": listed}
        self._write(MARKS, {**document, "resources": requests})

    def end(self, container: str, status: int, message: str = "") -> None:
        """Write that a container has ended."""
        self._add(EXITS, id=container, status=status, message=message)

    def change(self, node: str, state: str, timeout_s: int | None = None) -> None:
        """Write that a node has changed."""
        self._add(NODES, node=node, state=state, timeout_s=timeout_s, health="")

    def _add(self, key: str, **item: Any) -> None:
        items = self._items[key]
        items.append({"seq": len(items) + 1, "t": 1, **item})
        self._write(key, {"items": items})

    def _write(self, key: str, document: dict[str, Any]) -> None:
        self._store.put(key, json.dumps({"v": 1, **document}).encode())


class FakeApplication:
    """An application whose master grants nothing by itself; ``set`` changes its containers.

    Parameters
    ----------
    workers : int
        How many containers of ``dask.worker`` run.
    """

    def __init__(self, workers: int = 0, id: str = "application_1_0001") -> None:
        self.id = id
        self.store = FakeStore()
        self.agent = FakeAgent(self.store)
        #: How often its containers were listed.
        self.looks = 0
        self.credentials = Credentials(certificate="certificate", key="key")
        self.listed = [self._new(i, "running") for i in range(workers)]
        self.killed: list[str] = []
        #: The progress that was reported, each time.
        self.shares: list[float] = []
        #: The final status and diagnostics.
        self.ended: tuple[str, str | None] | None = None

    def _new(self, instance: int, state: ContainerState) -> ServiceContainer:
        return ServiceContainer(
            name=f"dask.worker_{instance}",
            service="dask.worker",
            instance=instance,
            state=state,
            container=f"container_{instance + 2}" if state == "running" else "",
        )

    def set(self, name: str, state: ContainerState, message: str = "") -> None:
        """Change the state of a container; YARN grants one that runs."""
        (at,) = (i for i, one in enumerate(self.listed) if one.name == name)
        container = self.listed[at].container
        if state == "running":
            container = f"container_{self.listed[at].instance + 2}"
        self.listed[at] = replace(
            self.listed[at], state=state, message=message, container=container
        )

    def containers(
        self, services: Sequence[str] | None = None, states: Sequence[ContainerState] | None = None
    ) -> list[ServiceContainer]:
        self.looks += 1
        return [
            one
            for one in self.listed
            if (services is None or one.service in services) and one.state in (states or ACTIVE)
        ]

    def add(self, service: str) -> ServiceContainer:
        assert service == "dask.worker"
        self.listed.append(self._new(len(self.listed), "requested"))
        return self.listed[-1]

    def scale(self, service: str, count: int) -> list[ServiceContainer]:
        return [self.add(service) for _ in range(count - len(self.containers([service])))]

    def kill(self, name: str) -> None:
        self.killed.append(name)
        self.set(name, "killed", "Killed by user request.")

    def set_progress(self, share: float) -> None:
        self.shares.append(share)

    def shutdown(self, status: str, diagnostics: str | None = None) -> None:
        self.ended = (status, diagnostics)
        self.store.lose("the application has ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class FakeYarn:
    """A cluster that accepts every application, and one application that runs on it.

    Parameters
    ----------
    application : FakeApplication, optional
    status : fields of ``ApplicationStatus``
        What it reports; by default the application runs until it is killed.
    """

    def __init__(self, application: FakeApplication | None = None, **status: Any) -> None:
        self.application = application or FakeApplication()
        self.reported = application_status(**{"state": "RUNNING", **status})
        self.submitted: list[Any] = []
        self.is_killed = False

    def submit(self, spec: Any) -> str:
        self.submitted.append(spec)
        return self.application.id

    def connect(self, app_id: str, *, wait: bool = False, security: Any = None) -> FakeApplication:
        if app_id != self.application.id:
            raise YarnCallError(f"Unknown application {app_id}")
        return self.application

    def status(self, app_id: str) -> ApplicationStatus:
        return replace(self.reported, state="KILLED") if self.is_killed else self.reported

    def running(self, name: str) -> list[str]:
        return [] if self.is_killed else [self.application.id]

    def kill(self, app_id: str) -> None:
        self.is_killed = True


def application_status(**changes: Any) -> ApplicationStatus:
    """The status of a running application, but for the changes."""
    fields: dict[str, Any] = {
        "state": "RUNNING",
        "final_status": "UNDEFINED",
        "queue": "ml",
        "user": "me",
        "diagnostics": "",
        "progress": 0.0,
        "containers": 1,
        "vcores": 1,
        "memory_mib": 1024,
        "url": "",
    }
    return ApplicationStatus(**{**fields, **changes})
