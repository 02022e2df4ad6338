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
from elasticml.specification.sections import JobOptions
from elasticml.specification.settings_model import default_of

#: Each with the number of its defaults, so that a renamed setting is noticed.
FUNCTIONS: list[tuple[Callable[..., Any], Any, int]] = [
    (em.Job.__init__, JobOptions, 6),
    (em.from_arrays, data.ArraysSpec, 2),
    (em.read_converted, data.ChunksSpec, 1),
    (em.read_csv, data.CsvSpec, 15),
    (em.read_images, data.ImagesSpec, 6),
    (em.read_parquet, data.ParquetSpec, 13),
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
