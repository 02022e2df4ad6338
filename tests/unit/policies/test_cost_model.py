"""Constants of the cost and progress models are recovered from their own predictions."""

from __future__ import annotations

import math

import pytest

from elasticml.policies.inner_iterations import CostModel, Observed, best_inner, fit

TRUE = CostModel(outer_s=0.9, inner_s=0.1, theta=0.6, rho=0.8)


def observed(inner: float, certificates_s: float = 0.0) -> Observed:
    return Observed(
        inner=inner,
        seconds=TRUE.seconds(inner) + certificates_s,
        computed_s=inner * TRUE.inner_s + certificates_s,
        decades=TRUE.decades(inner),
    )


def test_rounds_cost_and_gain_what_the_paper_says():
    assert TRUE.seconds(4) == pytest.approx(0.9 + 0.4)
    assert TRUE.decades(4) == pytest.approx(-math.log10(1 - 0.8 * (1 - 0.6**4)))
    assert TRUE.rate(4) == TRUE.decades(4) / TRUE.seconds(4)


@pytest.mark.parametrize("inners", [(1, 4), (1, 2, 8), (2, 3, 4)])
def test_constants_are_fitted_from_two_values_or_more(inners):
    result = fit([observed(inner) for inner in inners])
    for name in ("outer_s", "inner_s", "theta", "rho"):
        assert getattr(result, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)


def test_certificates_cost_the_same_for_any_number_of_passes():
    result = fit([observed(inner, certificates_s=0.05) for inner in (1, 4)])
    assert result.inner_s == pytest.approx(TRUE.inner_s)
    assert result.outer_s == pytest.approx(TRUE.outer_s + 0.05)


def test_with_one_value_all_passes_are_assumed_to_gain_the_same():
    result = fit([observed(2)])
    assert result.decades(6) == pytest.approx(3 * TRUE.decades(2))


def test_one_exact_solution_needs_no_further_pass():
    exact = CostModel(outer_s=1.0, inner_s=0.0, theta=0.0, rho=1.0)
    assert exact.decades(1) == exact.decades(32) == 12.0
    assert best_inner(exact, (1, 2, 4), {}, 4) == 1


def test_the_best_value_is_the_fastest_within_reach():
    rates = {inner: TRUE.rate(inner) for inner in (1, 2, 4, 8, 16)}
    best = max(rates, key=rates.__getitem__)
    assert best == 4
    assert best_inner(TRUE, (1, 2, 4, 8, 16), {}, 16) == best
    assert best_inner(TRUE, (1, 2, 4, 8, 16), {}, 2) == 2


def test_measurements_take_precedence_over_the_model():
    assert best_inner(TRUE, (1, 2, 4, 8), {4: 0.0}, 8) != 4
    assert best_inner(TRUE, (1, 2, 4, 8), {8: 10.0}, 8) == 8


def test_noise_makes_no_pass_free_and_no_certificate_negative():
    falling = [
        Observed(inner=1, seconds=1.0, computed_s=0.2, decades=0.2),
        Observed(inner=2, seconds=1.0, computed_s=0.1, decades=0.3),
    ]
    assert fit(falling).inner_s > 0.0
    steep = [
        Observed(inner=1, seconds=1.0, computed_s=0.1, decades=0.2),
        Observed(inner=2, seconds=2.0, computed_s=0.4, decades=0.3),
    ]
    assert fit(steep).inner_s <= 0.2
