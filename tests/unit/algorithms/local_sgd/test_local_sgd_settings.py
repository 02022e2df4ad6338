"""Settings of local SGD: valid values, and one-line errors for the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elasticml.algorithms.local_sgd.local_sgd_settings import (
    LocalSGDSettings,
    read_absent,
    read_settings,
)
from elasticml.errors import ConfigError

PAPER = LocalSGDSettings(
    batch=8, local_steps=16, learning_rate=5e-4, momentum=0.9, rate_rule="sqrt", model="cnn"
)


def test_the_defaults_are_the_papers():
    assert read_settings({"name": "local_sgd"}) == PAPER


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"batches": 8}, "algorithm.batches is unknown .*did you mean 'batch'"),
        ({"batch": 0}, "algorithm.batch is 0, wanted a whole number of at least 1"),
        ({"local_steps": 1.5}, "algorithm.local_steps is 1.5, wanted a whole number"),
        ({"learning_rate": 0}, "algorithm.learning_rate is 0, wanted a number above 0"),
        ({"learning_rate": "fast"}, "algorithm.learning_rate is 'fast', wanted a number"),
        ({"momentum": 1.0}, "algorithm.momentum is 1.0, wanted a number of at least 0 and below 1"),
        ({"holdout": 1.0}, "algorithm.holdout is 1.0, wanted .* below 1"),
        ({"rate_rule": "cube"}, "algorithm.rate_rule is 'cube', wanted one of sqrt, linear"),
        ({"model": "resnet"}, "algorithm.model is 'resnet', wanted cnn, or an import path"),
        ({"loss": "my loss:f"}, "algorithm.loss is 'my loss:f', wanted cross_entropy or mse"),
        ({"shape": "28x28"}, "algorithm.shape is '28x28', wanted sizes such as"),
        ({"shape": [1, 0]}, "algorithm.shape is 0, wanted a whole number of at least 1"),
        ({"normalize": "maxabs"}, "algorithm.normalize is 'maxabs', wanted auto, none, or mean"),
        ({"normalize": [0, 0]}, "algorithm.normalize is .*, wanted a standard deviation above 0"),
        ({"model_options": [3]}, "algorithm.model_options is .*, wanted a mapping"),
        ({"device": "tpu"}, "algorithm.device is 'tpu', wanted one of auto, cpu, cuda"),
    ],
)
def test_a_wrong_setting_is_named(raw, text):
    with pytest.raises(ConfigError, match=text):
        read_settings(raw)


def test_absent_examples_are_reloaded_unless_the_job_says_otherwise():
    assert [read_absent(a) for a in ("auto", "reload", "ignore", "stall")] == [
        "reload",
        "reload",
        "ignore",
        "stall",
    ]
    with pytest.raises(ConfigError, match="algorithm local_sgd cannot follow"):
        read_absent("taylor")


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
    assert "pip install 'elasticml[torch]'" in line
