"""The processes in containers: what they read from their environment, and how they start."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from elasticml.clusters.yarn import service
from elasticml.clusters.yarn.container_context import (
    ContainerContext,
    container_context,
    container_limits,
    find_kernel_cache,
    sigkill_delay_s,
    worker_options,
)
from elasticml.clusters.yarn.worker_service import plan_worker
from elasticml.errors import ConfigError

CONTAINER = {
    "SKEIN_CONTAINER_ID": "dask.worker_3",
    "CONTAINER_ID": "container_1_0001_01_000005",
    "NM_HOST": "node-7",
    "NM_PORT": "45454",
    "NM_HTTP_PORT": "8042",
    "SKEIN_RESOURCE_MEMORY": "2048",
    "SKEIN_RESOURCE_VCORES": "2",
}
HERE = ContainerContext(
    name="dask.worker_3",
    container="container_1_0001_01_000005",
    node="node-7:45454",
    node_http="node-7:8042",
    memory_bytes=2 * 2**30,
    vcores=2,
)


def encoded(options: object) -> dict[str, str]:
    return {"worker_options": base64.b64encode(json.dumps(options).encode()).decode()}


def test_a_container_knows_its_id():
    assert container_context(CONTAINER) == HERE


def test_a_service_outside_a_container_is_a_one_line_error(monkeypatch, capsys):
    monkeypatch.delenv("SKEIN_CONTAINER_ID", raising=False)
    assert service.run(["worker"]) == service.BAD_INPUT
    assert capsys.readouterr().err == (
        "not inside a container of a skein application: SKEIN_CONTAINER_ID is not set; YARN starts "
        "the services, see elasticml.YarnCluster\n"
    )


def test_the_command_line_overrides_the_container_which_is_overridden_by_options():
    plan = plan_worker(HERE, None, None, {}, None)
    assert plan.class_path is None
    assert (plan.options["name"], plan.options["nthreads"]) == ("dask.worker_3", 2)
    assert plan.options["memory_limit"] == 2 * 2**30
    plan = plan_worker(HERE, 7, "1 GiB", {"memory_limit": "3 GiB"}, None)
    assert (plan.options["nthreads"], plan.options["memory_limit"]) == (7, "3 GiB")


@pytest.mark.parametrize("name", ["dask.distributed.Nanny", "distributed.Worker", "Nanny"])
def test_a_nanny_is_a_worker_of_ours_with_its_variables(name: str):
    options = {"env": {"A": 1}, "preload_nanny": ["x"], "resources": {"gpu": 1}}
    plan = plan_worker(HERE, None, None, options, name)
    assert (plan.class_path, plan.variables) == (None, {"A": "1"})
    assert plan.options["resources"] == {"gpu": 1}
    assert "preload_nanny" not in plan.options


@pytest.mark.parametrize("environment", [{"worker_options": "{}"}, encoded([1])])
def test_invalid_options_are_refused(environment: dict[str, str]):
    with pytest.raises(ConfigError, match="worker_options"):
        worker_options(environment)


def test_limits_are_read_and_checked():
    low, high = "ELASTICML_YARN_WORKERS_MIN", "ELASTICML_YARN_WORKERS_MAX"
    assert container_limits({}) == (0, None)
    assert container_limits({low: "2", high: "5"}) == (2, 5)
    with pytest.raises(ConfigError, match="whole number"):
        container_limits({high: "many"})
    with pytest.raises(ConfigError, match="is above"):
        container_limits({low: "3", high: "2"})


def test_the_grace_comes_from_the_environment_or_the_configuration(tmp_path: Path):
    key = "yarn.nodemanager.sleep-delay-before-sigkill.ms"
    (tmp_path / "yarn-site.xml").write_text(
        f"<configuration><property><name>{key}</name><value>4000</value></property></configuration>"
    )
    configured = {"HADOOP_CONF_DIR": str(tmp_path)}
    assert sigkill_delay_s("", {}) == 0.25
    assert sigkill_delay_s("", configured) == 4.0
    assert sigkill_delay_s("", {**configured, "ELASTICML_YARN_GRACE_S": "1.5"}) == 1.5
    with pytest.raises(ConfigError, match="wanted seconds"):
        sigkill_delay_s("", {"ELASTICML_YARN_GRACE_S": "soon"})


def test_kernels_are_cached_with_the_application_if_the_package_is_read_only(tmp_path: Path):
    environment = {"LOCAL_DIRS": f"/nowhere,{tmp_path}"}
    assert find_kernel_cache(tmp_path, environment) is None
    missing = tmp_path / "missing"
    assert find_kernel_cache(missing, environment) == str(tmp_path / "elasticml-kernels")
    assert find_kernel_cache(missing, {**environment, "NUMBA_CACHE_DIR": "/x"}) is None


def test_options_are_read_as_dask_yarn_writes_them():
    assert worker_options(encoded({"resources": {"gpu": 1}})) == {"resources": {"gpu": 1}}
    assert worker_options({}) == {}
