"""A worker that announces itself to a scheduler that does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status

from elasticml.runtime import member_plugin
from elasticml.runtime.member_plugin import announced

pytestmark = pytest.mark.asyncio


def worker_of(*answers: Any) -> Any:
    """Return a worker whose scheduler answers in turn, and whose status Dask then changes."""
    left = list(answers)

    async def em_announce(address: str) -> list[str]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Status):
            worker.status = answer
            raise ConnectionResetError("the scheduler has ended")
        return list(answer)

    scheduler = SimpleNamespace(em_announce=em_announce)
    worker = SimpleNamespace(address="tcp://w", status=Status.running, scheduler=scheduler)
    return worker


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_plugin, "AGAIN_S", 0.0)


async def test_an_announcement_whose_connection_breaks_is_made_again() -> None:
    worker = worker_of(ConnectionResetError("cut"), TimeoutError("no answer"), ("job",))
    assert await announced(worker) == ["job"]


@pytest.mark.parametrize("status", [Status.closing, Status.closed, Status.failed])
async def test_a_worker_that_closes_with_its_scheduler_announces_itself_no_more(
    status: Status,
) -> None:
    assert await announced(worker_of(status)) == []
