"""Application specifications: built by dask-yarn, rewritten to run elasticml's own services.

In a specification for dask-yarn only the commands that start dask-yarn's services change: the
containers run ``elasticml.clusters.yarn.service`` instead.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elasticml.clusters.yarn.compat import import_dask_yarn, import_skein
from elasticml.clusters.yarn.python_environments import read_environment
from elasticml.clusters.yarn.tls import SECURITY_VARIABLE, wants_tls
from elasticml.data.storage.filesystem import is_url
from elasticml.errors import ConfigError, one_line

if TYPE_CHECKING:
    import skein

logger = logging.getLogger(__name__)

SCHEDULER = "dask.scheduler"
WORKER = "dask.worker"

#: The module that replaces ``dask-yarn services``.
SERVICE_MODULE = "elasticml.clusters.yarn.service"

#: Options for small, short-lived JVMs: they halve the CPU time until the JVM is ready (2.2 s
#: instead of 4.3 s for skein's driver).
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

#: Environment variable with JVM options.
_JAVA_VARIABLE: Final = "JAVA_TOOL_OPTIONS"

#: Milliseconds between two heartbeats of the application master to the ResourceManager. A notice is
#: late by up to one heartbeat; skein's own 5 s exceed the whole warning time of some clusters.
HEARTBEAT_MS: Final = 1000

_JAR: Final = "elasticml-agent.jar"

# The command by its name or path: `dask-yarn services worker`, `"$ENV/bin/dask-yarn" services …`.
_BY_NAME = re.compile(
    r"""(?<![\w./-])(?P<folder>[^\s;&|"'`()]*/)?dask-yarn(?P<quote>["']?)(?P<gap>(?:\s|\\\n)+)"""
    r"services(?=\s|\\)"
)
# The same through an interpreter: `environment/bin/python -m dask_yarn.cli services worker`.
_BY_MODULE = re.compile(r"-m(?P<gap>(?:\s|\\\n)+)dask_yarn(?:\.cli)?(?:\s|\\\n)+services(?=\s|\\)")


def rewrite_script(script: str) -> str:
    """Return a script with dask-yarn's services replaced by elasticml's.

    >>> rewrite_script("source env/bin/activate; dask-yarn services worker --nthreads 2")
    'source env/bin/activate; python -m elasticml.clusters.yarn.service worker --nthreads 2'
    """
    script = _BY_NAME.sub(rf"\g<folder>python\g<quote>\g<gap>-m {SERVICE_MODULE}", script)
    return _BY_MODULE.sub(rf"-m\g<gap>{SERVICE_MODULE}", script)


def rewrite(spec: skein.ApplicationSpec) -> skein.ApplicationSpec:
    """Return a copy of a specification that runs elasticml's services instead of dask-yarn's."""
    spec = copy.deepcopy(spec)
    for service in spec.services.values():
        service.script = rewrite_script(service.script)
    spec.master.script = rewrite_script(spec.master.script)
    return spec


def read_specification(source: skein.ApplicationSpec | Mapping[str, Any] | str) -> Any:
    """Read a specification from a skein object, a mapping, or a YAML or JSON file.

    Raises
    ------
    ConfigError
        When it is not a valid specification, or has no service ``dask.worker``.
    """
    model = import_skein()
    try:
        if isinstance(source, model.ApplicationSpec):
            spec = source
        elif isinstance(source, Mapping):
            spec = model.ApplicationSpec.from_dict(dict(source))
        else:
            spec = model.ApplicationSpec.from_file(str(source))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"specification: {one_line(error)}; see "
            "https://jcristharif.com/skein/specification.html for the format",
        ) from error
    if WORKER not in spec.services:
        raise ConfigError(
            f"specification: got services {sorted(spec.services)}, wanted one named {WORKER!r}"
        )
    return spec


def plain_specification(fields: Mapping[str, Any]) -> skein.ApplicationSpec:
    """Build a specification that is no Dask cluster, from skein's fields."""
    spec: skein.ApplicationSpec = import_skein().ApplicationSpec.from_dict(dict(fields))
    return spec


