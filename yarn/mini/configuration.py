"""Generate Hadoop's configuration files for a mini YARN."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from elasticml.user_cache import cache_directory
from yarn.mini.layout import Layout
from yarn.mini.mini_settings import HOST, MiniSettings, node_host

#: Environment variable that holds the root directory in every process of a mini YARN, containers
#: included.
MARKER = "ELASTICML_MINI_YARN"

_LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""

_RM = "org.apache.hadoop.yarn.server.resourcemanager"


def core(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    """Return ``core-site.xml``: the address of HDFS."""
    return {
        "fs.defaultFS": f"hdfs://{HOST}:{ports['name-rpc']}",
        "hadoop.tmp.dir": f"{layout.root}/tmp",
        # No DNS: all addresses belong to this machine.
        "hadoop.security.token.service.use_ip": "true",
        "hadoop.security.groups.cache.secs": "3600",
        "ipc.client.connect.max.retries": "3",
        "ipc.client.connect.retry.interval": "300",
    }


def hdfs(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    """Return ``hdfs-site.xml``: one NameNode, one DataNode."""
    return {
        "dfs.replication": "1",
        "dfs.namenode.rpc-address": f"{HOST}:{ports['name-rpc']}",
        "dfs.namenode.http-address": f"{HOST}:{ports['name-http']}",
        "dfs.namenode.name.dir": f"file://{layout.root}/name",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.heartbeat.recheck-interval": "2000",
        # With less free space the NameNode refuses writes; the default is 100 MB.
        "dfs.namenode.resource.du.reserved": "10485760",
        "dfs.datanode.data.dir": f"file://{layout.root}/data",
        "dfs.datanode.hostname": HOST,
        "dfs.datanode.address": f"{HOST}:{ports['data-stream']}",
        "dfs.datanode.http.address": f"{HOST}:{ports['data-http']}",
        "dfs.datanode.ipc.address": f"{HOST}:{ports['data-ipc']}",
        "dfs.heartbeat.interval": "1",
        "dfs.webhdfs.enabled": "true",
    }


def yarn(
    settings: MiniSettings, layout: Layout, ports: Mapping[str, int], jars: Path
) -> dict[str, str]:
    """Return ``yarn-site.xml`` as clients and the ResourceManager read it."""
    addresses = {
        "address": "resource-client",
        "scheduler.address": "resource-scheduler",
        "resource-tracker.address": "resource-tracker",
        "admin.address": "resource-admin",
        "webapp.address": "resource-http",
    }
    return {
        "yarn.resourcemanager.hostname": HOST,
        **{f"yarn.resourcemanager.{key}": f"{HOST}:{ports[n]}" for key, n in addresses.items()},
        "yarn.application.classpath": f"{layout.conf},{jars}/*",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.maximum-allocation-mb": str(settings.memory_mib),
        "yarn.scheduler.maximum-allocation-vcores": str(settings.node_vcores),
        "yarn.resourcemanager.am.max-attempts": "4",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
        "yarn.nm.liveness-monitor.expiry-interval-ms": f"{settings.node_expiry_s * 1000:.0f}",
        "yarn.am.liveness-monitor.expiry-interval-ms": "60000",
        # How long clients wait for a ResourceManager that restarts.
        "yarn.resourcemanager.connect.max-wait.ms": "60000",
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        "yarn.client.nodemanager-connect.max-wait-ms": "10000",
        "yarn.client.nodemanager-connect.retry-interval-ms": "500",
        "yarn.client.application-client-protocol.poll-interval-ms": "100",
        "yarn.resourcemanager.nodes.exclude-path": str(layout.leaving),
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/tmp/logs",
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.fs-store.root-dir": f"file://{layout.root}/labels",
        "yarn.node-attribute.fs-store.root-dir": f"file://{layout.root}/attributes",
        "yarn.timeline-service.enabled": "false",
        **_recovery(settings, layout),
        **_monitor(settings),
    }


def _recovery(settings: MiniSettings, layout: Layout) -> dict[str, str]:
    if not settings.work_preserving_recovery:
        return {"yarn.resourcemanager.recovery.enabled": "false"}
    return {
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.work-preserving-recovery.enabled": "true",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
        "yarn.resourcemanager.store.class": f"{_RM}.recovery.FileSystemRMStateStore",
        "yarn.resourcemanager.fs.state-store.uri": f"file://{layout.root}/recovery",
    }


def _monitor(settings: MiniSettings) -> dict[str, str]:
    monitor = "yarn.resourcemanager.scheduler.monitor"
    if settings.preemption is None:
        return {f"{monitor}.enable": "false"}
    policy = "yarn.resourcemanager.monitor.capacity.preemption"
    return {
        f"{monitor}.enable": "true",
        f"{monitor}.policies": (f"{_RM}.monitor.capacity.ProportionalCapacityPreemptionPolicy"),
        f"{policy}.monitoring_interval": f"{settings.preemption.interval_s * 1000:.0f}",
        f"{policy}.max_wait_before_kill": f"{settings.preemption.max_wait_s * 1000:.0f}",
        f"{policy}.total_preemption_per_round": "1.0",
        f"{policy}.natural_termination_factor": "1.0",
        f"{policy}.max_ignored_over_capacity": "0.0",
    }


def node(
    settings: MiniSettings, layout: Layout, ports: Mapping[str, int], number: int
) -> dict[str, str]:
    """Return the settings of one NodeManager, on top of ``yarn-site.xml``."""
    host, folder = node_host(number), layout.node(number)
    addresses = {
        "address": "rpc",
        "localizer.address": "localizer",
        "webapp.address": "http",
        "collector-service.address": "collector",
    }
    return {
        "yarn.nodemanager.hostname": host,
        **{
            f"yarn.nodemanager.{key}": f"{host}:{ports[f'node-{number}-{name}']}"
            for key, name in addresses.items()
        },
        "yarn.nodemanager.local-dirs": f"{folder}/local",
        "yarn.nodemanager.log-dirs": f"{folder}/logs",
        "yarn.nodemanager.resource.memory-mb": str(settings.memory_mib),
        "yarn.nodemanager.resource.cpu-vcores": str(settings.node_vcores),
        "yarn.nodemanager.vmem-check-enabled": "false",
        # With both enabled, the default, YARN 3.4 kills nothing: it relies on cgroups to do it.
        "yarn.nodemanager.pmem-check-enabled": str(settings.enforce_memory).lower(),
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.container-monitor.interval-ms": "500",
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": f"{settings.sigkill_delay_s * 1000:.0f}",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        "yarn.nodemanager.disk-health-checker.min-free-space-per-disk-mb": "0",
        "yarn.nodemanager.delete.debug-delay-sec": "0",
        "yarn.nodemanager.container-metrics.enable": "false",
        "yarn.nodemanager.admin-env": ",".join(
            [
                # Processes that outlive their NodeManager are found by this variable.
                f"{MARKER}={layout.root}",
                f"ELASTICML_CACHE={layout.cache}",
                "MALLOC_ARENA_MAX=4",
                # Application masters start twice as fast.
                "JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            ]
        ),
    }


def queues(settings: MiniSettings) -> dict[str, str]:
    """Return ``capacity-scheduler.xml``: each queue may use all idle capacity."""
    prefix = "yarn.scheduler.capacity"
    values = {
        f"{prefix}.resource-calculator": (
            "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
        ),
        f"{prefix}.maximum-am-resource-percent": "0.8",
        f"{prefix}.maximum-applications": "1000",
        f"{prefix}.node-locality-delay": "4",
        f"{prefix}.root.queues": ",".join(settings.queues),
        f"{prefix}.root.accessible-node-labels": "*",
    }
    for name, share in settings.queues.items():
        queue = f"{prefix}.root.{name}"
        values[f"{queue}.capacity"] = f"{share:g}"
        values[f"{queue}.maximum-capacity"] = "100"
        values[f"{queue}.user-limit-factor"] = "10"
        values[f"{queue}.state"] = "RUNNING"
        values[f"{queue}.accessible-node-labels"] = "*"
    return values


def write_configuration(
    settings: MiniSettings, layout: Layout, ports: Mapping[str, int], jars: Path
) -> None:
    """Write the files that Hadoop reads, and create the folders that it expects."""
    for name in ("hdfs", "datanode"):
        (layout.static / "webapps" / name).mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir(exist_ok=True)
    layout.temporary.mkdir(exist_ok=True)
    # Containers load the kernels that this user's processes have compiled, and write no data there.
    kernels = cache_directory() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    layout.cache.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (layout.cache / "kernels").symlink_to(kernels)
    common = yarn(settings, layout, ports, jars)
    folders = {layout.conf: common}
    for number in range(settings.nodes):
        own = node(settings, layout, ports, number)
        folders[layout.node_conf(number)] = {**common, **own}
    for folder, site in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "core-site.xml", core(layout, ports))
        _write(folder / "hdfs-site.xml", hdfs(layout, ports))
        _write(folder / "yarn-site.xml", site)
        _write(folder / "capacity-scheduler.xml", queues(settings))
        (folder / "log4j.properties").write_text(_LOG4J)
    layout.leaving.touch()
    # Daemons resolve host names from this file only: DNS servers may be slow, and differ in their
    # answers for loopback addresses.
    layout.hosts.write_text(f"{HOST} localhost {socket.gethostname()}\n")


def _write(path: Path, values: Mapping[str, str]) -> None:
    lines = [
        f"  <property><name>{escape(k)}</name><value>{escape(v)}</value></property>"
        for k, v in values.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))
