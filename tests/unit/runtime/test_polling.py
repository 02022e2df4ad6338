"""A job's story as clients poll it from the scheduler."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.jobs.handle import Handle
from elasticml.protocol.job_record import job_record
from elasticml.report.status import JobStatus
from elasticml.runtime import scheduler_plugin
from elasticml.runtime.scheduler_plugin import ElasticmlScheduler
from elasticml.story.records import MemberSpare
from tests.sim.small_jobs import VirtualJob, toy_job


class LocalClient:
    """Asks a plugin of this process."""

    status = "running"

    def __init__(self, plugin: ElasticmlScheduler) -> None:
        self.scheduler = SimpleNamespace(em_poll=plugin.poll)

    def sync(self, ask: Any, *arguments: Any) -> Any:
        return asyncio.run(ask(*arguments))


def test_long_story_comes_in_parts_and_its_status_is_the_last(monkeypatch):
    monkeypatch.setattr(scheduler_plugin, "POLLED_MAX", 7)
    shell = VirtualJob(toy_job()).end().agent
    plugin = ElasticmlScheduler()
    plugin.known_jobs = {shell.job: shell}
    handle = Handle(LocalClient(plugin), shell.job, job_record({}))
    batches = list(handle.batches())
    assert {len(batch) for batch in batches[:-2]} == {7}
    story = [record for batch in batches for record in batch]
    assert shell.journal.story == story
    status = JobStatus(job=shell.job)
    for record in story:
        status = status.after(record)
    assert (handle.status(), handle.status().state) == (status, "done")


@pytest.mark.parametrize("since", [0, 5])
def test_request_for_an_unknown_job_is_an_error(since):
    plugin = ElasticmlScheduler()
    plugin.known_jobs = {}
    answer = asyncio.run(plugin.poll("nobody", since=since))
    assert "no job 'nobody' here" in answer["error"]["message"]
    assert (answer["records"], answer["next"], answer["told"]) == ([], since, since)


def test_records_that_arrive_meanwhile_are_in_one_answer(monkeypatch):
    """One answer per record took the scheduler as long as its work between two exchanges."""
    monkeypatch.setattr(scheduler_plugin, "GATHERED_S", 3600.0)

    async def asked() -> list[dict[str, Any]]:
        shell, plugin = VirtualJob(toy_job()).agent, ElasticmlScheduler()
        plugin.known_jobs = {shell.job: shell}
        answer = asyncio.ensure_future(plugin.poll(shell.job, wait_s=3600.0))
        for member in ("0.1", "1.1"):
            for _ in range(20):  # turns of the loop, so that an answer could be sent
                await asyncio.sleep(0)
            shell.write(MemberSpare(member=member))
        await asyncio.sleep(0)
        shell.ended.set()
        records = (await answer)["records"]
        return list(records)

    assert [record["member"] for record in asyncio.run(asked())] == ["0.1", "1.1"]
