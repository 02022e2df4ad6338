"""Read a YARN cluster's configuration: ResourceManager addresses, pre-emption, grace periods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from elasticml.data.storage.hadoop_sites import VARIABLES, HadoopConf, hadoop_conf, named_folders
from elasticml.errors import ConfigError

#: Default ports of the resource manager's web service.
_PORTS: Final = {"http": 8088, "https": 8090}
_PREEMPTION: Final = "yarn.resourcemanager.monitor.capacity.preemption."
_MONITOR: Final = "yarn.resourcemanager.scheduler.monitor."
_ANYWHERE: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceSettings:
    """Settings that decide how containers end; unset ones have YARN's defaults."""

    #: Whether the capacity scheduler pre-empts containers for other queues.
    is_preempting: bool
    #: Least seconds from the notice to the end of a container.
    max_wait_s: float
    #: Seconds between two pre-emption rounds.
    interval_s: float
    #: Seconds from SIGTERM to SIGKILL.
    sigkill_delay_s: float
    #: Share of the deficit that is pre-empted per round; the rest waits for containers to end.
    natural_termination: float
    #: Largest share of the cluster that is pre-empted per round.
    per_round: float
    #: Seconds without a heartbeat after which a node is lost.
    node_expiry_s: float
    #: Whether nodes kill containers that use more memory than they requested.
    is_memory_enforced: bool
    #: Whether running applications survive a restart of the resource manager.
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
            f"export {VARIABLES[-1]}=/folder/with/yarn-site.xml, or in a clone of elasticml: "
            "make yarn-up"
        )
    if not any((folder / "yarn-site.xml").is_file() for folder in conf.folders):
        named = [name for name in VARIABLES if environment.get(name)]
        raise ConfigError(
            f"{conf.where()} has no yarn-site.xml; export {named[0]}=/folder/with/yarn-site.xml"
        )
    return conf


def has_conf(environment: Mapping[str, str]) -> bool:
    """Return whether the environment names a configuration folder."""
    return bool(named_folders(environment))


def rm_web_urls(conf: HadoopConf) -> tuple[str, ...]:
    """Return the URLs of the resource manager's web service, one for each with high availability.

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
    # 0.0.0.0 is every interface to a server; a client uses the host name, else this machine.
    named = host if named in ("", _ANYWHERE) else named
    named = "127.0.0.1" if named == _ANYWHERE else named
    return f"{scheme}://{named}:{port or _PORTS[scheme]}"


def is_secure(conf: HadoopConf) -> bool:
    """Return whether the cluster requires Kerberos."""
    return conf.text("hadoop.security.authentication", "simple").lower() == "kerberos"


def counts_vcores(conf: HadoopConf) -> bool | None:
    """Return whether vcores count when containers are placed; None if unknown."""
    name = conf.text("yarn.scheduler.capacity.resource-calculator")
    return name.endswith("DominantResourceCalculator") if name else None


def grace_settings(rm: HadoopConf, node: HadoopConf) -> GraceSettings:
    """Read the settings that decide how a cluster's containers end.

    Parameters
    ----------
    rm, node : HadoopConf
        Settings of the resource manager and of a node manager; the client's own if unknown.
    """
    resource = "yarn.nodemanager.resource.memory."
    is_checked = any(node.flag(f"yarn.nodemanager.{x}mem-check-enabled", True) for x in "pv")
    # By default Hadoop leaves enforcement to a memory cgroup, and sets up none.
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
