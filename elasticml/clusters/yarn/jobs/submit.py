"""Submit a job to a Hadoop cluster, after checking everything that can be checked beforehand."""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from elasticml.clusters.yarn import application_spec as specs
from elasticml.clusters.yarn.compat import import_dask_yarn
from elasticml.clusters.yarn.container_context import WORKERS_MAX_VARIABLE, WORKERS_MIN_VARIABLE
from elasticml.clusters.yarn.hadoop_conf import require_conf
from elasticml.clusters.yarn.jobs.applications import (
    Application,
    check_result,
    check_vacant,
    default_result,
    home_place,
)
from elasticml.clusters.yarn.jobs.run_sync import DRIVER_DIRECTORY
from elasticml.clusters.yarn.jobs.submission import SUBMISSION_FILE, Submission
from elasticml.clusters.yarn.packing import packing_list, upload_once
from elasticml.clusters.yarn.resource_manager import ResourceManager, check_grantable
from elasticml.clusters.yarn.yarn_client import submit
from elasticml.data.readers.dask_partitions import has_partitions
from elasticml.data.source import Source
from elasticml.data.storage import filesystem
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError
from elasticml.protocol.job_record import JobRecord
from elasticml.specification.sections import YarnContainers

if TYPE_CHECKING:
    import skein

    from elasticml.clusters.yarn.yarn_client import YarnClient


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
    return specs.with_agent(specs.with_security(spec, cluster.security))


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
            service.resources.memory = memory
            service.resources.vcores = section.vcores or service.resources.vcores
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
    service.files = {**service.files, SUBMISSION_FILE: specs.file_to_ship(submission)}
    service.max_restarts = SCHEDULER_RESTARTS_MAX
    spec.services[specs.WORKER].max_restarts = -1
    spec.max_attempts = MASTER_ATTEMPTS_MAX
    return spec


Say = Callable[[str], None]

#: Directory of packed environments, below a user's home directory.
ENVIRONMENTS = (".elasticml", "environments")


@dataclass(frozen=True, kw_only=True)
class SubmissionPlan:
    """A checked application specification, and the destination of its run."""

    name: str
    cluster: YarnContainers
    conf: HadoopConf
    spec: skein.ApplicationSpec
    place: str

    @property
    def workers(self) -> int:
        """Initial number of worker containers."""
        return worker_count(self.spec)

    @property
    def worker_bytes(self) -> int:
        """Memory of each worker container."""
        return worker_bytes(self.spec)


def plan_submission(cluster: YarnContainers, name: str, now: datetime) -> SubmissionPlan:
    """Check a ``cluster`` section against the cluster, without leaving anything behind.

    Parameters
    ----------
    name : str
        The job's name.
    now : datetime
        For the default name of the run directory.

    Raises
    ------
    ConfigError
        When the configuration, the environment or the destination of the result is invalid.
    SubmissionError
        When the resource manager does not reply, the queue is unknown, or could never grant the
        containers.
    """
    conf = require_conf(os.environ)
    keytab = cluster.keytab
    if keytab is not None and not Path(keytab).is_file():
        raise ConfigError(
            f"cluster.keytab: there is no file {keytab}; name one that klist -kt can read, or "
            "leave keytab and principal out and use kinit"
        )
    spec = make_spec(cluster, name)
    asked = [
        (ask.memory_mib, ask.vcores, ask.node_label)
        for ask in specs.asked_containers(spec)
        for _ in range(_needed(ask, cluster))
    ]
    check_grantable(ResourceManager.from_conf(conf), spec.queue, asked)
    place = cluster.result or default_result(conf, name, now)
    check_result(place)
    return SubmissionPlan(name=name, cluster=cluster, conf=conf, spec=spec, place=place)


def _needed(ask: specs.ContainerAsk, cluster: YarnContainers) -> int:
    """Return how many containers of a kind the job needs to start."""
    if ask.service == specs.WORKER and cluster.workers_min is not None:
        return min(ask.instances, cluster.workers_min)
    return ask.instances


def check_sources(source: Source) -> None:
    """Check that other processes can read the data.

    Raises
    ------
    ConfigError
        When they are in the memory of this process.
    """
    if getattr(source, "is_in_memory", False):
        raise ConfigError(
            "data: rows in memory are lost when the client exits; write them to a file on "
            "hdfs:// or on a path that all nodes share, and name that"
        )
    if has_partitions(source):
        raise ConfigError(
            "data: Dask collections are on another cluster, which is gone when the client exits; "
            "write them to files, such as Parquet, and name those"
        )


