"""Container context: identity, limits and settings that YARN and skein pass to a process."""

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

from elasticml.clusters.yarn.hadoop_conf import GraceSettings, grace_settings
from elasticml.clusters.yarn.resource_manager import ResourceManager
from elasticml.data.storage.hadoop_http import ask
from elasticml.data.storage.hadoop_sites import HadoopConf, hadoop_conf, parse_site
from elasticml.errors import ConfigError, ElasticmlError, one_line, shown

logger = logging.getLogger(__name__)

#: Keys of skein's key-value store, as dask-yarn names them.
SCHEDULER_KEY = "dask.scheduler"
DASHBOARD_KEY = "dask.dashboard"

#: Key under which a failing service writes its error message, by skein's container name.
EXIT_MESSAGE_KEY = "elasticml.word.{}"

#: Service of the worker containers, as dask-yarn names it.
WORKER_SERVICE = "dask.worker"

#: Environment variables of the scheduler's container: fewest and most worker containers.
WORKERS_MIN_VARIABLE = "ELASTICML_YARN_WORKERS_MIN"
WORKERS_MAX_VARIABLE = "ELASTICML_YARN_WORKERS_MAX"

#: Environment variable of a worker's container: seconds from SIGTERM to SIGKILL; overrides the
#: setting that its node reports.
GRACE_VARIABLE = "ELASTICML_YARN_GRACE_S"

#: Key of the container's identity in the startup information that a worker sends to the scheduler.
STARTUP_KEY = "elasticml-container"

_NODE_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerContext:
    """Identity and resources of the container that this process runs in."""

    #: skein's name, ``dask.worker_3``; also the Dask worker's name.
    name: str
    #: YARN's id, ``container_…``.
    container: str
    #: Its node, ``host:port``, as YARN names it.
    node: str
    #: Address of the NodeManager's web server, ``host:port``; empty if unknown.
    node_http: str
    memory_bytes: int
    vcores: int


def container_context(environment: Mapping[str, str] = os.environ) -> ContainerContext:
    """Read the container's identity from the environment variables of YARN and skein.

    Raises
    ------
    ConfigError
        Outside a skein container.
    """
    try:
        host = environment.get("NM_HOST", "")
        http_port = environment.get("NM_HTTP_PORT", "")
        return ContainerContext(
            name=environment["SKEIN_CONTAINER_ID"],
            container=environment["CONTAINER_ID"],
            node=f"{host}:{environment.get('NM_PORT', '')}",
            node_http=f"{host}:{http_port}" if host and http_port else "",
            memory_bytes=int(environment["SKEIN_RESOURCE_MEMORY"]) * 2**20,
            vcores=int(environment["SKEIN_RESOURCE_VCORES"]),
        )
    except KeyError as error:
        raise ConfigError(
            f"not inside a container of a skein application: {error.args[0]} is not set; YARN "
            "starts the services, see elasticml.YarnCluster"
        ) from error


def worker_options(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Read the worker's options, which dask-yarn passes in the variable ``worker_options``.

    Raises
    ------
    ConfigError
        When they are not in dask-yarn's format.
    """
    text = environment.get("worker_options", "")
    if not text:
        return {}
    try:
        options = json.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise ConfigError(
            f"worker_options: got {shown(text)}, wanted JSON in base64 as dask-yarn writes it: "
            f"{one_line(error)}"
        ) from error
    if not isinstance(options, dict):
        raise ConfigError(f"worker_options: got {options!r}, wanted a mapping")
    return options


def named_class(environment: Mapping[str, str] = os.environ) -> str | None:
    """Read the import path of the worker's class, which dask-yarn passes in ``worker_class``."""
    name = "worker_class"
    return environment.get(name)


def container_limits(environment: Mapping[str, str] = os.environ) -> tuple[int, int | None]:
    """Read the fewest and most worker containers; None is no limit.

    Raises
    ------
    ConfigError
        When they are not whole numbers, or the first exceeds the second.
    """
    numbers: list[int | None] = []
    for name in (WORKERS_MIN_VARIABLE, WORKERS_MAX_VARIABLE):
        text = environment.get(name)
        if text is not None and not text.isdecimal():
            raise ConfigError(f"{name}: got {shown(text)}, wanted a whole number of containers")
        numbers.append(None if text is None else int(text))
    low, high = numbers[0] or 0, numbers[1]
    if high is not None and low > high:
        raise ConfigError(f"{WORKERS_MIN_VARIABLE}={low} is above {WORKERS_MAX_VARIABLE}={high}")
    return low, high


def cluster_grace(
    node_http: str, environment: Mapping[str, str] = os.environ, *, of_cluster: bool = False
) -> GraceSettings:
    """Read the settings that decide how this cluster's containers end, from its daemons.

    Parameters
    ----------
    node_http : str
        Web server of the NodeManager, which reports its own settings; empty if unknown.
    of_cluster : bool
        Whether to ask the ResourceManager too, for cluster-wide settings.
    """
    node = hadoop_conf(environment)
    if node_http:
        try:
            answer = ask("GET", f"http://{node_http}/conf", timeout_s=_NODE_S_MAX)
            if answer.status == HTTPStatus.OK:
                reported = {key: value for key, value, _ in parse_site(answer.body, node_http)}
                node = HadoopConf(values={**node.values, **reported}, folders=node.folders)
        except (OSError, ConfigError) as error:
            logger.info("cannot read the settings of node %s: %s", node_http, error)
    rm = node
    if of_cluster:
        try:
            rm = ResourceManager.from_conf(node, timeout_s=_NODE_S_MAX).conf()
        except (OSError, ElasticmlError) as error:
            logger.info("cannot read the ResourceManager's settings: %s", error)
    return grace_settings(rm, node)


def sigkill_delay_s(node_http: str, environment: Mapping[str, str] = os.environ) -> float:
    """Return the seconds that this container has from SIGTERM to SIGKILL.

    Raises
    ------
    ConfigError
        When the environment variable is not a number.
    """
    text = environment.get(GRACE_VARIABLE)
    if text is None:
        return cluster_grace(node_http, environment).sigkill_delay_s
    try:
        return max(0.0, float(text))
    except ValueError as error:
        raise ConfigError(f"{GRACE_VARIABLE}: got {shown(text)}, wanted seconds") from error


def find_kernel_cache(package: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder for numba's cache of compiled kernels; None if numba can choose it itself.

    Parameters
    ----------
    package : Path
        Folder of the package with the kernels. On a cluster it is often not writable; then the
        containers of one application share a folder on each node.
    """
    if "NUMBA_CACHE_DIR" in environment or os.access(package, os.W_OK):
        return None
    for folder in environment.get("LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return str(Path(folder) / "elasticml-kernels")
    return None
