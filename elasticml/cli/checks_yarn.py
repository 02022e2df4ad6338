"""Check a YARN cluster for elasticml: access, capacity, pre-emption and HDFS, with remedies."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from elasticml.cli.checks import Check, State, ask_program, check_package
from elasticml.clusters.yarn.application_spec import agent_jar
from elasticml.clusters.yarn.capacity_check import Container, grantable_now
from elasticml.clusters.yarn.compat import import_dask_yarn, import_skein
from elasticml.clusters.yarn.hadoop_conf import (
    GraceSettings,
    counts_vcores,
    grace_settings,
    is_secure,
    require_conf,
)
from elasticml.clusters.yarn.packing import packing_list
from elasticml.clusters.yarn.resource_manager import ResourceManager
from elasticml.clusters.yarn.rm_responses import Node, Queue
from elasticml.data.storage.filesystem import (
    join,
    read_bytes,
    reason_of,
    remove,
    system_of,
    write_whole,
)
from elasticml.data.storage.hdfs import absolute_hdfs
from elasticml.errors import ConfigError, ElasticmlError, SubmissionError, how_to_install, one_line
from elasticml.ids import format_size

#: Approximate seconds for moving a member's chunks; a shorter grace suffices for its state only.
_CHUNKS_S = 2.0
#: A longer node expiry delays replacements for the containers of a lost node.
_EXPIRY_S_MAX = 60.0
_REINSTALL = how_to_install("yarn")


def yarn_checks(
    environment: Mapping[str, str], queue: str = "default", memory_mib: int = 2048
) -> list[Check]:
    """Run all checks for jobs on YARN, on this machine and in the cluster.

    Parameters
    ----------
    queue : str
        Queue for the jobs.
    memory_mib : int
        Memory of one container, to report how many fit.
    """
    local = [
        check_package(
            "dask-yarn", "dask_yarn", "jobs on YARN", _REINSTALL, load=lambda _: import_dask_yarn()
        ),
        check_package("skein", "skein", "jobs on YARN", _REINSTALL, load=lambda _: import_skein()),
        check_class_path(),
        check_agent(agent_jar()),
        check_packing(),
    ]
    try:
        conf = require_conf(environment)
    except ConfigError as error:
        return [*local, _failed("Settings", "any use of the cluster", error)]
    found = Check(name="Settings", state="ok", found=conf.where(), serves="any use of the cluster")
    kerberos = [check_kerberos()] if is_secure(conf) else []
    cluster = cluster_checks(ResourceManager.from_conf(conf), queue, (memory_mib, 1, ""))
    return [*local, found, *kerberos, *cluster, check_hdfs(environment)]


def check_class_path(ask: Callable[[list[str]], str] = ask_program) -> Check:
    """Check that ``yarn classpath`` lists Hadoop's jars, as skein requires."""
    state: State = "ok"
    try:
        entries = ask(["yarn", "classpath", "--glob"]).strip().split(":")
        found = f"{sum(name.endswith('.jar') for name in entries)} jars on its class path"
        state = "ok" if any(name.endswith(".jar") for name in entries) else "broken"
    except FileNotFoundError:
        state, found = "missing", "no yarn on the PATH"
    except (OSError, subprocess.SubprocessError) as error:
        state, found = "broken", f"yarn: {one_line(error)}"
    is_usable = state == "ok"
    return Check(
        name="yarn",
        state=state,
        found=found,
        serves="starting applications: skein gets Hadoop's class path from it",
        required=True,
        remedy="" if is_usable else "put the folder of Hadoop's programs on the PATH",
    )


def check_agent(jar: Path | None) -> Check:
    """Check that the agent that forwards the resource manager's notices was built."""
    return Check(
        name="Agent",
        state="ok" if jar else "missing",
        found=str(jar) if jar else "not built: SIGTERM is the only warning of pre-emption",
        serves="advance notice of pre-emption",
        remedy="" if jar else "make agent (needs Maven and a JDK), or install the wheel",
    )


def check_packing() -> Check:
    """Check that the current Python environment can be packed for the containers."""
    serves = "elasticml submit --pack"
    try:
        listed = packing_list()
    except ConfigError as error:
        return _failed("Packing", serves, error, required=False)
    return Check(
        name="Packing",
        state="ok",
        found=f"{listed.kind} {listed.prefix}, {len(listed.files)} files",
        serves=serves,
    )


