"""The page of running jobs on a scheduler's HTTP server: its replies, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Scheduler
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

from elasticml.report.live import LiveJob
from elasticml.runtime.web.metrics import Reading, exposition, families
from elasticml.runtime.web.page import POLICY, READ_MAX, JobsPage, serve_page
from tests.unit.report.test_live import BEGUN, NAME, a_round

Get = Callable[..., Any]


def agent(records: list[dict[str, Any]], state: str = "running") -> Any:
    """What the page reads of a job."""
    journal = SimpleNamespace(story=records)
    return SimpleNamespace(
        record=SimpleNamespace(name=NAME), journal=journal, state=state, now_s=lambda: 20.0
    )


@asynccontextmanager
async def served(
    jobs: dict[str, Any], *, dashboard: bool = False, prefix: str = ""
) -> AsyncGenerator[Get]:
    """A scheduler with the page, and a function that asks it."""
    options = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0", "http_prefix": prefix}
    async with Scheduler(host="127.0.0.1", **options) as scheduler:
        page = serve_page(scheduler, jobs)
        port = scheduler.http_server.port

        async def get(path: str, **options: Any) -> HTTPResponse:
            url = f"http://127.0.0.1:{port}{path}"
            return await AsyncHTTPClient().fetch(url, raise_error=False, **options)

        yield get
        page.close()


def figures(response: HTTPResponse) -> dict[str, Any]:
    assert response.code == 200, response.body
    return json.loads(response.body)


@pytest.mark.asyncio
async def test_every_reply_has_a_policy_and_only_get_and_head_are_answered() -> None:
    async with served({"j": agent(BEGUN)}) as get:
        paths = ("", "/watch.js", "/watch.css", "/jobs.json", "/metrics", "/jobs.json?job=%3Cb%3E")
        for path in (f"/elasticml{path}" for path in paths):
            response = await get(path)
            assert response.code == 200, path
            assert response.headers["Content-Security-Policy"] == POLICY
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            head = await get(path, method="HEAD")
            assert (head.code, head.body) == (200, b"")
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                body = None if method in ("DELETE", "OPTIONS") else "x"
                assert (await get(path, method=method, body=body)).code == 405
        page = (await get("/elasticml")).body.decode()
        assert NAME not in page
        assert "http" not in page  # nothing comes from elsewhere
        slash = await get("/elasticml/", follow_redirects=False)
        assert (slash.code, slash.headers["Location"]) == (302, "../elasticml")


@pytest.mark.asyncio
async def test_figures_come_in_parts_and_not_at_all_without_news() -> None:
    records = [*BEGUN, *a_round(0, 1.0, 8.0)]
    async with served({"j": agent(records)}) as get:
        response = await get("/elasticml/jobs.json")
        whole = figures(response)
        assert whole["jobs"] == [["j", NAME, "running"]]
        assert (whole["shown"], whole["is_whole"], whole["now"]) == ("j", True, 20.0)
        query = f"/elasticml/jobs.json?job=j&since={whole['token']}"
        again = await get(query, headers={"If-None-Match": response.headers["Etag"]})
        assert (again.code, again.body) == (304, b"")


def test_a_job_that_is_gone_gives_way_to_the_last_that_runs() -> None:
    jobs = {"a": agent(BEGUN, "done"), "b": agent(BEGUN), "c": agent(BEGUN, "failed")}
    page = JobsPage(jobs)
    assert json.loads(page.reply("gone", "0.1.1.1")[1]())["shown"] == "b"
    assert json.loads(page.reply("c", "")[1]())["shown"] == "c"
    jobs.clear()
    assert json.loads(page.reply("c", "")[1]()) == {"jobs": []}


@pytest.mark.asyncio
async def test_the_first_scrape_shows_a_finished_job_with_a_long_story_as_finished() -> None:
    records = [*BEGUN, *(r for k in range(READ_MAX) for r in a_round(k, k, k + 1))]
    page = JobsPage({"j": agent(records, "done")})

    def samples() -> dict[str, float]:
        found = ((family, family.samples) for family in families(page.live_jobs()))
        return {family.name: values[0][1] for family, values in found if values}

    # The other figures would be those of an earlier round.
    assert samples() == {"elasticml_job_running": 0.0}
    async with asyncio.timeout(60):
        while len(found := samples()) == 1:
            await asyncio.sleep(0.01)
    assert (found["elasticml_job_running"], found["elasticml_job_round"]) == (0.0, READ_MAX)


@pytest.mark.asyncio
async def test_the_prefix_of_the_server_is_honoured_and_the_navigation_has_a_link() -> None:
    async with served({}, dashboard=True, prefix="a/b") as get:
        assert (await get("/a/b/elasticml")).code == 200
        assert (await get("/elasticml")).code == 404
        assert 'href="elasticml"' in (await get("/a/b/status")).body.decode()


def test_metrics_are_text_that_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    live = LiveJob("j")
    notice = {"t": 9.0, "event": "MemberNoticed", "member": "0.1", "grace_s": 30.0, "reason": "x"}
    live.read([*BEGUN, *a_round(0, 1.0, 8.0), notice])
    text = exposition(families([Reading(live=live, now_s=20.0, is_running=True)]))
    samples = {
        (s.name, s.labels.get("state")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert samples["elasticml_job_gap", None] == 1e-2
    assert samples["elasticml_job_members", "active"] == 1
    assert samples["elasticml_job_members", "leaving"] == 1
    assert samples["elasticml_job_drain_deadline_seconds", None] == 19.0
    assert samples["elasticml_job_worker_seconds_total", None] == 16.0


@pytest.mark.asyncio
async def test_dasks_own_metrics_have_the_jobs_and_lose_them_with_the_page() -> None:
    async with served({"j": agent([*BEGUN, *a_round(0, 1.0, 8.0)])}) as get:
        text = (await get("/metrics")).body.decode()
        assert "elasticml_job_objective{" in text
    from prometheus_client import REGISTRY, generate_latest

    assert b"elasticml_job" not in generate_latest(REGISTRY)
