"""The page of running jobs in a real browser, with real workers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.jobs.handle import page_url
from elasticml.report.run_page import write_report
from tests.browser import browser
from tests.unit.report.runs import write_elastic_run
from tests.waiting import until

pytestmark = pytest.mark.cluster

#: Red of the palette on a light page.
RED = "rgb(194, 84, 0)"
NAME = "<img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="module")
def driver() -> Generator[Any]:
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def cluster() -> Generator[em.LocalCluster]:
    with em.LocalCluster(2, algorithms=["batch_gradient"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: em.LocalCluster) -> Generator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client


def start(client: Client, name: str) -> em.Handle:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 20))
    data = em.from_arrays(X, (X[:, 0] + rng.normal(size=2000) > 0).astype(float))
    algorithm = em.BatchGradient(
        l2=1e-3, optimizer="gd", step="constant", intercept=False, tolerance=0.0, scale="none"
    )
    return em.Job(algorithm, data, name=name, stop=em.Stop(rounds=1_000_000)).start(client)


@contextmanager
def window(driver: Any, width: int, height: int) -> Generator[None]:
    """Let pages have a size for a while."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def select(driver: Any, selector: str) -> list[Any]:
    return driver.find_elements("css selector", selector)


def shown(driver: Any, selector: str) -> str:
    """The text of the first element, read in one step: the page may replace it meanwhile."""
    script = "const e = document.querySelector(arguments[0]); return e ? e.textContent : ''"
    return driver.execute_script(script, selector)


def style(driver: Any, selector: str, name: str) -> str:
    script = (
        "const e = document.querySelector(arguments[0]);"
        "return e ? getComputedStyle(e)[arguments[1]] : ''"
    )
    return driver.execute_script(script, selector, name)


def curve(driver: Any) -> str:
    script = "return document.querySelector('#objective .curve')?.getAttribute('d') ?? ''"
    return driver.execute_script(script)


def test_the_page_follows_a_job_through_a_kill(
    driver: Any, cluster: em.LocalCluster, client: Client
) -> None:
    handle = start(client, NAME)
    driver.get(str(page_url(client, handle.job_id)))
    until(lambda: shown(driver, "#state") == "running", "the job on the page")
    # A name is text.
    assert shown(driver, "#name") == NAME
    assert select(driver, "img") == []
    assert driver.title.startswith("<img src=x")
    # Curves move.
    before = until(lambda: curve(driver), "a curve")
    until(lambda: curve(driver) not in ("", before), "a curve that moves")
    assert shown(driver, "#cards").startswith("objective")
    # A killed member turns red.
    until(lambda: len(select(driver, ".member.active")) == 2, "two members")
    victim = cluster.workers()[1].name
    cluster.lose([victim], how="kill")
    until(lambda: select(driver, ".member.lost"), "a lost member")
    until(lambda: style(driver, ".member.lost .bar span", "backgroundColor") == RED, "a red member")
    until(lambda: "lost" in shown(driver, "#events"), "the event")
    # A second job is in the list, under its name, and is shown after a click.
    other = start(client, "second")
    until(lambda: len(select(driver, "#jobs a")) == 2, "two jobs")
    driver.execute_script("document.querySelectorAll('#jobs a')[0].click()")
    until(lambda: shown(driver, "#name") == "second", "the other job")
    other.cancel()
    until(lambda: shown(driver, "#state") == "cancelled", "its end")
    handle.cancel()
    # Nothing broke the policy of the page, and no script failed.
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_the_page_fits_its_window_and_its_ticks_differ(driver: Any, client: Client) -> None:
    handle = start(client, "narrow")
    driver.get(str(page_url(client, handle.job_id)))
    until(lambda: handle.status().round > 300, "an objective that hardly changes")
    element = "document.documentElement"
    for width in (390, 1300):
        with window(driver, width, 900):
            driver.refresh()
            until(lambda: curve(driver), "a curve")
            script = f"return {element}.scrollWidth - {element}.clientWidth"
            assert driver.execute_script(script) == 0
            script = (
                "return [...document.querySelectorAll('#objective text[text-anchor=end]')]"
                ".map((e) => e.textContent)"
            )
            ticks = driver.execute_script(script)
            assert len(ticks) == len(set(ticks)) > 1
    handle.cancel()
    script = "return ticks(...range([2.5, 2.5 + arguments[0]], [0, 1], false, false, null), 5)"
    for rise in (0.0, 4e-16, 1e-9, 1e-6, 0.003, 1.0):
        marks = driver.execute_script(script, rise)
        assert len(marks) == len(set(marks)) > 1


def test_a_notebook_shows_the_same_job(client: Client) -> None:
    handle = start(client, NAME)
    until(lambda: handle.status().round > 3, "rounds")
    html = handle._repr_html_()
    assert "&lt;img src=x" in html
    assert "<img" not in html
    assert "<svg" in html
    handle.cancel()
    html = handle.result()._repr_html_()
    assert "cancelled" in html
    assert "<img" not in html


def test_the_lanes_of_a_report_zoom_and_it_fits_a_phone(driver: Any, tmp_path: Path) -> None:
    page = write_report(write_elastic_run(tmp_path / "r"))
    picture = (
        "const c = document.querySelector('#lanes-zoom canvas');"
        "return c.style.height ? c.toDataURL() : ''"
    )
    drawn = [""]

    def is_drawn_differently() -> bool:
        now = driver.execute_script(picture)
        is_new = now not in ("", drawn[-1])
        drawn.extend([now] if is_new else [])
        return is_new

    with window(driver, 390, 800):
        driver.get(page.as_uri())
        until(is_drawn_differently, "the lanes")
        assert driver.execute_script("return document.getElementById('lanes-plot').open") is False
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        for selector in ('[data-key="+"]', "[data-from]"):
            driver.execute_script(f"document.querySelector('{selector}').click()")
            until(is_drawn_differently, "the lanes after a click")
        driver.execute_script("document.querySelector('[data-key=\"0\"]').click()")
        until(lambda: driver.execute_script(picture) == drawn[1], "the whole run")
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
