"""Submit a job to a Hadoop cluster; what can be wrong with it is found before anything starts."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from elasticml.clusters.on_yarn import spec as specs
from elasticml.clusters.on_yarn.hadoop_conf import require_conf
from elasticml.clusters.on_yarn.packing import packing_list, upload_once
from elasticml.clusters.on_yarn.resource_manager import ResourceManager, check_grantable
from elasticml.clusters.on_yarn.submission import submit
from elasticml.data import places
from elasticml.data.hadoop_sites import HadoopConf
from elasticml.data.source import Source
from elasticml.errors import ConfigError
from elasticml.jobs.applications import (
    Application,
    check_result,
    check_vacant,
    default_result,
    home_place,
)
from elasticml.jobs.mirror import DRIVER_DIRECTORY
from elasticml.jobs.settings import YarnContainers
from elasticml.jobs.submission import SUBMISSION_FILE, Submission
from elasticml.jobs.yarn_spec import make_spec, with_driver, worker_bytes, worker_count

if TYPE_CHECKING:
    import skein

Say = Callable[[str], None]

#: Where packed environments are kept, below a user's home directory.
ENVIRONMENTS = (".elasticml", "environments")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An application that the cluster could run, and where its run will be."""

    name: str
    cluster: YarnContainers
    conf: HadoopConf
    spec: skein.ApplicationSpec
    place: str

    @property
    def workers(self) -> int:
        """Worker containers to begin with."""
        return worker_count(self.spec)

    @property
    def worker_bytes(self) -> int:
        """Memory of each of them."""
        return worker_bytes(self.spec)


def plan_submission(cluster: YarnContainers, name: str, now: datetime) -> Plan:
    """Check a ``cluster`` section against the cluster; nothing is left behind.

    Parameters
    ----------
    name : str
        The job's.
    now : datetime
        For the name of the run's directory, where none is given.

    Raises
    ------
    ConfigError
        When the configuration, the environment or the place of the result is wrong.
    SubmissionError
        When the resource manager does not answer, the queue is unknown, or could never grant it.
    """
    conf = require_conf(os.environ)
    keytab = cluster.keytab
    if keytab is not None and not Path(keytab).is_file():
        raise ConfigError(
            f"cluster.keytab: there is no file {keytab}; name one that klist -kt can read, or "
            "leave keytab and principal out and use kinit",
            path="cluster.keytab",
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
    return Plan(name=name, cluster=cluster, conf=conf, spec=spec, place=place)


def _needed(ask: specs.ContainerAsk, cluster: YarnContainers) -> int:
    """Count the containers of a kind without which the job does not begin."""
    if ask.service == specs.WORKER and cluster.workers_min is not None:
        return min(ask.instances, cluster.workers_min)
    return ask.instances


def check_sources(source: Source, test: Source | None) -> None:
    """Prove that the data can be read away from this process.

    Raises
    ------
    ConfigError
        When they are in its memory.
    """
    for key, given in (("data", source), ("data.test", test)):
        if getattr(given, "is_in_memory", False):
            raise ConfigError(
                f"{key}: arrays in memory stay behind when the client goes; write them to a file "
                "on hdfs:// or on a path that all nodes share, and name that",
                path=key,
            )


def submit_plan(
    client: skein.Client, plan: Plan, record: Mapping[str, Any], *, evaluates: bool
) -> Application:
    """Submit an application that drives a job.

    Parameters
    ----------
    record : mapping
        The job record.
    evaluates : bool
        Whether its models are evaluated at the end.

    Raises
    ------
    ConfigError
        When the place of its run cannot be written any more, or another job has it by now.
    SubmissionError
        When YARN refuses it.
    """
    cluster = plan.cluster
    submission = Submission(
        record=record,
        cluster=cluster.model_dump(mode="json", exclude_none=True),
        place=plan.place,
        workers=plan.workers,
        workers_min=cluster.workers_min or plan.workers,
        evaluates=evaluates,
    )
    # What YARN has accepted runs: nothing may go wrong any more, not even with the folder.
    with tempfile.TemporaryDirectory(
        prefix="elasticml-submit-", ignore_cleanup_errors=True
    ) as folder:
        file = Path(folder) / SUBMISSION_FILE
        file.write_bytes(submission.to_json())
        spec = with_driver(plan.spec, file)
        # Containers get tokens for these, where the cluster wants Kerberos.
        spec.file_systems = sorted({*(spec.file_systems or ()), *file_systems_of(submission)})
        with _claimed(plan):
            return Application(id=submit(client, spec), name=plan.name, place=plan.place)


@contextmanager
def _claimed(plan: Plan) -> Iterator[None]:
    """Keep others off the place of a run whose driver may have to wait long for its container.

    Only on a cluster's own file system, where containers are the same user as the client; on a
    shared path their directories are better their own.

    A claim on what was refused is given up. One that an interrupt came between is kept: YARN may
    have accepted the application all the same.

    Raises
    ------
    ConfigError
        When another job has come first while this one was packed and sent.
    """
    check_vacant(plan.place)
    if not places.is_url(plan.place):
        yield
        return
    claim = places.join(plan.place, DRIVER_DIRECTORY, "submitted.json")
    content = json.dumps({"name": plan.name, "token": secrets.token_hex(8)}).encode() + b"\n"
    places.write_whole(claim, content)
    try:
        yield
    except Exception:
        with suppress(ConfigError, FileNotFoundError):
            _give_up(plan.place, claim, content)
        raise


def _give_up(place: str, claim: str, content: bytes) -> None:
    """Remove a claim and the directories made for it, and nothing that is another job's."""
    if places.read_bytes(claim) == content:
        places.remove(claim)
        places.remove_empty(places.join(place, DRIVER_DIRECTORY))
        places.remove_empty(place)


def file_systems_of(submission: Submission) -> set[str]:
    """Name the HDFS on which a job's data, its checkpoints and its run are."""
    record = submission.record
    sections = (record["data"], record.get("test") or {}, record.get("checkpoint") or {})
    named = (str(section.get(key, "")) for section in sections for key in ("path", "labels"))
    used = [submission.place, *named]
    parts = [urlsplit(place) for place in used if places.is_url(place)]
    return {f"{p.scheme}://{p.netloc}" for p in parts if p.scheme == "hdfs" and p.netloc}


def packed(plan: Plan, say: Say) -> Plan:
    """Have this process's environment where containers find it, where the job wants that.

    Parameters
    ----------
    say : callable
        Is told, in a line each, what takes long.

    Returns
    -------
    Plan
        Whose specification names the archive.

    Raises
    ------
    ConfigError
        When the environment cannot be packed, or written to the cluster.
    """
    if not plan.cluster.pack:
        return plan
    place = places.join(home_place(plan.conf), *ENVIRONMENTS)
    archive = upload_once(packing_list(exclude=plan.cluster.pack_exclude), place, say=say)
    cluster = plan.cluster.model_copy(update={"environment": archive})
    return replace(plan, cluster=cluster, spec=make_spec(cluster, plan.name))
