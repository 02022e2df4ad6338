"""The thread that reads the agent's documents: its notices, and its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from elasticml.clusters.yarn.notice_parser import AgentSeen, PreemptionTimes
from elasticml.clusters.yarn.notice_stream import NoticeStream
from elasticml.protocol.notices import NodeChanged
from tests.fake_yarn import WAIT_S, FakeApplication

KEY = "elasticml.agent."


def started(*on: Callable[..., None]) -> tuple[FakeApplication, NoticeStream]:
    """An application whose agent has begun, and a stream that follows its documents."""
    application = FakeApplication()
    application.agent.hello(500)
    stream = NoticeStream(application, PreemptionTimes())
    stream.start(*on)
    assert application.store.watched.get(timeout=WAIT_S) == KEY
    return application, stream


def test_existing_documents_are_reported_first_and_unreadable_ones_skipped():
    notices = queue.Queue()
    application, stream = started(notices.put)
    application.store.put(KEY + "nodes", b"{")
    application.agent.change("a:1", "LOST")
    assert notices.get(timeout=WAIT_S) == AgentSeen(heartbeat_ms=500)
    assert notices.get(timeout=WAIT_S) == NodeChanged(node="a:1", state="lost")
    stream.close()


def test_the_end_of_the_application_master_is_reported():
    has_ended = threading.Event()
    application, stream = started(lambda notice: None, has_ended.set)
    application.store.lose()
    assert has_ended.wait(WAIT_S)
    assert application.store.was_left.get(timeout=WAIT_S) == KEY
    stream.close()
