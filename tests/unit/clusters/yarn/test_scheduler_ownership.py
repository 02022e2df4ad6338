"""A scheduler owns its application, or another does, or there is no master left."""

from __future__ import annotations

import threading

import pytest

from elasticml.clusters.yarn import scheduler_service
from elasticml.clusters.yarn.container_context import SCHEDULER_KEY
from elasticml.clusters.yarn.scheduler_service import SchedulerOwnership
from tests.fake_yarn import WAIT_S, FakeApplication

OURS = b"tls://10.0.0.1:1"


def watch(application: FakeApplication) -> tuple[list[str], threading.Event]:
    lost: list[str] = []
    is_over = threading.Event()

    def on_lost(why: str) -> None:
        lost.append(why)
        is_over.set()

    application.store.put(SCHEDULER_KEY, OURS)
    SchedulerOwnership(lambda: application, OURS, on_lost).start()
    assert application.store.watched.get(timeout=WAIT_S) == SCHEDULER_KEY
    return lost, is_over


def test_a_scheduler_that_another_follows_is_disowned():
    application = FakeApplication()
    lost, is_over = watch(application)
    application.store.put(SCHEDULER_KEY, b"tls://10.0.0.9:9")
    assert is_over.wait(WAIT_S)
    assert lost == ["the scheduler is 'tls://10.0.0.9:9' now"]


def test_a_master_that_returns_in_time_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_service.time, "sleep", lambda seconds: None)
    application = FakeApplication()
    lost, is_over = watch(application)
    application.store.lose(for_good=False)
    assert application.store.watched.get(timeout=WAIT_S) == SCHEDULER_KEY
    application.store.pop(SCHEDULER_KEY)
    assert is_over.wait(WAIT_S)
    assert lost == ["the application has no scheduler now"]


def test_a_scheduler_without_a_master_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_service, "MASTER_LOST_S", 0.0)
    application = FakeApplication()
    lost, is_over = watch(application)
    application.store.lose("Unable to connect to application")
    assert is_over.wait(WAIT_S)
    assert lost == ["the application master is lost (Unable to connect to application)"]
