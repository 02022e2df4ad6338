"""Every public name is documented: its group in the reference, parameters, a tested example."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.specification.settings_model import SettingsModel

ROOT = Path(__file__).resolve().parents[1]
NAMES = [name for name in em.__all__ if name != "__version__"]
#: Methods that make what they belong to.
METHODS = ["Job.attach", "Job.from_file", "Job.resume", "Result.load"]
#: The modules of public names, and the names.
MODULES = {
    "callbacks": ("Callback", "MLflowCallback", "TensorBoardCallback", "WandbCallback"),
    "errors": (
        "ConfigError",
        "DataError",
        "ElasticmlError",
        "JobFailedError",
        "NotEnoughMembersError",
        "ProtocolError",
        "SubmissionError",
    ),
    "settings": ("Checkpoint", "Collective", "Evaluate", "Members"),
    "policies": [name for name in vars(em.policies) if name[0].isupper()],
}
WITHIN = [f"{module}.{name}" for module, names in MODULES.items() for name in names]
#: Examples that nothing here can run: they need a Hadoop, PyTorch, a notebook.
NOT_RUN = {"YarnCluster", "LocalSGD", "watch"}


def docstring(name: str) -> str:
    """Return the docstring of a public name, or of a method of one."""
    return inspect.getdoc(attrgetter(name)(em)) or ""


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Any]]:
    """Yield the names that the examples share, as the reference shows them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = np.where(X[:, 0] - X[:, 1] + rng.normal(size=200) > 0, 1.0, -1.0)
    with em.LocalCluster(workers=2) as cluster, Client(cluster.scheduler_address) as client:
        names = {"np": np, "em": em, "Client": Client, "client": client, "X": X, "y": y}
        yield {**names, "stop": em.Stop(rounds=3)}


@pytest.mark.cluster
@pytest.mark.parametrize("name", [*NAMES, *METHODS, *WITHIN])
def test_the_example_of_a_public_name_runs(name, shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(docstring(name), dict(shared), name, None, None)
    assert example.examples, f"{name} has no example"
    skipped = [part for part in example.examples if doctest.SKIP in part.options]
    assert bool(skipped) == (name in NOT_RUN)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=flags)
    assert runner.run(example, out=report.append).failed == 0, "".join(report)


def described_lines(text: str) -> list[str]:
    """Return the lines of a docstring that name parameters or attributes."""
    sections = re.findall(
        r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=\n\n\S[^\n]*\n-+\n|\Z)",
        text,
        re.DOTALL | re.MULTILINE,
    )
    return [line for part in sections for line in part.splitlines() if line[:1].strip()]


@pytest.mark.parametrize("name", [*NAMES, *METHODS, *WITHIN])
def test_every_parameter_of_a_public_name_is_documented(name):
    value = attrgetter(name)(em)
    if inspect.ismodule(value) or (inspect.isclass(value) and is_documented_otherwise(value)):
        return
    described = {
        word.strip().lstrip("*")
        for line in described_lines(docstring(name))
        for word in line.partition(" : ")[0].split(",")
    }
    assert set(inspect.signature(value).parameters) - described == set()


def is_documented_otherwise(kind: type) -> bool:
    """Whether the reference takes the parameters of a class from its fields or its base."""
    is_dataclass = hasattr(kind, "__dataclass_fields__")
    return issubclass(kind, SettingsModel | Exception) or is_dataclass


def test_the_reference_has_a_group_for_every_public_name():
    tree = ast.parse((ROOT / "docs" / "extensions" / "generated_reference.py").read_text())
    (groups,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "GROUPS"
    )
    wanted = [*(name for name in em.__all__ if name not in MODULES), *WITHIN]
    assert sorted(" ".join(groups.values()).split()) == sorted(wanted)