def check_kerberos(ask: Callable[[list[str]], str] = ask_program) -> Check:
    """Check for a valid ticket, on a cluster that requires Kerberos."""
    state: State = "ok"
    found, remedy = "a valid ticket", ""
    try:
        ask(["klist", "-s"])
    except FileNotFoundError:
        state, found = "missing", "no klist on the PATH"
        remedy = "install Kerberos's programs (Debian: krb5-user), then kinit"
    except (OSError, subprocess.SubprocessError):
        state, found = "broken", "no valid ticket"
        remedy = "kinit, or name principal and keytab in the job's cluster section"
    return Check(
        name="Kerberos",
        state=state,
        found=found,
        serves="a cluster with Kerberos",
        required=True,
        remedy=remedy,
    )


def cluster_checks(rm: ResourceManager, queue: str, container: Container) -> list[Check]:
    """Query the resource manager and check its settings; one check if it does not respond."""
    serves = "jobs on YARN"
    try:
        info = rm.info()
        nodes = rm.nodes()
        settings = rm.conf()
        kind = rm.scheduler()
    except SubmissionError as error:
        return [_failed("Manager", serves, error)]
    running = [node for node in nodes if node.is_usable]
    grace = grace_settings(settings, rm.node_conf(running[0]) if running else settings)
    version = info.get("resourceManagerVersion", "unknown version")
    return [
        Check(
            name="Manager",
            state="ok",
            found=f"{version} at {rm.url}, {kind} scheduler",
            serves=serves,
            required=True,
        ),
        check_nodes(nodes),
        check_queue(partial(rm.queue, queue), nodes, container, counts_vcores(settings)),
        *([check_preemption(grace)] if kind == "capacity" else []),
        check_grace(grace),
        check_expiry(grace),
        check_memory(grace),
        check_recovery(grace),
    ]


def check_nodes(nodes: Sequence[Node]) -> Check:
    """Check that there are running nodes."""
    running = [node for node in nodes if node.is_usable]
    found = f"{len(running)} of {len(nodes)} running"
    if running:
        largest = max(node.total for node in running)
        freest = max(node.free for node in running)
        labels = sorted({label for node in running for label in node.labels})
        found += (
            f"; the largest has {_size(largest.memory_mib)} and {largest.vcores} vcores; most free "
            f"on one node: {_size(freest.memory_mib)}"
            f"{'; labels ' + ', '.join(labels) if labels else ''}"
        )
    sick = next((node.health for node in nodes if not node.is_usable and node.health), "")
    return Check(
        name="Nodes",
        state="ok" if running else "broken",
        found=found,
        serves="containers",
        required=True,
        remedy="" if running else f"start the node managers{f' ({sick})' if sick else ''}",
    )


def check_queue(
    find: partial[Queue | None],
    nodes: Sequence[Node],
    container: Container,
    by_vcores: bool | None,
) -> Check:
    """Check the queue: existence, limits, and free capacity now."""
    try:
        queue = find()
    except SubmissionError as error:
        return _failed("Queue", "jobs on YARN", error, remedy="name another with --queue")
    count = grantable_now(queue, nodes, container, bool(by_vcores))
    room = f"room for {count} containers of {_size(container[0])} now"
    if queue is None:
        return Check(
            name="Queue",
            state="ok",
            found=f"{find.args[0]} is created on submission; {room}",
            serves="jobs",
        )
    words = [queue.name]
    if queue.guaranteed:
        words.append(f"{_size(queue.guaranteed.memory_mib)} guaranteed")
    if queue.maximum:
        words.append(f"at most {_size(queue.maximum.memory_mib)}")
    words.append(f"{_size(queue.used.memory_mib)} in use")
    if queue.is_preemptable is not None:
        words.append(f"{'' if queue.is_preemptable else 'not '}pre-emptable")
    return Check(
        name="Queue",
        state="ok" if count else "missing",
        found=", ".join([*words, room]),
        serves="starting jobs without waiting for others to end",
        remedy="" if count else "name another with --queue, or use smaller containers",
    )


def check_preemption(grace: GraceSettings) -> Check:
    """Check the capacity scheduler's pre-emption."""
    name, serves = "Pre-emption", "reclaiming containers that other queues hold beyond their share"
    if not grace.is_preempting:
        return Check(
            name=name,
            state="missing",
            found="off: a job keeps its containers, and waits for those that others hold",
            serves=serves,
            remedy="have yarn.resourcemanager.scheduler.monitor.enable set to true",
        )
    is_short = grace.max_wait_s < _CHUNKS_S
    return Check(
        name=name,
        state="missing" if is_short else "ok",
        found=(
            f"a container ends {grace.max_wait_s:g} s after its notice at the earliest "
            f"(max_wait_before_kill); every {grace.interval_s:g} s at most "
            f"{grace.per_round:.0%} of the cluster (total_preemption_per_round) and "
            f"{grace.natural_termination:.0%} of the deficit (natural_termination_factor)"
        ),
        serves="moving chunks away before a container ends",
        remedy="have max_wait_before_kill raised to 15000" if is_short else "",
    )


