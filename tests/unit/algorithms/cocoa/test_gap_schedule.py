"""The driver's small components: settings, the line search, the schedule of certificates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import Outcome
from elasticml.algorithms.cocoa.cocoa_exchanges import visit_counts
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule, smoothed_model
from elasticml.algorithms.cocoa.line_search import Aggregation, LineModel
from elasticml.algorithms.cocoa.trainer import make_trainer
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ExchangeId
from elasticml.specification.algorithms import CoCoA, absent_rule, settings_from_section
from tests.cocoa_reference import gains
from tests.serial_world import facts_of, split_rows

RNG = np.random.default_rng(8)
LOSSES = ("hinge", "squared_hinge", "logistic", "squared")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"l2": 0}, r"algorithm\.l2: got 0, wanted more than 0"),
        (
            {"loss": "smoothed_hinge"},
            r"\(there is hinge, squared_hinge, logistic, squared, huber, quantile\)",
        ),
        ({"gama": 1.0}, r"algorithm\.gama is not a setting; did you mean 'gamma'\?"),
        ({"gamma": 1.5}, r"algorithm\.gamma: got 1\.5, wanted at most 1"),
        ({"sigma": 0}, r"algorithm\.sigma: got 0, wanted more than 0 or auto"),
        ({"groups": 0}, r"algorithm\.groups: got 0, wanted at least 1 or auto"),
        ({"groups": 65}, r"algorithm\.groups: got 65, wanted at most 64 or auto"),
        ({"gap_every": 0}, r"algorithm\.gap_every: got 0, wanted at least 1"),
        ({"local_epochs": -1}, r"algorithm\.local_epochs: got -1"),
        ({"mode": "papers"}, r"did you mean 'paper'\? \(there is default, paper\)"),
        ({"mode": "paper", "aggregation": "line_search"}, r"mode: paper adds with a fixed gamma"),
        ({"loss": "squared", "class_weight": "balanced"}, r"loss: squared has no classes"),
    ],
)
def test_wrong_settings_are_one_line_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_from_section(CoCoA, settings)


def test_auto_and_an_ineffective_l1_equal_the_defaults() -> None:
    auto = {"sigma": "auto", "gap_every": "auto", "bucket": "auto", "name": "cocoa"}
    assert settings_from_section(CoCoA, auto) == settings_from_section(CoCoA, {})
    assert settings_from_section(CoCoA, {"mode": "paper"}).searches_line is False


def test_auto_reloads_absent_examples() -> None:
    assert [absent_rule("cocoa", rule) for rule in ("auto", "reload", "stall", "freeze")] == [
        "reload",
        "reload",
        "stall",
        "freeze",
    ]
    with pytest.raises(ConfigError, match="absent: got 'wait'"):
        absent_rule("cocoa", "wait")


def test_data_that_do_not_fit_the_settings_are_refused_before_anything_starts() -> None:
    X = RNG.normal(size=(12, 3))
    one = facts_of(split_rows(X, np.ones(12), 1)[0])
    three = facts_of(split_rows(X, np.arange(12) % 3.0, 1)[0])
    two = facts_of(split_rows(X, np.arange(12) % 2.0, 1)[0])
    with pytest.raises(DataError, match="wanted at least 2 distinct labels"):
        make_trainer({}, one, "auto")
    with pytest.raises(ConfigError, match="absent: got 'freeze' with 3 classes"):
        make_trainer({}, three, "freeze")
    with pytest.raises(ConfigError, match=r"warm_start\.coef has 2 numbers, wanted 3"):
        make_trainer({"warm_start": {"coef": [1.0, 2.0]}}, two, "auto")


# --- the line search --------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_the_dual_objective_along_a_step_is_never_overestimated(loss: str) -> None:
    from elasticml.algorithms.cocoa.line_search import sum_steps
    from elasticml.objectives.conjugates import dual_loss_named

    n, d, l2 = 30, 4, 0.1
    X, s = RNG.normal(size=(n, d)), RNG.uniform(0.5, 2.0, n)
    y = RNG.normal(size=n) if loss == "squared" else np.sign(RNG.normal(size=n))
    fold = 1.0 if loss == "squared" else y
    a, b = RNG.uniform(0.0, 1.0, (2, n))
    a[:3], b[2:5] = 0.0, 1.0
    dual = dual_loss_named(loss)
    step, sums = np.empty(n), np.zeros(2)
    sum_steps(dual.code, dual.box, a, b, y, s, np.empty(0), step, sums)
    total = float(s.sum())
    v, dv = (X.T @ (s * fold * c) / (l2 * total) for c in (a, step))
    along = LineModel.of(v, dv, dual=sums[0], curvature=sums[1], weight=total, l2=l2)

    def objective(gamma: float) -> float:
        w = v + gamma * dv
        return float(s @ gains(loss, a + gamma * step, y)) / total - 0.5 * l2 * float(w @ w)

    for gamma in np.linspace(0.0, 1.0, 21):
        true = objective(gamma) - objective(0.0)
        assert along.gain(gamma) <= true + 1e-12
        if loss != "logistic":
            assert along.gain(gamma) == pytest.approx(true, abs=1e-12)
    np.testing.assert_allclose(along.gain(1.0), objective(1.0) - objective(0.0), atol=1e-12)


def test_damping_grows_after_steps_that_were_too_long_and_shrinks_after_short_ones() -> None:
    start = Aggregation.of(settings_from_section(CoCoA, {}))
    assert start.length(LineModel(slope=3.0, curvature=2.0)) == 1.0
    assert start.length(LineModel(slope=1.0, curvature=2.0)) == 0.5
    assert start.length(LineModel(slope=-1.0, curvature=2.0)) == 0.0
    short, long = LineModel(slope=3.0, curvature=2.0), LineModel(slope=1.0, curvature=2.0)
    bolder = start.adapted(short, partitions=4.0)
    assert bolder.damping == pytest.approx(1.0 / 1.15)
    assert bolder.adapted(long, partitions=4.0).damping == 1.0
    for _ in range(40):
        bolder = bolder.adapted(short, partitions=4.0)
    assert bolder.damping == 0.25


def test_a_fixed_gamma_with_its_safe_sigma_does_not_adapt() -> None:
    fixed = Aggregation.of(settings_from_section(CoCoA, {"aggregation": "fixed", "gamma": 0.5}))
    assert (fixed.gamma, fixed.damping) == (0.5, 0.5)
    assert fixed.adapted(LineModel(slope=9.0, curvature=1.0), partitions=8.0) is fixed


# --- certificates ---------------------------------------------------------------------------------


def cadence(**settings: Any) -> GapSchedule:
    made = GapSchedule(**{"every": None, "target": 0.0, "rows": 100, **settings})
    made.certified(1.0)
    return made


def rounds_due(
    made: GapSchedule, gaps: dict[int, float], passes: int, visited: float = 100.0
) -> list[int]:
    """Return the rounds in which a certificate was due; their gaps are taken from ``gaps``."""
    results = []
    for number in range(1, passes + 1):
        made.passed(visited)
        if made.is_due():
            results.append(number)
            made.certified(gaps.get(number, 0.5))
    return results


def test_an_interval_of_n_certifies_every_nth_round() -> None:
    assert rounds_due(cadence(every=3), {}, 9) == [3, 6, 9]


def test_without_a_target_a_fifth_of_the_work_certifies() -> None:
    rounds = rounds_due(cadence(), {}, 60)
    # A certificate costs as much as half a pass.
    share = 0.5 * len(rounds) / (60 + 0.5 * len(rounds))
    assert 0.18 <= share <= 0.22


def test_passes_that_visit_few_rows_are_certified_less_often() -> None:
    assert rounds_due(cadence(), {}, 17, visited=10.0) == [1, 16]


def test_with_a_target_the_round_that_reaches_it_is_certified() -> None:
    exponential = {number: 0.5**number for number in range(1, 40)}
    rounds = rounds_due(cadence(target=0.5**13.5), exponential, 14)
    assert rounds[-1] == 14
    assert len(rounds) <= 6


def test_a_certificate_is_taken_when_passes_estimate_a_gap_near_the_target() -> None:
    assert certified_round(cadence(target=0.5**13.5, is_seldom=True)) == [8, 14]
    assert certified_round(cadence(target=0.5**13.5)) == [1, 6, 8, 10, 12, 14]


def certified_round(made: GapSchedule) -> list[int]:
    """Return in which of 14 passes that halve the gap a certificate was due."""
    results = []
    for number in range(1, 15):
        # The rows' contributions, measured as they are visited, are twice the gap that they leave.
        made.passed(100.0, gap_estimate=2.0 * 0.5**number)
        if made.is_due():
            results.append(number)
            made.certified(0.5**number)
    return results


def test_a_certificate_corrects_the_estimate_of_passes() -> None:
    made = cadence(target=0.01, is_seldom=True)
    made.passed(100.0, gap_estimate=0.01)
    assert made.is_due()
    made.certified(0.02)
    made.passed(100.0, gap_estimate=0.009)
    assert not made.is_due()
    made.passed(100.0, gap_estimate=0.004)
    assert made.is_due()


def test_the_hinge_loss_is_certified_at_a_mean_of_two_models() -> None:
    before, after = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    np.testing.assert_allclose(smoothed_model("hinge", after, before), [0.4, 0.6])
    assert smoothed_model("hinge", after, None) is after
    assert smoothed_model("logistic", after, before) is after


def test_the_lowest_primal_and_the_highest_dual_objective_give_the_gap() -> None:
    first = Certificate(primal=1.0, dual=0.2, v=np.zeros(1))
    later = Certificate(primal=1.5, dual=0.9, v=np.ones(1), is_bound=True)
    best = later.better(first)
    assert (best.primal, best.dual, best.v[0], best.is_bound) == (1.0, 0.9, 0.0, False)
    assert first.better(later).gap == pytest.approx(0.1)
    assert Certificate(primal=1.0, dual=1.0 + 1e-16, v=np.zeros(1)).gap == 0.0


# --- what a round reports of groups -------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "report"),
    [
        ({"groups": 3, "dampings": 3}, {}),
        ({"groups": 6, "dampings": 6}, {"groups": 6}),
        ({"on_cuda": 40}, {"on_cuda": 40}),
        ({"discarded": 2, "dampings": 2}, {"discarded": 2, "group_damping": 2 / 3}),
        # Nothing was undone in this round, but threads are still limited.
        ({"groups": 4, "dampings": 3}, {"groups": 4, "discarded": 0, "group_damping": 0.75}),
        ({"groups": 0, "dampings": 0}, {}),
    ],
)
def test_a_round_reports_groups_only_when_something_is_unusual(arrays, report) -> None:
    plain = {"visited": 50, "on_cuda": 0, "groups": 3, "dampings": 3, "discarded": 0}
    outcome = Outcome(
        exchange=ExchangeId(1),
        arrays={name: np.array(float(x)) for name, x in {**plain, **arrays}.items()},
        examples=50,
        absent_examples=0,
        members=3,
    )
    assert visit_counts(outcome) == {"visited": 50, **report}
