"""The YARN application of a submitted job: dask-yarn's, with the driver in the scheduler."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elasticml.clusters.yarn import application_spec as specs
from elasticml.clusters.yarn.compat import import_dask_yarn, import_skein
from elasticml.clusters.yarn.container_context import WORKERS_MAX_VARIABLE, WORKERS_MIN_VARIABLE
from elasticml.clusters.yarn.jobs.submission import SUBMISSION_FILE
from elasticml.clusters.yarn.notice_stream import with_agent
from elasticml.errors import ConfigError
from elasticml.jobs.job_sections import YarnContainers

if TYPE_CHECKING:
    import skein

#: The module that runs in the scheduler's container.
DRIVER_MODULE = "elasticml.clusters.yarn.jobs.job_driver"
#: Attempts of the application master; the cluster may have a lower limit.
MASTER_ATTEMPTS_MAX = 10
#: Restarts of the scheduler's container, whatever the reason.
SCHEDULER_RESTARTS_MAX = 10

_SERVICE = re.compile(rf"-m(\s+){re.escape(specs.SERVICE_MODULE)}\s+scheduler\b")


def default_environment() -> str:
    """Return this process's interpreter, which suits nodes that share the file system."""
    return f"python://{sys.executable}"


def make_spec(cluster: YarnContainers, name: str) -> skein.ApplicationSpec:
    """Create the application specification for a job's ``cluster`` section.

    Parameters
    ----------
    cluster : YarnContainers
        Its ``environment`` is where the containers find Python.
    name : str
        The job's name.

    Raises
    ------
    ConfigError
        When a setting is invalid.
    """
    import dask

    import_dask_yarn()  # loads its configuration
    specification = cluster.specification
    if specification is None and cluster.environment is None and not cluster.pack:
        specification = dask.config.get("yarn.specification", None)
    spec = _from_specification(cluster, specification) if specification else _generated(cluster)
    if specs.SCHEDULER not in spec.services:
        raise ConfigError(
            f"specification: has no service {specs.SCHEDULER}, in which the job's driver runs; "
            "add one, or leave specification out"
        )
    spec.name = cluster.name or (spec.name if specification else name)
    spec.queue = cluster.queue or spec.queue
    spec.user = cluster.user or spec.user
    spec.tags = spec.tags if cluster.tags is None else set(cluster.tags)
    spec = specs.with_placement(
        spec,
        node_label=cluster.node_label,
        nodes=None if cluster.nodes is None else list(cluster.nodes),
        racks=None if cluster.racks is None else list(cluster.racks),
    )
    _set_limits(spec, cluster)
    return with_agent(specs.with_security(spec, cluster.security))


def _set_limits(spec: skein.ApplicationSpec, cluster: YarnContainers) -> None:
    """Pass the limits on the number of workers to the scheduler's container."""
    service = spec.services[specs.SCHEDULER]
    limits = {WORKERS_MAX_VARIABLE: str(cluster.workers_max or worker_count(spec))}
    if cluster.workers_min is not None:
        limits[WORKERS_MIN_VARIABLE] = str(cluster.workers_min)
    service.env = {**service.env, **limits}


def _generated(cluster: YarnContainers) -> skein.ApplicationSpec:
    import dask

    configured = dask.config.get("yarn.environment", None)
    return specs.make_specification(
        deploy_mode="remote",
        environment=cluster.environment or configured or default_environment(),
        n_workers=cluster.workers,
        worker_memory=cluster.memory,
        worker_vcores=cluster.vcores,
        worker_options=None if cluster.threads is None else {"nthreads": cluster.threads},
        scheduler_memory=cluster.scheduler.memory,
        scheduler_vcores=cluster.scheduler.vcores,
    )


def _from_specification(cluster: YarnContainers, specification: object) -> skein.ApplicationSpec:
    """Read a specification and apply the overrides of the job file."""
    from elasticml.ids import parse_size

    spec = specs.rewrite(specs.read_specification(specification))
    for section, service in (
        (cluster, spec.services[specs.WORKER]),
        (cluster.scheduler, spec.services.get(specs.SCHEDULER)),
    ):
        if service is not None:
            memory = service.resources.memory
            if section.memory is not None:
                memory = -(-parse_size(section.memory) // 2**20)
            vcores = section.vcores or service.resources.vcores
            service.resources = import_skein().Resources(
                memory=memory, vcores=vcores, gpus=service.resources.gpus
            )
    if "workers" in cluster.model_fields_set:
        spec.services[specs.WORKER].instances = cluster.workers
    return spec


def worker_bytes(spec: skein.ApplicationSpec) -> int:
    """Return the memory of a worker's container."""
    return int(spec.services[specs.WORKER].resources.memory) * 2**20


def worker_count(spec: skein.ApplicationSpec) -> int:
    """Return the initial number of worker containers."""
    return int(spec.services[specs.WORKER].instances)


def with_driver(spec: skein.ApplicationSpec, submission: Path) -> skein.ApplicationSpec:
    """Return a copy whose scheduler runs the driver of a submission, with restarts.

    Raises
    ------
    ConfigError
        When the scheduler's script does not start dask-yarn's scheduler.
    """
    spec = copy.deepcopy(spec)
    service = spec.services[specs.SCHEDULER]
    service.script, count = _SERVICE.subn(rf"-m\g<1>{DRIVER_MODULE}", service.script)
    if not count:
        raise ConfigError(
            f"specification: the script of {specs.SCHEDULER} does not call dask-yarn services "
            "scheduler, which the job's driver replaces; add that call"
        )
    file = import_skein().File(source=submission.absolute().as_uri())
    service.files = {**service.files, SUBMISSION_FILE: file}
    service.max_restarts = SCHEDULER_RESTARTS_MAX
    spec.services[specs.WORKER].max_restarts = -1
    spec.max_attempts = MASTER_ATTEMPTS_MAX
    return spec