def make_specification(**arguments: Any) -> skein.ApplicationSpec:
    """Build a specification with dask-yarn, from its arguments and its configuration.

    Parameters
    ----------
    **arguments
        The arguments of dask-yarn's ``YarnCluster`` that describe containers; None means the value
        of ``yarn.*`` in Dask's configuration. If all are None and ``yarn.specification`` is set,
        that specification is used.

    Raises
    ------
    ConfigError
        When an argument is invalid, or no environment is given.
    """
    import dask

    dask_yarn = import_dask_yarn()
    has_arguments = any(value is not None for value in arguments.values())
    configured = dask.config.get("yarn.specification", None)
    if configured and not has_arguments:
        return rewrite(read_specification(configured))
    # dask-yarn modifies these mappings in place: pass copies, not the caller's or the
    # configuration's own.
    for name, setting in (("worker_env", "yarn.worker.env"), ("client_env", "yarn.client.env")):
        if name == "worker_env" or name in arguments:
            environment = arguments.get(name)
            arguments[name] = dict(dask.config.get(setting) if environment is None else environment)
    try:
        spec = dask_yarn._make_specification(**arguments)
    except (ValueError, TypeError) as error:
        raise ConfigError(one_line(error)) from error
    environment = arguments.get("environment") or dask.config.get("yarn.environment")
    python = read_environment(environment)
    for service in spec.services.values():
        service.script = python.guard(service.script)
        if python.kind == "archive" and is_url(python.place):
            # Unpacked once per node for all applications of this user, not once per application.
            service.files["environment"].visibility = "PRIVATE"
    spec.master.env = {**spec.master.env, _JAVA_VARIABLE: " ".join(QUICK_JAVA)}
    return rewrite(spec)


def with_placement(
    spec: skein.ApplicationSpec,
    *,
    node_label: str | None = None,
    nodes: list[str] | None = None,
    racks: list[str] | None = None,
    relax_locality: bool | None = None,
) -> skein.ApplicationSpec:
    """Return a copy with placement constraints; None leaves a constraint unchanged.

    Parameters
    ----------
    node_label : str or None
        Node label for every container of the application.
    nodes, racks : list of str or None
        Hosts and racks for workers.
    relax_locality : bool or None
        Whether workers may run elsewhere when these are full.
    """
    spec = copy.deepcopy(spec)
    worker = spec.services[WORKER]
    if node_label is not None:
        spec.node_label = node_label
    if nodes is not None:
        worker.nodes = list(nodes)
    if racks is not None:
        worker.racks = list(racks)
    if relax_locality is not None:
        worker.relax_locality = relax_locality
    return spec


def with_security(spec: skein.ApplicationSpec, security: str | None = None) -> Any:
    """Return a copy whose environment variables say whether to use TLS; see ``wants_tls``."""
    spec = copy.deepcopy(spec)
    choice = "tls" if wants_tls(security) else "none"
    for service in spec.services.values():
        service.env = {**service.env, SECURITY_VARIABLE: choice}
    return spec


def file_to_ship(path: Path) -> skein.File:
    """Return the entry of a local file among the files of a service or of the master."""
    file: skein.File = import_skein().File(source=path.absolute().as_uri())
    return file


def agent_jar() -> Path | None:
    """Return the path of the agent's jar; None if it was not built (``make agent``)."""
    jar = Path(__file__).parent / _JAR
    return jar if jar.is_file() else None


def with_agent(
    spec: skein.ApplicationSpec, heartbeat_ms: int = HEARTBEAT_MS
) -> skein.ApplicationSpec:
    """Return a copy of a specification whose application master loads the agent.

    Without a jar the copy is unchanged. Other JVM options are kept.

    Parameters
    ----------
    spec : skein.ApplicationSpec
    heartbeat_ms : int
        Milliseconds between two heartbeats to the ResourceManager.
    """
    spec = copy.deepcopy(spec)
    jar = agent_jar()
    if jar is None:
        logger.info("no %s: pre-emption will come without notice; build it: make agent", _JAR)
        return spec
    master = spec.master
    master.files = {**master.files, _JAR: file_to_ship(jar)}
    # The launch script expands $PWD. A relative path would break every JVM that the application's
    # own scripts start in another folder, because they inherit the variable.
    option = f"-javaagent:$PWD/{_JAR}={heartbeat_ms}"
    others = [word for word in master.env.get(_JAVA_VARIABLE, "").split() if _JAR not in word]
    master.env = {**master.env, _JAVA_VARIABLE: " ".join([*others, option])}
    return spec


def is_local(spec: skein.ApplicationSpec) -> bool:
    """Return whether the scheduler runs at the client: the application has no scheduler service."""
    return SCHEDULER not in spec.services


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsk:
    """Resources of one kind of container, and the initial number of them."""

    service: str
    memory_mib: int
    vcores: int
    node_label: str
    instances: int


def asked_containers(spec: skein.ApplicationSpec) -> list[ContainerAsk]:
    """List an application's containers: the master, then its services in alphabetical order."""
    services = [("master", spec.master.resources, spec.node_label, 1)]
    services += [
        (name, service.resources, service.node_label or spec.node_label, service.instances)
        for name, service in sorted(spec.services.items())
    ]
    return [
        ContainerAsk(
            service=name,
            memory_mib=resources.memory,
            vcores=resources.vcores,
            node_label=label,
            instances=instances,
        )
        for name, resources, label, instances in services
    ]
