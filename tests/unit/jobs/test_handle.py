"""A handle: its scheduler is gone, was restarted or does not answer; ``em.watch`` draws its job."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import elasticml as em
from elasticml.errors import UNKNOWN_JOB, ConfigError, JobFailedError, error_to_dict
from elasticml.jobs.handle import Handle
from elasticml.protocol.job_record import job_record
from tests.unit.report.test_live import BEGUN, NAME, a_round


class Client:
    """A client whose scheduler answers with what it is given, in turn."""

    status = "running"

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.scheduler: Any = SimpleNamespace(em_cancel=self._answer, em_poll=self._answer)

    async def _answer(self, since: int = 0, **arguments: Any) -> Any:
        answer = next(self._answers, [])
        if answer == "never":
            self.status = "connecting"
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, list):
            return answer
        told = since + len(answer)
        return {"records": answer, "done": not answer, "next": told, "told": told}

    def sync(self, function: Any, *args: Any) -> Any:
        return asyncio.run(function(*args))


def handle(*answers: Any) -> Handle:
    client: Any = Client(*answers)
    return Handle(client, "job", job_record({}))


def lost(some: Handle) -> str:
    with pytest.raises(JobFailedError) as caught:
        some.cancel()
    assert caught.value.fields["reason"] == "scheduler lost"
    return caught.value.message


UNKNOWN = {"error": error_to_dict(ConfigError("no job 'job' here", reason=UNKNOWN_JOB))}


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (OSError("Timed out"), "cannot be reached: Timed out"),
        # Its return would be awaited for half a minute.
        ("never", "cannot be reached: it is gone"),
        (None, "cannot be reached: another scheduler answers at its address"),
        (UNKNOWN, "does not know it any more: it was restarted, or has dropped old results"),
    ],
)
def test_a_lost_scheduler_is_noticed_at_once(last: Any, why: str) -> None:
    some = handle({}, last)
    some.cancel()
    assert lost(some) == f"the scheduler of job job {why}"


def test_a_client_that_is_not_connected_does_not_ask_and_an_unknown_job_is_another_error() -> None:
    client: Any = Client()
    client.status = "closed"
    client.scheduler = None  # as Dask's, which closes itself 30 s after it has lost its scheduler
    closed = Handle(client, "job", job_record({}))
    assert lost(closed) == "the scheduler of job job cannot be reached: it is gone"
    with pytest.raises(ConfigError, match="no job 'job' here"):
        handle(UNKNOWN).cancel()


# --- drawing --------------------------------------------------------------------------------------

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


def test_a_period_must_be_positive_and_there_must_be_a_notebook(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="every_s"):
        em.watch(handle(BEGUN), every_s=0)
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ConfigError, match="progress=True"):
        em.watch(handle(BEGUN))


def test_a_handle_shows_the_job_at_present_or_that_its_scheduler_is_gone() -> None:
    html = handle([*BEGUN, *a_round(0, 1.0, 8.0), *a_round(1, 8.0, 16.0)])._repr_html_()
    assert NAME not in html
    assert "<svg" in html
    html = handle(OSError("<b>gone</b>"))._repr_html_()
    assert html.startswith("&lt;Handle job&gt;: the scheduler of job job cannot be reached")
    assert "<b>" not in html
    with pytest.raises(JobFailedError):
        handle(OSError("gone")).status()
