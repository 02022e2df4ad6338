"""The thread that reads the agent's documents: its notices, and its end."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable

from elasticml.clusters.yarn.notice_parser import AgentSeen, PreemptionTimes
from elasticml.clusters.yarn.notice_stream import NoticeStream
from elasticml.protocol.notices import NodeChanged
from tests.fake_yarn import WAIT_S, FakeApplication

KEY = "elasticml.agent."
HELLO = json.dumps({"v": 1, "t": 1, "heartbeat_ms": 500}).encode()


def nodes(*states: str) -> bytes:
    items = [
        {"seq": i, "t": 1, "node": "a:1", "state": state, "timeout_s": None, "health": ""}
        for i, state in enumerate(states, start=1)
    ]
    return json.dumps({"v": 1, "items": items}).encode()


def started(
    documents: dict[str, bytes], *on: Callable[..., None]
) -> tuple[FakeApplication, NoticeStream]:
    """An application with documents, and a stream that has begun to follow them."""
    application = FakeApplication()
    application.store.values.update({KEY + name: value for name, value in documents.items()})
    stream = NoticeStream(application, PreemptionTimes())
    stream.start(*on)
    assert application.store.watched.get(timeout=WAIT_S) == KEY
    return application, stream


def test_existing_documents_are_reported_first_and_unreadable_ones_skipped():
    notices = queue.Queue()
    application, stream = started({"hello": HELLO}, notices.put)
    application.store.put(KEY + "nodes", b"{")
    application.store.put(KEY + "nodes", nodes("LOST"))
    assert notices.get(timeout=WAIT_S) == AgentSeen(heartbeat_ms=500)
    changed = notices.get(timeout=WAIT_S)
    assert isinstance(changed, NodeChanged)
    assert changed.state == "lost"
    stream.close()


def test_the_end_of_the_application_master_is_reported():
    has_ended = threading.Event()
    application, stream = started({}, lambda notice: None, has_ended.set)
    application.store.lose()
    assert has_ended.wait(WAIT_S)
    assert application.store.was_left.get(timeout=WAIT_S) == KEY
    stream.close()


def test_nothing_is_reported_after_closing():
    notices, has_ended = queue.Queue(), threading.Event()
    application, stream = started({}, notices.put, has_ended.set)
    stream.close()
    application.store.put(KEY + "nodes", nodes("LOST"))
    assert application.store.was_left.get(timeout=WAIT_S) == KEY
    assert notices.empty()
    assert not has_ended.is_set()
