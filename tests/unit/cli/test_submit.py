"""The commands for a Hadoop cluster, as far as they go without one."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.unit.cli.test_main import command as command

JOB = {
    "data": {"format": "synthetic_splice", "rows": 100},
    "algorithm": {"name": "batch_gradient"},
}
APPLICATION = "application_1700000000000_0001"


@pytest.fixture
def submit(command, tmp_path, monkeypatch):
    """Submit a job with changes; return the exit code and the line of the error."""
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments, **changes):
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump({**JOB, **changes}))
        code, out, err = command("submit", path, *arguments)
        assert (out, err.count("\n")) == ("", 1)
        return code, err.removeprefix("elasticml: ").rstrip("\n")

    return call


@pytest.mark.parametrize("name", ["submit", "status", "logs", "kill", "result"])
def test_help_has_an_example(command, name):
    code, out, err = command(name, "-h")
    assert (code, err) == (0, "")
    assert f"elasticml {name} " in out


def test_a_job_without_a_cluster_section_is_for_yarn(submit):
    code, line = submit()
    assert code == 2
    assert line.startswith("no YARN cluster is configured: ")
    assert "export HADOOP_CONF_DIR=" in line


def test_a_job_for_another_kind_of_cluster_is_refused_with_the_remedy(submit):
    assert submit(cluster={"kind": "local", "workers": 2}) == (
        2,
        "cluster.kind: got 'local', wanted 'yarn'; use elasticml run, or --set 'cluster={kind: "
        "yarn, workers: 4}'",
    )


def test_without_waiting_nothing_is_fetched(submit):
    code, line = submit("--detach", "--out", "runs/a")
    assert code == 2
    assert "elasticml result APPLICATION_ID --out DIR" in line


def test_options_override_settings(submit):
    # pack and environment exclude each other; --pack replaces the file's environment.
    cluster = {"environment": "venv:///opt/env"}
    assert submit("--pack", cluster=cluster)[1].startswith("no YARN cluster is configured")
    code, line = submit("--set", "cluster.pack=true", cluster=cluster)
    assert (code, line.split(":")[0]) == (2, "cluster.pack")


def test_run_takes_a_yarn_cluster_too(command, tmp_path, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, "cluster": {"kind": "yarn"}}))
    code, out, err = command("run", path)
    assert (code, out) == (2, "")
    assert "no YARN cluster is configured" in err


@pytest.mark.parametrize("name", ["status", "result"])
def test_an_application_is_looked_up_in_the_configured_cluster(command, name, monkeypatch):
    for variable in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)
    code, out, err = command(name, APPLICATION)
    assert (code, out) == (2, "")
    assert "no YARN cluster is configured" in err


def test_commands_without_yarn_do_not_import_its_libraries(tmp_path):
    """Libraries that are not needed are not loaded: the extra may be missing."""
    code = (
        "import json, sys\n"
        "import elasticml.cli.main, elasticml.cli.submit, elasticml.cli.applications\n"
        "print(json.dumps(sorted({'skein', 'dask_yarn', 'grpc'} & set(sys.modules))))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert json.loads(process.stdout) == []
