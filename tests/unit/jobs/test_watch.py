"""``em.watch`` draws a job until it has ended, and handles say what they cannot show."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import elasticml as em
from elasticml.errors import ConfigError, JobFailedError
from elasticml.jobs.handle import Handle
from elasticml.protocol.job_record import job_record
from tests.unit.report.test_live import BEGUN, NAME, a_round

ENDED = {
    **{"t": 9.0, "event": "JobEnded", "state": "done", "reason": "1 rounds", "converged": False},
    **{"round": 1, "computations": {}, "digest": ""},
}


class Notebook:
    """What IPython offers to display; keeps what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.ended = threading.Event()

    def display(self, text: str, display_id: bool) -> Any:
        assert display_id
        self.update(text)
        return self

    def update(self, text: str) -> None:
        self.drawn.append(text)
        if ">done<" in text or ">failed<" in text:
            self.ended.set()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    module = SimpleNamespace(HTML=str, display=notebook.display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return notebook


class Scheduler:
    """Answers ``em_poll`` with a story, in two parts."""

    status = "running"

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)

    def sync(self, reply: Any, client: Any, ask: Callable[[], dict[str, Any]]) -> Any:
        arguments = ask()
        if not self.parts:
            return {"records": [], "done": True, "next": 0, "told": 0}
        part = self.parts.pop(0)
        if isinstance(part, Exception):
            raise part
        since = arguments["since"] + len(part)
        return {"records": part, "done": not self.parts, "next": since, "told": since}

    @property
    def scheduler(self) -> Any:
        return SimpleNamespace(em_poll=lambda **arguments: arguments)


def handle(*parts: Any) -> Handle:
    client: Any = Scheduler(*parts)
    return Handle(client, "j", job_record({}))


def test_a_job_is_drawn_until_its_end(notebook: Notebook) -> None:
    em.watch(handle(BEGUN, a_round(0, 1.0, 8.0), [ENDED]), every_s=0.01)
    assert notebook.ended.wait(60)
    assert "waiting for members" in notebook.drawn[0].lower()
    assert "1 rounds" in notebook.drawn[-1]
    assert all("<img" not in text for text in notebook.drawn)
    assert "&lt;img" in notebook.drawn[-1]


def test_a_lost_scheduler_is_the_last_that_is_drawn(notebook: Notebook) -> None:
    em.watch(handle(BEGUN, OSError("gone")), every_s=0.01)
    assert notebook.ended.wait(60)
    assert "cannot be reached" in notebook.drawn[-1]


def test_without_a_notebook_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ConfigError, match="progress=True"):
        em.watch(handle(BEGUN))


def test_a_period_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="every_s"):
        em.watch(handle(BEGUN), every_s=0)


def test_a_handle_whose_scheduler_is_gone_says_so() -> None:
    html = handle(OSError("<b>gone</b>"))._repr_html_()
    assert html.startswith("&lt;Handle j&gt;: the scheduler of job j cannot be reached")
    assert "<b>" not in html
    with pytest.raises(JobFailedError):
        handle(OSError("gone")).status()


def test_a_handle_shows_the_job_at_present() -> None:
    html = handle([*BEGUN, *a_round(0, 1.0, 8.0), *a_round(1, 8.0, 16.0)])._repr_html_()
    assert NAME not in html
    assert "<svg" in html
