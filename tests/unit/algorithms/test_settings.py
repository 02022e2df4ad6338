"""Settings of algorithms: one-line errors that name the setting and what is wanted instead."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from elasticml.algorithms.registry import algorithm
from elasticml.errors import ConfigError
from elasticml.specification.algorithms import (
    ALGORITHMS,
    LocalSGD,
    absent_rule,
    settings_from_section,
)

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("cocoa", {"groups": 65}, r"algorithm\.groups: got 65, wanted at most 64 or auto"),
    ("cocoa", {"mode": "papers"}, r"did you mean 'paper'\? \(there is default, paper\)"),
    ("cocoa", {"mode": "paper", "aggregation": "line_search"}, "adds with a fixed gamma"),
    ("cocoa", {"loss": "squared", "class_weight": "balanced"}, "loss: squared has no classes"),
    ("batch_gradient", {"l2": "big"}, r"algorithm\.l2: got 'big', wanted a finite number"),
    ("batch_gradient", {"step": "exact"}, r"\(there is line_search, constant, decay\)"),
    ("batch_gradient", {"loss": "squared", "class_weight": "balanced"}, "squared has no classes"),
    ("batch_gradient", {"class_weight": {"7": 0}}, "every weight must be more than 0"),
    ("primal_cocoa", {"l1": 0.0}, "l1: got 0, wanted a penalty"),
    ("primal_cocoa", {"loss": "hinge"}, "loss: got 'hinge'"),
    ("async_sgd", {}, "k: is missing, wanted a number of clusters"),
    ("async_sgd", {"k": 3, "batch": "often"}, "batch: got 'often'"),
    ("async_sgd", {"k": 3, "rate": 0.5}, "wanted none: a centre's step is 1/mass"),
    ("async_sgd", {"k": 3, "rate": 2.0, "mode": "paper"}, "wanted at most 1 for K-Means"),
    ("async_sgd", {"problem": "linear", "k": 3}, "it belongs to problem: kmeans"),
    ("async_sgd", {"problem": "kmean", "k": 3}, "did you mean 'kmeans'"),
    ("async_sgd", {"problem": "linear", "mode": "batch"}, "wanted problem: kmeans"),
    ("async_sgd", {"k": 3, "mode": "batch", "batch": 9}, "wanted none: mode: batch sends"),
    ("async_sgd", {"k": 3, "mode": "batch", "passes": 1.5}, "passes: got 1.5, wanted a whole"),
    ("async_sgd", {"k": 3, "mode": "batch", "slots": 2}, "slots: got 2, wanted .*mode: "),
    ("async_sgd", {"k": 3, "batch": "inf", "sends": 2}, "sends: got 2, wanted .*batch: "),
    ("local_sgd", {"model": "resnet"}, "got 'resnet', wanted cnn, or an import path"),
    ("local_sgd", {"loss": "my loss:f"}, "got 'my loss:f', wanted cross_entropy or mse"),
    ("local_sgd", {"shape": "28x28"}, r"algorithm\.shape: got '28x28', wanted a list"),
    ("local_sgd", {"normalize": "maxabs"}, "wanted auto or none or a list"),
    ("local_sgd", {"normalize": [0, 0]}, r"normalize\[1\]: got 0, wanted more than 0"),
    ("local_sgd", {"model_options": [3]}, "model_options: got .*, wanted a mapping"),
]


@pytest.mark.parametrize(("name", "section", "message"), WRONG)
def test_a_wrong_setting_is_one_line_that_names_it(
    name: str, section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings_from_section(ALGORITHMS[name], section)
    assert caught.value.message.startswith("algorithm.")
    assert "\n" not in caught.value.message


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
except em.ConfigError as error:
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
