"""A scheduler owns its application, or another does, or there is no master left."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.clusters.yarn import scheduler_service
from elasticml.clusters.yarn.scheduler_service import SchedulerOwnership

skein = pytest.importorskip("skein")

OURS = b"tls://10.0.0.1:1"


class Store:
    """skein's store, with one key in it, whose events a test makes."""

    def __init__(self, value: bytes | None) -> None:
        self.value = value
        self.made: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @contextmanager
    def events(self, key: str) -> Any:
        yield SimpleNamespace(get=self._next)

    def _next(self) -> Any:
        made = self.made.get()
        if isinstance(made, Exception):
            raise made
        return SimpleNamespace(result=made)

    def get(self, key: str) -> bytes | None:
        if self.value is None:
            raise skein.ConnectionError("Unable to connect to application")
        return self.value

    @contextmanager
    def connect(self) -> Any:
        yield SimpleNamespace(kv=self)


def watch(store: Store) -> tuple[list[str], threading.Event]:
    lost: list[str] = []
    is_over = threading.Event()

    def on_lost(why: str) -> None:
        lost.append(why)
        is_over.set()

    SchedulerOwnership(store.connect, OURS, on_lost).start()  # type: ignore[arg-type]
    return lost, is_over


def test_a_scheduler_whose_key_vanishes_with_its_container_is_disowned():
    store = Store(OURS)
    lost, is_over = watch(store)
    store.made.put(SimpleNamespace(value=OURS))
    store.made.put(None)
    assert is_over.wait(60.0)
    assert lost == ["the application has no scheduler now"]


def test_a_scheduler_that_another_follows_is_disowned():
    store = Store(OURS)
    lost, is_over = watch(store)
    store.made.put(SimpleNamespace(value=b"tls://10.0.0.9:9"))
    assert is_over.wait(60.0)
    assert lost == ["the scheduler is 'tls://10.0.0.9:9' now"]


def test_a_master_that_returns_in_time_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_service.time, "sleep", lambda seconds: None)
    store = Store(OURS)
    lost, is_over = watch(store)
    store.made.put(skein.ConnectionError("Unable to connect to application"))
    store.made.put(None)
    assert is_over.wait(60.0)
    assert lost == ["the application has no scheduler now"]


def test_a_scheduler_without_a_master_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_service, "MASTER_LOST_S", 0.0)
    lost, is_over = watch(Store(None))
    assert is_over.wait(60.0)
    assert lost == ["the application master is lost (Unable to connect to application)"]
