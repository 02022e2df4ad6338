"""Public functions have the defaults of the specification, which job files have."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import elasticml as em
from elasticml.data.source import FILE_FORMATS, format_named
from elasticml.jobs.job_spec import OF_DATA, SECTIONS
from elasticml.specification.algorithms import record_section, settings_from_section
from elasticml.specification.sections import default_stop


def test_the_settings_of_job_files_are_the_arguments_of_a_job_and_documented() -> None:
    arguments = [*inspect.signature(em.Job).parameters]
    assert arguments[:2] == ["algorithm", "data"]
    assert {*arguments} == {*SECTIONS, *OF_DATA}
    for key in arguments:
        assert f"\n{key} : " in em.Job.__doc__


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_every_option_of_a_format_is_an_argument_of_its_reader_and_documented(name: str) -> None:
    kind = format_named(name)
    function = getattr(importlib.import_module(kind.__module__), kind.reader)
    arguments = inspect.signature(function).parameters
    options = {key: field for key, field in kind.model_fields.items() if field.repr}
    assert set(arguments) == set(options)
    for key, field in options.items():
        assert f"\n{key} : " in function.__doc__
        assert field.is_required() or arguments[key].default == field.default


@pytest.mark.parametrize("kind", [em.BatchGradient, em.CoCoA])
def test_a_job_fits_an_intercept_and_has_a_tolerance(kind: Any) -> None:
    section = record_section(kind(), seed=0)
    assert (section["intercept"], section["tolerance"]) == (True, None)
    settings = settings_from_section(kind, section)
    assert (settings.intercept, settings.tolerance) == (True, None)
    section = record_section(kind(mode="paper"), seed=0)
    assert (section["intercept"], section["tolerance"]) == (False, 0.0)
    section = record_section(kind(mode="paper", intercept=True, tolerance=0.1), seed=0)
    assert (section["intercept"], section["tolerance"]) == (True, 0.1)
    assert record_section(kind(), seed=0, has_target=True)["tolerance"] == 0.0
    assert record_section(kind(tolerance=0.1), seed=0, has_target=True)["tolerance"] == 0.1


def test_only_linear_models_of_asynchronous_sgd_have_an_intercept() -> None:
    assert em.AsyncSGD("linear").intercept
    assert not em.AsyncSGD("linear", mode="paper").intercept
    assert not em.AsyncSGD(k=2).intercept


def test_a_stop_rule_always_ends_the_job() -> None:
    assert em.Stop(gap=1e-3).rounds == em.Stop().rounds == 1000
    assert em.Stop(seconds=1.0).rounds is None
    assert default_stop(em.CoCoA()).rounds == 1000
    assert default_stop(em.AsyncSGD(k=2)).rounds == 100


@pytest.mark.parametrize(
    ("values", "optimizer"),
    [({}, "lbfgs"), ({"mode": "paper"}, "gd"), ({"mode": "paper", "optimizer": "tron"}, "tron")],
)
def test_the_default_optimizer_is_lbfgs_and_the_papers_is_gradient_descent(
    values: dict[str, Any], optimizer: str
) -> None:
    assert em.BatchGradient(**values).chosen_optimizer == optimizer
