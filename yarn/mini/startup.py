"""Start a mini YARN: launch all daemons at once, then wait until each of them is ready."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from elasticml.clusters.polling import until
from elasticml.data.storage.hadoop_http import ask as send
from elasticml.errors import SubmissionError
from yarn.mini.daemons import Daemons
from yarn.mini.mini_settings import HOST, MiniSettings, node_host, node_name
from yarn.mini.programs import Programs

# Requests to the web services of YARN and HDFS on this machine.

#: Seconds for a response from this machine.
ANSWER_S_MAX = 5.0


def ask(url: str, method: str = "GET") -> dict[str, Any] | None:
    """Return a web service's JSON response; None if it does not respond yet."""
    try:
        answer = send(method, url, headers={"Accept": "application/json"}, timeout_s=ANSWER_S_MAX)
    except OSError:
        return None
    content: dict[str, Any] | None = answer.json() if answer.body else {}
    return content if answer.status < HTTPStatus.BAD_REQUEST else None


def node_states(rm_url: str) -> dict[str, str]:
    """Return the state of each node that the ResourceManager knows, by node id."""
    content = ask(f"{rm_url}/ws/v1/cluster/nodes") or {}
    nodes = (content.get("nodes") or {}).get("node") or []
    return {node["id"]: node["state"] for node in nodes}


def live_data_nodes(name_url: str) -> int:
    """Return the number of live DataNodes; 0 if the NameNode does not respond."""
    content = ask(f"{name_url}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState") or {}
    beans = content.get("beans") or [{}]
    return int(beans[0].get("NumLiveDataNodes", 0))


def make_directory(name_url: str, path: str, user: str, permission: str) -> bool:
    """Make a directory on HDFS; return whether it exists."""
    query = f"op=MKDIRS&permission={permission}&user.name={user}"
    content = ask(f"{name_url}/webhdfs/v1{path}?{query}", "PUT") or {}
    return bool(content.get("boolean"))


#: Seconds until everything is ready, even on a busy machine.
READY_S_MAX = 180.0

#: Seconds between two polls.
LOOK_S = 0.1

#: Seconds to wait until the daemon that caused another one to exit has logged its own error.
CAUSE_S_MAX = 5.0

_TAKEN = "Address already in use"


class PortTakenError(SubmissionError):
    """A daemon found its port taken by another program."""


class Start:
    """Start the daemons of a mini YARN.

    Parameters
    ----------
    daemons : Daemons
        Its processes.
    programs : Programs
        Their command lines.
    settings : MiniSettings
        Its settings.
    ports : mapping of str to int
        Port of each service.
    say : callable
        Called with progress messages of one line.
    """

    def __init__(
        self,
        daemons: Daemons,
        programs: Programs,
        settings: MiniSettings,
        ports: Mapping[str, int],
        say: Callable[[str], None],
    ) -> None:
        self._daemons = daemons
        self._programs = programs
        self._settings = settings
        self._say = say
        self._rm_url = f"http://{HOST}:{ports['resource-http']}"
        self._name_url = f"http://{HOST}:{ports['name-http']}"
        self._environment = programs.daemon_environment()
        self._launched: set[str] = set()
        self._node_ids = [f"{node_host(i)}:{ports[f'node-{i}-rpc']}" for i in range(settings.nodes)]

    def everything(self) -> None:
        """Start all daemons and wait until YARN can grant containers and HDFS can be written.

        Raises
        ------
        SubmissionError
            When a daemon exits, or is not ready in time; PortTakenError when another program has
            its port.
        """
        nodes = [node_name(i) for i in range(self._settings.nodes)]
        self._say(f"starting the ResourceManager, {len(nodes)} NodeManagers and HDFS")
        # Format the file system while the other daemons start.
        with open(self._programs.layout.log("format"), "wb") as log:
            formatting = subprocess.Popen(
                self._programs.format_name(), stdout=log, stderr=log, env=self._environment
            )
        try:
            for name in ("resource", *nodes):
                self._launch(name)
            if formatting.wait(READY_S_MAX):
                raise self._failed("format", "failed")
        finally:
            formatting.kill()
            formatting.wait()
        self._launch("name")
        self._launch("data")
        self._wait(self._is_hdfs_ready, "HDFS")
        self._say("HDFS is ready")
        self._wait(self._has_nodes, "the NodeManagers")
        self._say(f"YARN is ready, {len(nodes)} nodes")

    def again(self, name: str) -> None:
        """Restart one daemon; return when the nodes of all running daemons have registered."""
        self._launch(name)
        self._wait(self._has_nodes, name)

    def _launch(self, name: str) -> None:
        self._daemons.start(name, self._programs.daemon(name), self._environment)
        self._launched.add(name)

    def _wait(self, is_ready: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            exited = self._launched - self._daemons.pids().keys()
            if exited:
                raise self._failed(self._first_cause(exited), "exited")
            return is_ready()

        if not until(is_so, wait_s=READY_S_MAX, every_s=LOOK_S):
            raise SubmissionError(
                f"the mini YARN did not start: {what} not ready within {READY_S_MAX:g} s; see "
                f"{self._programs.layout.logs}, or retry when this machine is less busy"
            )

    def _first_cause(self, exited: set[str]) -> str:
        """Return the daemon whose failure caused the others': one whose port was taken, if any.

        A ResourceManager takes seconds to exit. NodeManagers that cannot reach it exit before it.
        """
        until(lambda: bool(self._without_port()), wait_s=CAUSE_S_MAX, every_s=LOOK_S)
        return min(self._without_port() or exited)

    def _without_port(self) -> set[str]:
        return {name for name in self._launched if self._has_no_port(name)}

    def _has_no_port(self, name: str) -> bool:
        return _TAKEN in self._programs.layout.log(name).read_text(errors="replace")

    def _is_hdfs_ready(self) -> bool:
        user = getpass.getuser()
        return live_data_nodes(self._name_url) > 0 and all(
            make_directory(self._name_url, path, user, permission)
            for path, permission in (("/tmp", "1777"), (f"/user/{user}", "755"))
        )

    def _has_nodes(self) -> bool:
        running = self._daemons.pids()
        states = node_states(self._rm_url)
        return all(
            states.get(node_id) in ("RUNNING", "DECOMMISSIONING")
            for number, node_id in enumerate(self._node_ids)
            if node_name(number) in running
        )

    def _failed(self, name: str, how: str) -> SubmissionError:
        log = self._programs.layout.log(name)
        text = log.read_text(errors="replace")
        kind = PortTakenError if self._has_no_port(name) else SubmissionError
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Exception" in line or " FATAL " in line]
        last = (errors or lines or ["nothing"])[-1]
        return kind(
            f"the mini YARN did not start: {name} {how}; its log says {last[:300]!r}; see {log}",
            daemon=name,
        )
