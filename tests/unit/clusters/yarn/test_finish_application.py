"""The final status of an application that must not be restarted."""

from __future__ import annotations

import pytest

from elasticml.clusters.yarn.notice_parser import HELLO
from elasticml.clusters.yarn.yarn_client import finish_application
from tests.fake_yarn import FakeApplication


def reported(hello: bytes | None, status: str) -> tuple[str, str | None] | None:
    application = FakeApplication()
    if hello is not None:
        application.store.put(HELLO, hello)
    finish_application(application, status, "why")
    return application.ended


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_the_agent_reports_the_status_to_yarn_so_that_no_attempt_follows(status):
    assert reported(b'{"v": 1, "end": "end="}', status) == ("SUCCEEDED", f"end={status}: why")


@pytest.mark.parametrize("hello", [None, b'{"v": 1}'])
def test_without_a_suitable_agent_skein_gets_the_status_itself(hello):
    assert reported(hello, "FAILED") == ("FAILED", "why")


def test_success_needs_no_agent():
    assert reported(b'{"v": 1, "end": "end="}', "SUCCEEDED") == ("SUCCEEDED", "why")
