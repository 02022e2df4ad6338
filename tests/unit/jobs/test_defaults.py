"""Public functions have the defaults of the specification, which job files have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import elasticml as em
from elasticml.data.readers.npz import read_npz
from elasticml.data.synthetic.clusters import synthetic_clusters
from elasticml.data.synthetic.sparse import synthetic
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.specification import data
from elasticml.specification.algorithms import record_section, settings_from_section
from elasticml.specification.sections import JobOptions, default_stop
from elasticml.specification.settings_model import default_of

#: Each with the number of its defaults, so that a renamed setting is noticed.
FUNCTIONS: list[tuple[Callable[..., Any], Any, int]] = [
    (em.Job.__init__, JobOptions, 6),
    (em.from_arrays, data.ArraysSpec, 2),
    (em.read_converted, data.ChunksSpec, 1),
    (em.read_csv, data.CsvSpec, 17),
    (em.read_images, data.ImagesSpec, 6),
    (em.read_parquet, data.ParquetSpec, 14),
    (em.read_sequences, data.SequencesSpec, 7),
    (em.read_svmlight, data.SvmlightSpec, 3),
    (read_npz, data.NpzSpec, 2),
    (synthetic, data.SyntheticSpec, 4),
    (synthetic_clusters, data.SyntheticClustersSpec, 9),
    (synthetic_splice, data.SyntheticSpliceSpec, 5),
]


@pytest.mark.parametrize(("function", "kind", "count"), FUNCTIONS)
def test_a_function_has_the_defaults_of_the_specification(
    function: Callable[..., Any], kind: Any, count: int
) -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name in kind.model_fields and parameter.default is not parameter.empty
    }
    assert defaults == {name: default_of(kind, name) for name in defaults}
    assert len(defaults) == count


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
