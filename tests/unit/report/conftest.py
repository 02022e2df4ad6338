"""Runs that the simulator wrote, as every reader of run directories gets them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.report.runs import write_certified_run, write_elastic_run


@pytest.fixture(scope="session")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with stand-ins and a test set; not to be changed."""
    return write_elastic_run(tmp_path_factory.mktemp("elastic") / "run")


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with gaps and decisions of policies; not to be changed."""
    return write_certified_run(tmp_path_factory.mktemp("certified") / "run")


@pytest.fixture
def path(elastic: Path, tmp_path: Path) -> Path:
    """A copy of the elastic run, to be changed."""
    shutil.copytree(elastic, tmp_path / "r", ignore=shutil.ignore_patterns("*.html"))
    return tmp_path / "r"
