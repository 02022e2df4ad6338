"""A handle whose scheduler is gone, was restarted, or does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.errors import UNKNOWN_JOB, ConfigError, JobFailedError, error_to_dict
from elasticml.jobs.handle import Handle
from elasticml.protocol.job_record import job_record


class Client:
    """A client whose scheduler answers with what it is given, in turn."""

    status = "running"

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.scheduler: SimpleNamespace | None = SimpleNamespace(em_cancel=self._answer)

    async def _answer(self, job: str) -> Any:
        answer = next(self._answers)
        if answer == "never":
            self.status = "connecting"
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sync(self, function: Any, *args: Any) -> Any:
        return asyncio.run(function(*args))


def lost(client: Client, answered: int = 0) -> str:
    """Return the error after a number of answers."""
    handle = Handle(client, "job", job_record({}))  # type: ignore[arg-type]
    for _ in range(answered):
        handle.cancel()
    with pytest.raises(JobFailedError) as caught:
        handle.cancel()
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
    assert lost(Client({}, last), answered=1) == f"the scheduler of job job {why}"


def test_a_client_that_is_not_connected_does_not_ask() -> None:
    client = Client()
    client.status = "closed"
    client.scheduler = None  # as Dask's, which closes itself 30 s after it has lost its scheduler
    assert lost(client) == "the scheduler of job job cannot be reached: it is gone"


def test_a_job_that_never_was_there_is_another_error() -> None:
    with pytest.raises(ConfigError, match="no job 'job' here"):
        Handle(Client(UNKNOWN), "job", job_record({})).cancel()  # type: ignore[arg-type]
