"""Specifications: dask-yarn's own, with elasticml's services in them."""

from __future__ import annotations

import base64
import json

import dask
import pytest

from elasticml.clusters.yarn.application_spec import (
    asked_containers,
    is_local,
    make_specification,
    read_specification,
    rewrite_script,
    with_placement,
)
from elasticml.errors import ConfigError

OURS = "-m elasticml.clusters.yarn.service"

#: As in dask-yarn's manual, plus settings beside the services that it knows.
WRITTEN = """
name: written
queue: ml
tags: [a, b]
node_label: fast
services:
  dask.scheduler:
    resources: {memory: 512 MiB, vcores: 1}
    max_restarts: 0
    files: {environment: /opt/environment.tar.gz}
    script: |
      source environment/bin/activate
      dask-yarn services scheduler
  dask.worker:
    resources: {memory: 2 GiB, vcores: 2}
    instances: 3
    max_restarts: 8
    depends: [dask.scheduler]
    nodes: [one]
    relax_locality: true
    env: {A: b}
    script: |
      source environment/bin/activate
      dask-yarn services worker --nthreads 2 --memory_limit 1GiB
  tensorboard:
    resources: {memory: 256 MiB, vcores: 1}
    script: tensorboard --logdir dask-yarn
"""


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "written.yaml"
    path.write_text(WRITTEN)
    return path


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "conda activate x; exec dask-yarn services worker --nthreads 2 && echo",
            f"conda activate x; exec python {OURS} worker --nthreads 2 && echo",
        ),
        ("/opt/env/bin/dask-yarn services worker", f"/opt/env/bin/python {OURS} worker"),
        ('"$ENV/bin/dask-yarn" services worker', f'"$ENV/bin/python" {OURS} worker'),
        (
            "environment/bin/python -m dask_yarn.cli services client job.py -n 3",
            f"environment/bin/python {OURS} client job.py -n 3",
        ),
        *(
            (other, other)
            for other in (
                f"python {OURS} worker",
                "my-dask-yarn services worker",
                "dask-yarn submit script.py",
                "python -m dask_yarn.client services",
            )
        ),
    ],
)
def test_commands_of_dask_yarns_services_become_ours_and_others_stay(script, expected):
    assert rewrite_script(script) == expected


VENV = {"environment": "venv:///opt/env", "n_workers": 1}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: read_specification(
                {"services": {"a": {"script": "x", "resources": {"memory": 1, "vcores": 1}}}}
            ),
            "'a'",
        ),
        (lambda: read_specification("/nowhere/spec.yaml"), "No such file"),
        (lambda: make_specification(n_workers=1), "must provide a path to a Python environment"),
        (lambda: make_specification(**VENV, worker_memory=12), "12 MiB"),
        (
            lambda: make_specification(environment="missing.tar.gz"),
            "there is no file missing.tar.gz",
        ),
    ],
)
def test_wrong_specifications_and_arguments_are_refused_in_one_line(make, says):
    with pytest.raises(ConfigError, match=says) as caught:
        make()
    assert "\n" not in caught.value.message


def test_arguments_and_configuration_have_dask_yarns_meaning():
    with dask.config.set({"yarn.worker.memory": "3 GiB", "yarn.queue": "ml"}):
        spec = make_specification(
            environment="venv:///opt/env",
            n_workers=4,
            worker_vcores=2,
            worker_options={"nthreads": 2},
            worker_env={"A": "b"},
            tags=["one"],
            name="mine",
        )
    worker = spec.services["dask.worker"]
    assert (spec.name, spec.queue, spec.tags) == ("mine", "ml", {"one"})
    assert (worker.instances, worker.resources.memory, worker.resources.vcores) == (4, 3072, 2)
    assert (worker.max_restarts, worker.depends) == (-1, {"dask.scheduler"})
    assert worker.env["A"] == "b"
    assert json.loads(base64.b64decode(worker.env["worker_options"])) == {"nthreads": 2}
    assert worker.script.endswith(f"\npython {OURS} worker")
    assert not is_local(spec)


def test_the_configured_specification_is_the_default(written):
    with dask.config.set({"yarn.specification": str(written)}):
        spec = make_specification(environment=None, n_workers=None)
        other = make_specification(environment="venv:///opt/env", n_workers=None)
    assert (spec.name, other.name) == ("written", "dask")
    assert OURS in spec.services["dask.worker"].script


@pytest.mark.parametrize(
    ("scheme", "visibility"), [("hdfs://nn:8020", "PRIVATE"), ("", "APPLICATION")]
)
def test_a_node_unpacks_an_uploaded_environment_once(tmp_path, scheme, visibility):
    archive = tmp_path / "env.tar.gz"
    archive.write_bytes(b"")
    spec = make_specification(environment=f"{scheme}{archive}")
    files = [service.files["environment"] for service in spec.services.values()]
    assert [str(file.visibility) for file in files] == [visibility] * 2


def test_placement_is_the_workers_and_the_label_is_for_all_containers(written):
    spec = with_placement(
        read_specification(str(written)),
        node_label="gpu",
        nodes=["two"],
        racks=["/a"],
        relax_locality=False,
    )
    worker = spec.services["dask.worker"]
    assert (spec.node_label, worker.nodes, worker.racks) == ("gpu", ["two"], ["/a"])
    assert not worker.relax_locality
    assert spec.services["dask.scheduler"].nodes == []


def test_an_applications_request_is_its_master_and_its_services(written):
    spec = read_specification(str(written))
    spec.services["dask.worker"].node_label = "slow"
    asks = asked_containers(spec)
    assert [(a.service, a.memory_mib, a.vcores, a.node_label, a.instances) for a in asks] == [
        ("master", 512, 1, "fast", 1),
        ("dask.scheduler", 512, 1, "fast", 1),
        ("dask.worker", 2048, 2, "slow", 3),
        ("tensorboard", 256, 1, "fast", 1),
    ]
