"""The package's public names exist, and nothing is loaded before it is used."""

import subprocess
import sys

import pytest

import elasticml


@pytest.mark.parametrize("name", elasticml.__all__)
def test_every_public_name_exists(name):
    assert getattr(elasticml, name) is not None


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        elasticml.nonsense


def loaded_by(statement):
    script = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_no_library():
    heavy = {"numpy", "numba", "distributed", "dask", "pydantic", "sklearn", "matplotlib", "rich"}
    assert loaded_by("import elasticml") & heavy == set()


def test_the_command_line_loads_no_library_before_it_has_a_command():
    heavy = {"numpy", "numba", "distributed", "dask", "pydantic", "sklearn", "matplotlib"}
    assert loaded_by("import elasticml.cli.main") & heavy == set()


def test_what_the_scheduler_loads_for_an_estimator_is_no_pandas():
    heavy = {"pandas", "pyarrow", "narwhals", "sklearn", "matplotlib"}
    assert loaded_by("import elasticml.estimators.dask_rows") & heavy == set()
