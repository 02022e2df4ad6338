"""The asynchronous SGD paper's figures as a user draws them, on toy sizes and in virtual time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.paper.drawn import STUDIES, drawn

pytestmark = pytest.mark.slow

FIGURES = ("1", "3", "4", "5", "6")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output of the study, the lines of its plots, and its folder."""
    out = tmp_path_factory.mktemp("asgd")
    return drawn("asgd.py", out, "--quick", "--figures", *"1345")


def rows_of(report: str, head: str) -> list[dict[str, str]]:
    """Read all tables with this head."""
    results: list[dict[str, str]] = []
    for part in report.split("\n\n"):
        lines = part.splitlines()
        if lines and lines[0] == head:
            names = head.split(" | ")
            results += [dict(zip(names, line.split(" | "), strict=True)) for line in lines[2:]]
    return results


SWEEP = (
    "network | b | ms | error | excess % | of the mean | merged | good | stalled | use of the card"
)
NETWORKS = (
    "network | b | samples a second / without messages | mean b | b / b_crit | stalled | "
    "use of the card"
)


def test_every_figure_is_a_plot_with_lines(study) -> None:
    text, figures, out = study
    assert tuple(figures) == FIGURES
    assert NETWORKS in text
    for name in FIGURES:
        assert (out / f"asgd-{name}.png").stat().st_size > 10_000
        assert "<svg" in (out / f"asgd-{name}.svg").read_text()
        for panel in figures[name]:
            assert all(math.isfinite(x) for line in panel["lines"].values() for x, _ in line)


def test_every_b_is_run_on_both_networks_and_no_more_messages_are_good_than_merged(study) -> None:
    rows = rows_of(study[0], SWEEP)
    ways = [(row["network"], row["b"]) for row in rows]
    fixed = [(n, b) for n in ("Gigabit Ethernet", "InfiniBand") for b in ("100", "1,000")]
    chosen = ["adaptiveB (paper)", "log-PI", "newest state, default"]
    assert ways == 2 * [*fixed, *(("Gigabit Ethernet", name) for name in chosen)]
    assert all(float(row["good"]) <= float(row["merged"]) for row in rows)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(STUDIES))
    from support import asgd_virtual

    return asgd_virtual


@pytest.fixture
def budget(virtual) -> Any:
    """The costs of one core as once measured: those of a busy machine would say anything."""
    from support.asgd_study import Budget

    def costs(*microseconds: float, message: int, state: int) -> Any:
        sample, batch, post, merge, one_pass = (1e-6 * x for x in microseconds)
        return virtual.MeasuredCosts(
            sample_s=sample,
            batch_s=batch,
            post_s=post,
            merge_s=merge,
            pass_s=one_pass,
            message_bytes=message,
            state_bytes=state,
        )

    measured = {
        "D=10, K=100, paper": costs(0.162, 24.7, 4.1, 6.3, 0.127, message=8064, state=8064),
        "D=100, K=100, paper, an eighth of the state": costs(
            0.754, 49.5, 14.6, 11.3, 0.691, message=9760, state=80_064
        ),
        "D=100, K=100, default, an eighth of the state": costs(
            0.82, 20.2, 15.9, 10.5, 0.694, message=9856, state=80_864
        ),
    }
    made = Budget(seeds=1, quick=True, measured=dict(measured))
    yield made
    assert made.measured == measured  # none was measured here


def test_small_batches_cost_more_on_gigabit_ethernet_than_on_infiniband(virtual, budget) -> None:
    from support.asgd_study import timed

    from examples.papers.support.nic_model import GIGABIT, INFINIBAND

    # A card of Gigabit Ethernet takes 1.1 ms for sixteen states of 8 kB.
    slow, fast = (
        timed(budget, virtual.MANY, link, 64, 16_000, batch=100).seconds
        for link in (GIGABIT, INFINIBAND)
    )
    assert slow > 1.5 * fast


def test_one_slot_for_the_newest_state_keeps_the_speed_that_a_blocking_queue_loses(budget) -> None:
    from support.asgd_sweeps import bandwidths

    rows = rows_of(bandwidths(budget), NETWORKS)
    networks = ("Gigabit / 10", "Gigabit Ethernet", "10 Gigabit", "InfiniBand")
    speed = {(r["network"], r["b"]): float(r["samples a second / without messages"]) for r in rows}
    assert all(speed[name, "newest state, default"] > 0.5 for name in networks)
    # A twentieth of the critical size: computing takes the time of the card and its own.
    assert speed["Gigabit / 10", "b = 500"] < 0.25
    # States that cannot be sent at once are skipped: a card with room sends one after every
    # mini-batch.
    use = {r["network"]: float(r["use of the card"]) for r in rows if "newest" in r["b"]}
    assert use["Gigabit / 10"] > 0.9 > use["InfiniBand"] > 0.0
