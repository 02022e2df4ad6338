"""The thread that reads the agent's documents: its notices, and its end."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.clusters.yarn.notice_parser import AgentSeen, PreemptionTimes
from elasticml.clusters.yarn.notice_stream import NoticeStream
from elasticml.protocol.notices import NodeChanged

skein = pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

WAIT_S = 20.0
KEY = "elasticml.agent."
HELLO = json.dumps({"v": 1, "t": 1, "heartbeat_ms": 500}).encode()


class Store:
    """The part of skein's key-value store that the stream uses; also the queue of its events."""

    def __init__(self, **values: bytes) -> None:
        self._values = {KEY + name: value for name, value in values.items()}
        self._queue: queue.Queue[Any] = queue.Queue()
        self.put = self._queue.put
        self.was_left = threading.Event()

    def events(self, prefix: str, event_type: str) -> Store:
        assert (prefix, event_type) == (KEY, "PUT")
        return self

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.was_left.set()

    def get_prefix(self, prefix: str) -> dict[str, bytes]:
        return self._values

    def get(self) -> Any:
        result = self._queue.get(timeout=WAIT_S)
        if isinstance(result, Exception):
            raise result
        return result

    def write(self, name: str, value: bytes) -> None:
        self.put(SimpleNamespace(key=KEY + name, result=SimpleNamespace(value=value)))


def nodes(*states: str) -> bytes:
    items = [
        {"seq": i, "t": 1, "node": "a:1", "state": state, "timeout_s": None, "health": ""}
        for i, state in enumerate(states, start=1)
    ]
    return json.dumps({"v": 1, "items": items}).encode()


def stream_of(store: Store) -> NoticeStream:
    return NoticeStream(SimpleNamespace(kv=store), PreemptionTimes())


def test_existing_documents_are_reported_first_and_unreadable_ones_skipped():
    store, notices = Store(hello=HELLO), queue.Queue()
    stream = stream_of(store)
    store.write("nodes", b"{")
    store.write("nodes", nodes("LOST"))
    stream.start(notices.put)
    assert notices.get(timeout=WAIT_S) == AgentSeen(heartbeat_ms=500)
    changed = notices.get(timeout=WAIT_S)
    assert isinstance(changed, NodeChanged)
    assert changed.state == "lost"
    stream.close()


def test_the_end_of_the_application_master_is_reported():
    store, has_ended = Store(), threading.Event()
    stream = stream_of(store)
    stream.start(lambda notice: None, has_ended.set)
    store.put(skein.exceptions.ConnectionError("gone"))
    assert has_ended.wait(WAIT_S)
    assert store.was_left.is_set()
    stream.close()


def test_nothing_is_reported_after_closing():
    store, notices, has_ended = Store(), queue.Queue(), threading.Event()
    stream = stream_of(store)
    stream.start(notices.put, has_ended.set)
    stream.close()
    store.write("nodes", nodes("LOST"))
    assert store.was_left.wait(WAIT_S)
    assert notices.empty()
    assert not has_ended.is_set()