def check_grace(grace: GraceSettings) -> Check:
    """Check whether the seconds from SIGTERM to SIGKILL suffice to move chunks."""
    is_short = grace.sigkill_delay_s < _CHUNKS_S
    enough = "a member's state, not its chunks" if is_short else "a member's state and chunks"
    return Check(
        name="Grace",
        state="missing" if is_short else "ok",
        found=(
            f"SIGKILL {grace.sigkill_delay_s:g} s after SIGTERM "
            f"(sleep-delay-before-sigkill), enough for {enough}"
        ),
        serves="members that are killed without notice",
        remedy=(
            "have yarn.nodemanager.sleep-delay-before-sigkill.ms raised to 5000" if is_short else ""
        ),
    )


def check_expiry(grace: GraceSettings) -> Check:
    """Check how soon a silent node, with its containers, counts as lost."""
    is_long = grace.node_expiry_s > _EXPIRY_S_MAX
    return Check(
        name="Lost nodes",
        state="missing" if is_long else "ok",
        found=f"lost after {grace.node_expiry_s:g} s of silence; its containers are replaced then",
        serves="replacing the containers of a lost node",
        remedy=(
            "have yarn.nm.liveness-monitor.expiry-interval-ms lowered to 60000" if is_long else ""
        ),
    )


def check_memory(grace: GraceSettings) -> Check:
    """Report whether containers that use more memory than requested are killed."""
    if grace.is_memory_enforced:
        found = "enforced: a container that uses more than it requested is killed"
    else:
        found = "not enforced: only the node's memory limits a container"
    return Check(name="Memory", state="ok", found=found, serves="the size of containers")


def check_recovery(grace: GraceSettings) -> Check:
    """Check whether applications survive a restart of the resource manager."""
    state: State = "ok" if grace.is_recovering else "missing"
    return Check(
        name="Recovery",
        state=state,
        found=(
            "applications keep running while the resource manager restarts"
            if grace.is_recovering
            else "off: a restart of the resource manager ends all applications"
        ),
        serves="jobs that survive a restart of the resource manager",
        remedy=""
        if grace.is_recovering
        else "have yarn.resourcemanager.recovery.enabled set to true",
    )


def check_hdfs(environment: Mapping[str, str]) -> Check:
    """Check HDFS: write, read and remove a file in the user's home directory."""
    serves = "packed environments, results and checkpoints of jobs"
    try:
        root = absolute_hdfs("hdfs:///", environment)
        system, _ = system_of(root)
    except (OSError, ElasticmlError, ImportError) as error:
        return Check(
            name="HDFS",
            state="missing",
            found=" ".join(str(error).partition("; ")[0].split()),
            serves=serves,
            remedy="give jobs a shared folder as result: /shared/runs",
        )
    try:
        home = join(root, _home(system).strip("/"))
        place = join(home, f".elasticml-doctor-{secrets.token_hex(4)}")
        write_whole(place, b"elasticml")
        is_whole = read_bytes(place) == b"elasticml"
        with suppress(ConfigError):
            remove(place)
    except (OSError, ConfigError) as error:
        if isinstance(error, ConfigError):
            return _failed("HDFS", serves, error)
        return Check(
            name="HDFS",
            state="broken",
            found=f"{root} {reason_of(error)}",
            serves=serves,
            required=True,
            remedy="start the name node and the data nodes, or correct HADOOP_CONF_DIR",
        )
    free = getattr(system, "free_bytes", lambda: None)()
    return Check(
        name="HDFS",
        state="ok" if is_whole else "broken",
        found=(f"{home} is writable{f', {format_size(free)} free' if free else ''}"),
        serves=serves,
        required=True,
        remedy="" if is_whole else "the file read differs from the file written: run hdfs fsck /",
    )


def _home(system: object) -> str:
    home = getattr(system, "home", None)
    return str(home()) if home else "/tmp"


def _failed(
    name: str, serves: str, error: ElasticmlError, *, required: bool = True, remedy: str = ""
) -> Check:
    """Convert an error to a check; the last part of its message is the remedy."""
    found, _, rest = error.message.rpartition("; ")
    return Check(
        name=name,
        state="broken",
        found=error.message if remedy else found or rest,
        serves=serves,
        required=required,
        remedy=remedy or rest,
    )


def _size(memory_mib: int) -> str:
    return format_size(memory_mib * 2**20)
