"""Environments as dask-yarn names them, and the message of a container that lacks one."""

from __future__ import annotations

import subprocess

import pytest

from elasticml.clusters.yarn.python_environments import NO_ENVIRONMENT_STATUS, read_environment
from elasticml.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "kind", "setup", "python"),
    [
        ("venv:///opt/env", "venv", "source /opt/env/bin/activate", "python"),
        ("conda://name", "conda", "conda activate name", "python"),
        ("python:///usr/bin/python3", "python", "", "/usr/bin/python3"),
        (
            "hdfs://nn:8020/env.tar.gz",
            "archive",
            "source environment/bin/activate",
            "environment/bin/python",
        ),
    ],
)
def test_environments_are_read_as_dask_yarn_reads_them(text, kind, setup, python):
    environment = read_environment(text)
    assert (environment.kind, environment.setup(), environment.python()) == (kind, setup, python)
    assert str(environment) == text


@pytest.mark.parametrize("text", ["", "venv://", "nowhere/env.tar.gz"])
def test_invalid_names_are_refused(text):
    with pytest.raises(ConfigError, match="environment: "):
        read_environment(text)


@pytest.mark.parametrize("kind", ["venv", "python"])
def test_a_container_without_its_environment_ends_with_a_clear_line(kind, tmp_path):
    script = read_environment(f"{kind}://{tmp_path}/nowhere").script("-c", "print('went on')")
    # As skein runs it.
    done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, check=False)
    message = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (NO_ENVIRONMENT_STATUS, "")
    assert message.startswith("elasticml: there is no ")
    assert f"{tmp_path}/nowhere on " in message
