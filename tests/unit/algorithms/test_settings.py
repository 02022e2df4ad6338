"""Settings of algorithms: one-line errors that name the setting and what is wanted instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elasticml.algorithms.registry import algorithm
from elasticml.errors import ConfigError
from elasticml.specification.algorithms import LocalSGD, absent_rule, settings_from_section


@pytest.mark.parametrize(
    ("name", "rules", "refused"),
    [
        ("cocoa", {"auto": "reload", "freeze": "freeze", "stall": "stall"}, "taylor"),
        ("primal_cocoa", {"auto": "reload", "freeze": "freeze"}, "taylor"),
        ("batch_gradient", {"taylor": "taylor", "ignore": "ignore"}, "freeze"),
        ("async_sgd", {"auto": "reload", "ignore": "ignore"}, "taylor"),
        ("local_sgd", {"auto": "reload", "ignore": "ignore", "stall": "stall"}, "taylor"),
    ],
)
def test_rules_for_absent_examples_are_those_that_the_algorithm_can_follow(
    name: str, rules: dict[str, str], refused: str
) -> None:
    assert {rule: absent_rule(name, rule) for rule in rules} == rules
    with pytest.raises(ConfigError, match=f"{name} cannot follow"):
        absent_rule(name, refused)
    with pytest.raises(ConfigError, match="absent: got 'wait'"):
        absent_rule(name, "wait")


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(ConfigError, match="'sgd', wanted one of async_sgd, batch_gradient"):
        algorithm("sgd")


def test_the_defaults_of_local_sgd_are_the_papers() -> None:
    paper = {"batch": 8, "local_steps": 16, "learning_rate": 5e-4, "momentum": 0.9}
    section = {**paper, "rate_rule": "sqrt", "model": "cnn"}
    assert settings_from_section(LocalSGD, {}) == settings_from_section(LocalSGD, section)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import elasticml as em
from elasticml.algorithms.registry import algorithm
from elasticml.data.readers.arrays import from_arrays
assert em.CoCoA().name == "cocoa"
assert algorithm("local_sgd").name == "local_sgd"
try:
    em.LocalSGD()
except em.errors.ConfigError as error:
    print(error)
"""


def test_without_torch_only_local_sgd_fails_and_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (line,) = done.stdout.splitlines()
    assert "needs PyTorch" in line
    assert "pip install '.[torch]'" in line