def submit_plan(client: YarnClient, plan: SubmissionPlan, record: JobRecord) -> Application:
    """Submit an application that drives a job.

    Parameters
    ----------
    record : JobRecord
    evaluates : bool
        Whether its models are evaluated at the end.

    Raises
    ------
    ConfigError
        When the destination of its run cannot be written any more, or another job has claimed it.
    SubmissionError
        When YARN rejects it.
    """
    cluster = plan.cluster
    submission = Submission(
        record=record,
        cluster=cluster.model_dump(mode="json", exclude_none=True),
        place=plan.place,
        workers=plan.workers,
        workers_min=cluster.workers_min or plan.workers,
    )
    # Once YARN has accepted the job it runs, so nothing may fail after that, not even cleanup.
    with tempfile.TemporaryDirectory(
        prefix="elasticml-submit-", ignore_cleanup_errors=True
    ) as folder:
        file = Path(folder) / SUBMISSION_FILE
        file.write_bytes(submission.to_json())
        spec = with_driver(plan.spec, file)
        # Containers get delegation tokens for these if the cluster uses Kerberos.
        spec.file_systems = sorted({*(spec.file_systems or ()), *file_systems_of(submission)})
        with _claimed(plan):
            return Application(id=submit(client, spec), name=plan.name, place=plan.place)


@contextmanager
def _claimed(plan: SubmissionPlan) -> Iterator[None]:
    """Claim the destination of a run, whose driver may wait long for its container.

    Only on a cluster's file system, where containers run as the same user as the client; on a
    shared path the directories should be created by the containers' user.

    The claim is removed if the submission fails. After an interrupt it is kept, since YARN may have
    accepted the application nevertheless.

    Raises
    ------
    ConfigError
        When another job has claimed the destination meanwhile.
    """
    check_vacant(plan.place)
    if not filesystem.is_url(plan.place):
        yield
        return
    claim = filesystem.join(plan.place, DRIVER_DIRECTORY, "submitted.json")
    content = json.dumps({"name": plan.name, "token": secrets.token_hex(8)}).encode() + b"\n"
    filesystem.write_whole(claim, content)
    try:
        yield
    except Exception:
        with suppress(ConfigError, FileNotFoundError):
            _give_up(plan.place, claim, content)
        raise


def _give_up(place: str, claim: str, content: bytes) -> None:
    """Remove a claim and the directories created for it, unless they belong to another job."""
    if filesystem.read_bytes(claim) == content:
        filesystem.remove(claim)
        filesystem.remove_empty(filesystem.join(place, DRIVER_DIRECTORY))
        filesystem.remove_empty(place)


def file_systems_of(submission: Submission) -> set[str]:
    """Return the HDFS file systems of a job's data, checkpoints and run."""
    record = submission.record
    scored = record.data.get("scored") or {}
    sections = (record.data, *(part for part in scored.values() if isinstance(part, dict)))
    named = [str(section.get(key, "")) for section in sections for key in ("path", "labels")]
    checkpoints = "" if record.checkpoint is None else record.checkpoint.path
    used = [submission.place, checkpoints, *named]
    parts = [urlsplit(place) for place in used if filesystem.is_url(place)]
    return {f"{p.scheme}://{p.netloc}" for p in parts if p.scheme == "hdfs" and p.netloc}


def packed(plan: SubmissionPlan, say: Say) -> SubmissionPlan:
    """Pack and upload this process's environment if the job asks for it.

    Parameters
    ----------
    say : callable
        Receives a line for each slow step.

    Returns
    -------
    Plan
        The plan, with the archive in its specification.

    Raises
    ------
    ConfigError
        When the environment cannot be packed, or written to the cluster.
    """
    if not plan.cluster.pack:
        return plan
    place = filesystem.join(home_place(plan.conf), *ENVIRONMENTS)
    archive = upload_once(packing_list(exclude=plan.cluster.pack_exclude), place, say=say)
    cluster = plan.cluster.model_copy(update={"environment": archive})
    return replace(plan, cluster=cluster, spec=make_spec(cluster, plan.name))
