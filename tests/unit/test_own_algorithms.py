"""Tools for users' own algorithms: a local run, the checks, test metrics, places of errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

import elasticml as em
from elasticml.errors import error_from_dict, error_to_dict, fault_of
from examples.huber import HUBER
from tests.broken_algorithms import DIVIDES

SETTINGS = {"delta": 1.0, "step": 0.5}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 4))
    y = X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * rng.standard_normal(240)
    y[::20] += 50.0
    return em.from_arrays(X, y)


def imported(attribute):
    return em.ImportedAlgorithm(name=f"tests.broken_algorithms:{attribute}", **SETTINGS)


def test_a_local_run_reaches_the_huber_estimate(data):
    run = em.testing.run_here(HUBER, data, settings=SETTINGS, rounds=200, members=3)

    assert len(run.history) == 200
    assert run.model is not None
    np.testing.assert_allclose(run.arrays["w"], [1.0, -2.0, 0.5, 0.0], atol=0.1)


def test_three_solvers_sum_to_what_one_computes(data):
    one, three = (
        em.testing.run_here(HUBER, data, settings=SETTINGS, rounds=5, members=n).arrays["w"]
        for n in (1, 3)
    )

    np.testing.assert_allclose(one, three, rtol=1e-12)


def test_an_exception_in_a_local_run_is_raised_as_it_is(data):
    with pytest.raises(ZeroDivisionError):
        em.testing.run_here(DIVIDES, data, settings=SETTINGS)


def test_the_huber_example_keeps_all_rules(data):
    checks = em.testing.check_algorithm(
        em.ImportedAlgorithm(name="examples.huber:HUBER", **SETTINGS), data
    )

    assert [check.problem for check in checks] == [""] * 8
    assert re.search(r"[23] members lost; last objective \d\S*, undisturbed \d", str(checks[5]))


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("REMEMBERS", "a fresh solver with the same chunks and states returns another g"),
        ("SHAPE", r"'loss' has shape \(1,\), wanted \(\)"),
        ("MODEL", r"compute changes work.model\['w'\]"),
        ("CHUNKS", r"compute of no chunks failed: ValueError: no rows \(broken_algorithms.py:"),
        ("GAP", "none is below .* by its gap, and another has"),
        ("RESUME", "the model differs 1 rounds after the checkpoint"),
    ],
)
def test_a_broken_rule_is_named(data, attribute, says):
    with pytest.raises(AssertionError, match=says):
        em.testing.check_algorithm(imported(attribute), data)


def test_test_data_are_refused_for_an_algorithm_that_cannot_be_scored(data):
    job = em.Job(imported("MUTE"), data, test=data)
    with pytest.raises(em.errors.ConfigError, match=r"data\.test: algorithm .* has no predict"):
        job.check_data()


def test_a_fault_names_the_users_line_and_carries_the_traceback():
    try:
        np.asarray([1.0]).reshape(2, 2)
    except ValueError as error:
        fault = fault_of(error, "member 1.0", member="1.0")

    assert fault.message.startswith("member 1.0 failed: ValueError: cannot reshape")
    assert "test_own_algorithms.py:" in fault.message
    assert fault.message.endswith("in test_a_fault_names_the_users_line_and_carries_the_traceback)")
    again = error_from_dict(error_to_dict(fault))
    assert again.member == "1.0"
    assert "Traceback (most recent call last)" in again.__notes__[0]
