"""Settings of local SGD: valid values, and one-line errors for the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elasticml.errors import ConfigError
from elasticml.specification.algorithms import LocalSGD, absent_rule, settings_from_section

PAPER = {
    "batch": 8,
    "local_steps": 16,
    "learning_rate": 5e-4,
    "momentum": 0.9,
    "rate_rule": "sqrt",
    "model": "cnn",
}


def test_the_defaults_are_the_papers():
    assert settings_from_section(LocalSGD, {}) == settings_from_section(LocalSGD, PAPER)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"batches": 8}, "algorithm.batches is not a setting; did you mean 'batch'"),
        ({"batch": 0}, "algorithm.batch: got 0, wanted at least 1"),
        ({"local_steps": 1.5}, "algorithm.local_steps: got 1.5, wanted a whole number"),
        ({"learning_rate": 0}, "algorithm.learning_rate: got 0, wanted more than 0"),
        ({"learning_rate": "fast"}, "algorithm.learning_rate: got 'fast', wanted a finite number"),
        ({"momentum": 1.0}, "algorithm.momentum: got 1.0, wanted less than 1"),
        ({"holdout": 1.0}, "algorithm.holdout: got 1.0, wanted less than 1"),
        ({"rate_rule": "cube"}, "algorithm.rate_rule: got 'cube' \\(there is sqrt, linear"),
        ({"model": "resnet"}, "algorithm.model: got 'resnet', wanted cnn, or an import path"),
        ({"loss": "my loss:f"}, "algorithm.loss: got 'my loss:f', wanted cross_entropy or mse"),
        ({"shape": "28x28"}, "algorithm.shape: got '28x28', wanted a list"),
        ({"shape": [1, 0]}, r"algorithm.shape\[1\]: got 0, wanted at least 1"),
        (
            {"normalize": "maxabs"},
            "algorithm.normalize: got 'maxabs', wanted auto or none or a list",
        ),
        ({"normalize": [0, 0]}, r"algorithm.normalize\[1\]: got 0, wanted more than 0"),
        ({"model_options": [3]}, "algorithm.model_options: got .*, wanted a mapping"),
        ({"device": "tpu"}, "algorithm.device: got 'tpu'.*there is auto, cpu, cuda"),
    ],
)
def test_a_wrong_setting_is_named(raw, text):
    with pytest.raises(ConfigError, match=text):
        settings_from_section(LocalSGD, raw)


def test_absent_examples_are_reloaded_unless_the_job_says_otherwise():
    assert [absent_rule("local_sgd", a) for a in ("auto", "reload", "ignore", "stall")] == [
        "reload",
        "reload",
        "ignore",
        "stall",
    ]
    with pytest.raises(ConfigError, match="algorithm local_sgd cannot follow"):
        absent_rule("local_sgd", "taylor")


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
