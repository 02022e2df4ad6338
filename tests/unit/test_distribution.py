"""The package's metadata, lock and changelog: what an index checks, and what must agree."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from elasticml.ids import VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]


def test_an_index_accepts_the_metadata():
    # The installed metadata; a build in the checkout leaves older ones, as PKG-INFO.
    found = [entry.read_text("METADATA") for entry in distributions(name="elasticml")]
    (text,) = [text for text in found if text]
    # Raises for every field that is unknown, malformed, or newer than the metadata's version.
    metadata = Metadata.from_email(text, validate=True)
    assert (metadata.name, str(metadata.version)) == ("elasticml", VERSION)
    assert metadata.license_expression == "BSD-3-Clause"
    assert metadata.requires_python == SpecifierSet(">=3.11")
    assert metadata.description_content_type == "text/markdown"
    assert "Operating System :: POSIX :: Linux" in metadata.classifiers


def test_no_dependency_of_a_developer_is_an_extra():
    extras = {name for name in PROJECT["project"]["optional-dependencies"]}
    assert extras & {"test", "dev", "docs", "lint"} == set()


def test_every_dependency_has_a_lower_bound_and_is_locked():
    locked = {
        package["name"]: package
        for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    for requirement in requirements():
        assert any(s.operator == ">=" for s in requirement.specifier), requirement
        name = requirement.name.lower()
        assert name in locked, f"{name} is not in uv.lock; run: uv lock"
        assert locked[name]["version"] in requirement.specifier


def test_the_lock_names_the_public_index_alone():
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_citation_and_the_changelog_name_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    assert len(citation["references"]) == 5
    assert f"\n## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()


def test_a_wheel_without_the_agent_is_not_built(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("build_hook", ROOT / "setup.py")
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    monkeypatch.setattr(hook, "JAR", tmp_path / "elasticml-agent.jar")
    assert hook.is_stale()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(hook.SetupError, match="install Maven and a JDK"):
        hook.build_agent()
