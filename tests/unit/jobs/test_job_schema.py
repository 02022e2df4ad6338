"""The JSON schema of job files agrees with what elasticml accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from elasticml.cli.main import elasticml
from elasticml.data.source import FILE_FORMATS
from elasticml.jobs.job_schema import job_schema
from elasticml.jobs.job_spec import SECTIONS, JobSpec
from elasticml.policies.registry import POLICIES
from elasticml.specification.algorithms import ALGORITHMS
from elasticml.specification.sections import CLUSTERS

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = job_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MINIMAL = {"data": {"format": "svmlight", "path": "a.svm"}, "algorithm": {"name": "cocoa"}}


def as_json(job):
    """Return a job file as an editor sees it: keys are text, and 1e-4 is a number (YAML 1.2)."""

    def read(value):
        if isinstance(value, dict):
            return {str(key): read(item) for key, item in value.items()}
        if isinstance(value, list):
            return [read(item) for item in value]
        is_number = isinstance(value, str) and re.fullmatch(r"\d+(\.\d*)?e-?\d+", value)
        return float(value) if is_number else value

    return json.loads(json.dumps(read(job)))


def errors(job):
    return [error.message for error in VALIDATOR.iter_errors(as_json(job))]


def job_files():
    """Return every job file of the documentation and the examples, by its place."""
    results = {path.name: path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)):
            results[f"{page.name}-{number}"] = text
    jobs = {place: yaml.safe_load(text) for place, text in results.items()}
    # A page may show YAML of another program, such as Prometheus's list of rules.
    return {
        place: job
        for place, job in jobs.items()
        if isinstance(job, dict) and job.keys() & set(SECTIONS)
    }


JOB_FILES = job_files()


def test_the_schema_is_valid_and_has_every_section():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert tuple(sorted(SCHEMA["properties"])) == tuple(sorted(SECTIONS))
    assert SCHEMA["$schema"].endswith("2020-12/schema")


def test_every_algorithm_format_policy_and_cluster_has_a_branch():
    branches = {
        *(f"algorithm_{name}" for name in ALGORITHMS),
        *(f"data_{name}" for name in FILE_FORMATS),
        *(f"policy_{name}" for name in POLICIES),
        *(f"cluster_{kind}" for kind in CLUSTERS),
    }
    assert branches <= SCHEMA["$defs"].keys()


def test_every_key_has_a_description():
    bare = [
        f"{name}.{key}"
        for name, definition in SCHEMA["$defs"].items()
        for key, schema in definition.get("properties", {}).items()
        if "description" not in schema and "const" not in schema and key != "kind"
    ]
    assert bare == []


@pytest.mark.parametrize("place", JOB_FILES)
def test_the_job_files_of_documentation_and_examples_are_valid(place):
    """Some pages show sections without data or algorithm; those sections are checked."""
    assert errors(MINIMAL | JOB_FILES[place]) == []


GOOD = (
    {},
    {"cluster": "tcp://host:8786", "checkpoint": False, "evaluate": False, "stop": None},
    {"cluster": {"workers": 3, "slowdown": {0: 2.0}}, "faults": [{"round": 3, "lose": [0, 1]}]},
    {"policies": ["knee", {"redeal": "none"}, {"name": "gap_per_container_second"}, "reload"]},
    {"algorithm": {"name": "my.module:own", "depth": 3}},
    {"simulate": {"bandwidth": "1 GB", "preemption": {"rate": 0.1, "away": 5}, "slow": {3: 4}}},
    {"simulate": {"trace": [{"at": 1, "lose": 2}, {"at": 2, "grant": 1}]}},
    {
        "data": {
            "format": "csv",
            "path": "a.csv",
            "label": -1,
            "test": "b.csv",
            "chunk_size": "auto",
        }
    },
    {"faults": [{"round": 2, "lose": 1}, {"round": 9, "return": 1}], "holders": 2},
)


@pytest.mark.parametrize("changes", GOOD)
def test_what_elasticml_accepts_is_valid(changes):
    job = MINIMAL | changes
    JobSpec.from_sections(job, folder=Path(), name="job")
    assert errors(job) == []


def test_the_command_prints_it_or_writes_a_file(tmp_path):
    printed = CliRunner().invoke(elasticml, ["schema"])
    assert json.loads(printed.output) == SCHEMA
    path = tmp_path / "job.schema.json"
    written = CliRunner().invoke(elasticml, ["schema", "--out", str(path)])
    assert f"# yaml-language-server: $schema={path}" in written.output
    assert json.loads(path.read_text()) == SCHEMA
