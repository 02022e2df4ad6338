"""What the configuration of a YARN cluster says: where it answers, and how it takes things back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from elasticml.data.hadoop_sites import VARIABLES, HadoopConf, hadoop_conf, named_folders
from elasticml.errors import ConfigError

#: The port of the resource manager's pages where none is named.
_PORTS: Final = {"http": 8088, "https": 8090}
_PREEMPTION: Final = "yarn.resourcemanager.monitor.capacity.preemption."
_MONITOR: Final = "yarn.resourcemanager.scheduler.monitor."
_ANYWHERE: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceSettings:
    """How a cluster takes containers back, with YARN's defaults where nothing is said."""

    #: Whether the capacity scheduler takes containers back for other queues at all.
    is_preempting: bool
    #: Seconds from the notice to the end of a container, at the least.
    max_wait_s: float
    #: Seconds between two looks at the queues.
    interval_s: float
    #: Seconds from SIGTERM to SIGKILL.
    sigkill_delay_s: float
    #: Share of what is owed that is taken at once; the rest waits for containers to end.
    natural_termination: float
    #: Share of the cluster that is taken in one look at the queues, at most.
    per_round: float
    #: Seconds of silence after which a node is lost.
    node_expiry_s: float
    #: Whether a node ends containers that use more memory than they asked for.
    is_memory_enforced: bool
    #: Whether running applications outlive a restart of the resource manager.
    is_recovering: bool


def require_conf(environment: Mapping[str, str]) -> HadoopConf:
    """Read the cluster's configuration.

    Raises
    ------
    ConfigError
        When the environment names none, or it has no ``yarn-site.xml``.
    """
    conf = hadoop_conf(environment)
    if not conf.folders:
        raise ConfigError(
            f"no YARN cluster is configured: neither {' nor '.join(VARIABLES)} is set; "
            f"export {VARIABLES[-1]}=/folder/with/yarn-site.xml, or elasticml mini-yarn up",
            key=VARIABLES[-1],
        )
    if not any((folder / "yarn-site.xml").is_file() for folder in conf.folders):
        named = [name for name in VARIABLES if environment.get(name)]
        raise ConfigError(
            f"{conf.where()} has no yarn-site.xml; export {named[0]}=/folder/with/yarn-site.xml",
            key=named[0],
        )
    return conf


def has_conf(environment: Mapping[str, str]) -> bool:
    """Say whether the environment names a folder of configuration."""
    return bool(named_folders(environment))


def rm_web_urls(conf: HadoopConf) -> tuple[str, ...]:
    """Name the resource manager's pages, of each where there are several for high availability.

    >>> rm_web_urls(HadoopConf(values={"yarn.resourcemanager.hostname": "rm.example"}))
    ('http://rm.example:8088',)
    """
    is_https = conf.text("yarn.http.policy", "HTTP_ONLY").upper() == "HTTPS_ONLY"
    scheme = "https" if is_https else "http"
    ids = conf.words("yarn.resourcemanager.ha.rm-ids")
    if not (ids and conf.flag("yarn.resourcemanager.ha.enabled", False)):
        return (_rm_web_url(conf, scheme, ""),)
    return tuple(_rm_web_url(conf, scheme, f".{id}") for id in ids)


def _rm_web_url(conf: HadoopConf, scheme: str, suffix: str) -> str:
    middle = ".https" if scheme == "https" else ""
    host = conf.text(f"yarn.resourcemanager.hostname{suffix}")
    host = host or conf.text("yarn.resourcemanager.hostname", _ANYWHERE)
    address = conf.text(f"yarn.resourcemanager.webapp{middle}.address{suffix}")
    named, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    # To a server it is every interface, to a client the one that it knows, or this machine.
    named = host if named in ("", _ANYWHERE) else named
    named = "127.0.0.1" if named == _ANYWHERE else named
    return f"{scheme}://{named}:{port or _PORTS[scheme]}"


def is_secure(conf: HadoopConf) -> bool:
    """Say whether the cluster wants Kerberos."""
    return conf.text("hadoop.security.authentication", "simple").lower() == "kerberos"


def counts_vcores(conf: HadoopConf) -> bool | None:
    """Say whether processors count when containers are placed; None where it is not known."""
    name = conf.text("yarn.scheduler.capacity.resource-calculator")
    return name.endswith("DominantResourceCalculator") if name else None


def grace_settings(rm: HadoopConf, node: HadoopConf) -> GraceSettings:
    """Read how a cluster takes containers back.

    Parameters
    ----------
    rm, node : HadoopConf
        The resource manager's and a node manager's; the client's own where theirs are not known.
    """
    resource = "yarn.nodemanager.resource.memory."
    is_checked = any(node.flag(f"yarn.nodemanager.{x}mem-check-enabled", True) for x in "pv")
    # Hadoop's default leaves it to a memory cgroup, which by default there is none of.
    is_left_to_cgroup = node.flag(f"{resource}enforced", True)
    is_polled = not is_left_to_cgroup or node.flag(
        "yarn.nodemanager.elastic-memory-control.enabled", False
    )
    has_cgroup = is_left_to_cgroup and node.flag(f"{resource}enabled", False)
    return GraceSettings(
        is_preempting=(
            rm.flag(f"{_MONITOR}enable", False) and not rm.flag(f"{_PREEMPTION}observe_only", False)
        ),
        max_wait_s=rm.seconds(f"{_PREEMPTION}max_wait_before_kill", 15.0),
        interval_s=rm.seconds(f"{_PREEMPTION}monitoring_interval", 3.0),
        sigkill_delay_s=node.seconds("yarn.nodemanager.sleep-delay-before-sigkill.ms", 0.25),
        natural_termination=rm.number(f"{_PREEMPTION}natural_termination_factor", 0.2),
        per_round=rm.number(f"{_PREEMPTION}total_preemption_per_round", 0.1),
        node_expiry_s=rm.seconds("yarn.nm.liveness-monitor.expiry-interval-ms", 600.0),
        is_memory_enforced=has_cgroup or (is_checked and is_polled),
        is_recovering=(
            rm.flag("yarn.resourcemanager.recovery.enabled", False)
            and rm.flag("yarn.resourcemanager.work-preserving-recovery.enabled", True)
        ),
    )
