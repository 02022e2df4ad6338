"""What YARN and skein tell a process about the container that it runs in."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from elasticml.clusters.on_yarn.hadoop_conf import GraceSettings, grace_settings
from elasticml.clusters.on_yarn.resource_manager import ResourceManager
from elasticml.data.hadoop_sites import HadoopConf, hadoop_conf, parse_site
from elasticml.data.web import ask
from elasticml.errors import ConfigError, ElasticmlError

logger = logging.getLogger(__name__)

#: Keys of skein's key-value store, as dask-yarn names them.
SCHEDULER_KEY = "dask.scheduler"
DASHBOARD_KEY = "dask.dashboard"

#: Where a service that fails leaves its last word, by skein's name of its container.
WORD_KEY = "elasticml.word.{}"

#: Service that the workers' containers belong to, as dask-yarn names it.
WORKER_SERVICE = "dask.worker"

#: Environment of the scheduler's container: how many worker containers there may be.
WORKERS_MIN_VARIABLE = "ELASTICML_YARN_WORKERS_MIN"
WORKERS_MAX_VARIABLE = "ELASTICML_YARN_WORKERS_MAX"

#: Environment of a worker's container: seconds from SIGTERM to SIGKILL, where its node tells wrong.
GRACE_VARIABLE = "ELASTICML_YARN_GRACE_S"

#: Where a worker's identity is in what Dask's scheduler knows of it.
STARTUP_KEY = "elasticml-container"

_NODE_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Who this container is, for YARN and for skein."""

    #: skein's name of it, ``dask.worker_3``; the Dask worker's name, too.
    name: str
    #: YARN's name of it, ``container_…``.
    container: str
    #: The node that it runs on, ``host:port``, as YARN names it.
    node: str
    #: Address of the NodeManager's web server, ``host:port``; empty where it is not known.
    node_http: str
    memory_bytes: int
    vcores: int


def surroundings(environment: Mapping[str, str] = os.environ) -> Surroundings:
    """Read who this container is from the environment that YARN and skein gave it.

    Raises
    ------
    ConfigError
        Outside a container of skein's.
    """
    try:
        host = environment.get("NM_HOST", "")
        http_port = environment.get("NM_HTTP_PORT", "")
        return Surroundings(
            name=environment["SKEIN_CONTAINER_ID"],
            container=environment["CONTAINER_ID"],
            node=f"{host}:{environment.get('NM_PORT', '')}",
            node_http=f"{host}:{http_port}" if host and http_port else "",
            memory_bytes=int(environment["SKEIN_RESOURCE_MEMORY"]) * 2**20,
            vcores=int(environment["SKEIN_RESOURCE_VCORES"]),
        )
    except KeyError as error:
        raise ConfigError(
            f"this is no container of a skein application: {error.args[0]} is not set; services "
            "are started by YARN, see elasticml.YarnCluster"
        ) from error


def worker_options(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Read the options for the worker that dask-yarn's ``worker_options`` puts in its container.

    Raises
    ------
    ConfigError
        When they are not what dask-yarn writes.
    """
    text = environment.get("worker_options", "")
    if not text:
        return {}
    try:
        options = json.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise ConfigError(
            f"worker_options: got {text!r}, wanted JSON in base64 as dask-yarn writes it: {error}"
        ) from error
    if not isinstance(options, dict):
        raise ConfigError(f"worker_options: got {options!r}, wanted a mapping")
    return options


def named_class(environment: Mapping[str, str] = os.environ) -> str | None:
    """Read the import path of the worker's class that dask-yarn puts in its container."""
    name = "worker_class"
    return environment.get(name)


def container_limits(environment: Mapping[str, str] = os.environ) -> tuple[int, int | None]:
    """Read how many worker containers there may be: at least, and at most (None is any number).

    Raises
    ------
    ConfigError
        When they are no whole numbers, or the first is above the second.
    """
    numbers: list[int | None] = []
    for name in (WORKERS_MIN_VARIABLE, WORKERS_MAX_VARIABLE):
        text = environment.get(name)
        if text is not None and not text.isdecimal():
            raise ConfigError(f"{name}: got {text!r}, wanted a whole number of containers")
        numbers.append(None if text is None else int(text))
    low, high = numbers[0] or 0, numbers[1]
    if high is not None and low > high:
        raise ConfigError(f"{WORKERS_MIN_VARIABLE}={low} is above {WORKERS_MAX_VARIABLE}={high}")
    return low, high


def cluster_grace(
    node_http: str, environment: Mapping[str, str] = os.environ, *, of_cluster: bool = False
) -> GraceSettings:
    """Read how this cluster takes containers back, from those who do it.

    Parameters
    ----------
    node_http : str
        Web server of the NodeManager, which says what it does itself; empty where it is not known.
    of_cluster : bool
        Whether to ask the ResourceManager, too, for what the cluster does.
    """
    node = hadoop_conf(environment)
    if node_http:
        try:
            answer = ask("GET", f"http://{node_http}/conf", timeout_s=_NODE_S_MAX)
            if answer.status == HTTPStatus.OK:
                told = {key: value for key, value, _ in parse_site(answer.body, node_http)}
                node = HadoopConf(values={**node.values, **told}, folders=node.folders)
        except (OSError, ConfigError) as error:
            logger.info("node %s does not tell its settings: %s", node_http, error)
    rm = node
    if of_cluster:
        try:
            rm = ResourceManager.from_conf(node, timeout_s=_NODE_S_MAX).conf()
        except (OSError, ElasticmlError) as error:
            logger.info("the ResourceManager does not tell its settings: %s", error)
    return grace_settings(rm, node)


def sigkill_delay_s(node_http: str, environment: Mapping[str, str] = os.environ) -> float:
    """Return the seconds that this container has from SIGTERM to SIGKILL.

    Raises
    ------
    ConfigError
        When the environment says it, and it is no number.
    """
    told = environment.get(GRACE_VARIABLE)
    if told is None:
        return cluster_grace(node_http, environment).sigkill_delay_s
    try:
        return max(0.0, float(told))
    except ValueError as error:
        raise ConfigError(f"{GRACE_VARIABLE}: got {told!r}, wanted seconds") from error


def find_kernel_cache(package: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder in which numba is to keep compiled kernels; None where it finds one itself.

    Parameters
    ----------
    package : Path
        Folder of the package with the kernels. On a cluster it is often nobody's to write to; then
        the containers of one application share a folder on each node.
    """
    if "NUMBA_CACHE_DIR" in environment or os.access(package, os.W_OK):
        return None
    for folder in environment.get("LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return str(Path(folder) / "elasticml-kernels")
    return None
