"""The final status of an application that must not be restarted."""

from __future__ import annotations

from typing import Any

import pytest

from elasticml.clusters.yarn.notice_parser import HELLO
from elasticml.clusters.yarn.skein_client import finish_application


class Application:
    """The calls of skein's client that ending an application makes."""

    def __init__(self, hello: bytes | None) -> None:
        self.kv = {} if hello is None else {HELLO: hello}
        self.end: tuple[str, str] | None = None

    def shutdown(self, status: str, diagnostics: str) -> None:
        self.end = (status, diagnostics)


def reported(hello: bytes | None, status: str) -> Any:
    application = Application(hello)
    finish_application(application, status, "why")  # type: ignore[arg-type]
    return application.end


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_the_agent_reports_the_status_to_yarn_so_that_no_attempt_follows(status):
    assert reported(b'{"v": 1, "end": "end="}', status) == ("SUCCEEDED", f"end={status}: why")


@pytest.mark.parametrize("hello", [None, b'{"v": 1}'])
def test_without_a_suitable_agent_skein_gets_the_status_itself(hello):
    assert reported(hello, "FAILED") == ("FAILED", "why")


def test_success_needs_no_agent():
    assert reported(b'{"v": 1, "end": "end="}', "SUCCEEDED") == ("SUCCEEDED", "why")
