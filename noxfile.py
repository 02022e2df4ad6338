"""Lanes: the tests with locked, lowest and newest dependencies, the docs, lint. ``make lanes``.

``nox`` lists them; ``nox -s lowest -- tests/unit/cli`` runs some tests in one.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "tests"]

PYTHONS = ("3.11", "3.12", "3.13")
ROOT = Path(__file__).parent

#: As in the Makefile: extras without which tests are skipped.
TEST_EXTRAS = "dashboard,export,mlflow,pandas,prometheus,tensorboard,wandb,yarn"

#: What the lanes run unless the command line names tests: every room, and real processes, in ten
#: minutes on two cores.
LANE = (
    "tests/unit",
    "tests/sim",
    "tests/cluster/test_local_cluster.py",
    "tests/cluster/test_estimators.py",
    "tests/cluster/test_run_command.py",
    "tests/cluster/test_resume.py",
    "tests/cluster/test_from_dask.py",
)


def run_tests(session: nox.Session, *default: str) -> None:
    """Run the tests named on the command line, else the default ones, in two processes."""
    session.run("uv", "pip", "check", external=True)
    session.run(
        *("python", "-m", "pytest", "-n", "2", "--dist", "loadscope", "-m", "not slow", "-q"),
        *(session.posargs or default),
        env={name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")},
    )


def install(session: nox.Session, *options: str) -> None:
    """Install elasticml with the extras of the tests and the tools that run them."""
    session.run_install(
        *("uv", "pip", "install", "--quiet", "--compile-bytecode", *options),
        *("--editable", f".[{TEST_EXTRAS}]", "--group", "test"),
        external=True,
    )


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests with the dependencies of uv.lock."""
    extras = [word for name in TEST_EXTRAS.split(",") for word in ("--extra", name)]
    session.run_install(
        *("uv", "sync", "--locked", "--quiet", "--no-default-groups", "--group", "test", *extras),
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        external=True,
    )
    run_tests(session, *LANE)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest versions that pyproject.toml allows."""
    install(session, "--resolution", "lowest-direct")
    run_tests(session, *LANE)


@nox.session(python=PYTHONS[-1])
def newest(session: nox.Session) -> None:
    """Run the tests with the newest versions, pre-releases included where there is no release."""
    install(session, "--upgrade")
    run_tests(session, *LANE)


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Check format and rules."""
    session.run_install("uv", "pip", "install", "--quiet", "--group", "lint", external=True)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session(python=PYTHONS[0])
def docs(session: nox.Session) -> None:
    """Build the documentation with its own environment."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    if "docs" not in groups:
        session.skip("pyproject.toml has no group docs")
    session.run(
        "make", "docs", f"VENV={session.virtualenv.location}", external=True, env=os.environ
    )
