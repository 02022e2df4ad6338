"""The start of a mini YARN: all daemons at once, then waiting until each of them is ready."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Callable, Mapping

from elasticml.clusters.hadoop import requests
from elasticml.clusters.hadoop.daemons import Daemons
from elasticml.clusters.hadoop.programs import Programs
from elasticml.clusters.hadoop.settings import HOST, MiniSettings, node_host, node_name
from elasticml.clusters.polling import until
from elasticml.errors import SubmissionError

#: Seconds until everything is ready, on a machine that has much else to do.
READY_S_MAX = 180.0

#: Seconds between two looks.
LOOK_S = 0.1

#: Seconds in which the daemon shows whose end made another one end.
CAUSE_S_MAX = 5.0

_TAKEN = "Address already in use"


class PortTakenError(SubmissionError):
    """A daemon found its port taken."""


class Start:
    """The start of a mini YARN.

    Parameters
    ----------
    daemons : Daemons
        Its processes.
    programs : Programs
        How they are run.
    settings : MiniSettings
        What it is like.
    ports : mapping of str to int
        Port of each service.
    say : callable
        Told in a line what is being done.
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
        """Start all daemons and wait until containers can be granted and files be written.

        Raises
        ------
        SubmissionError
            When one ended, or was not ready in time; PortTakenError where another program has its
            port.
        """
        nodes = [node_name(i) for i in range(self._settings.nodes)]
        self._say(f"starting the ResourceManager, {len(nodes)} NodeManagers and HDFS")
        # The file system is formatted while the others start.
        with open(self._programs.layout.log("format"), "wb") as log:
            formatting = subprocess.Popen(
                self._programs.format_name(), stdout=log, stderr=log, env=self._environment
            )
        try:
            for name in ("resource", *nodes):
                self._launch(name)
            if formatting.wait(READY_S_MAX):
                raise self._failed("format", "ended")
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
        """Start one daemon again; returns when all nodes whose daemons run are there."""
        self._launch(name)
        self._wait(self._has_nodes, name)

    def _launch(self, name: str) -> None:
        self._daemons.start(name, self._programs.daemon(name), self._environment)
        self._launched.add(name)

    def _wait(self, is_ready: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            ended = self._launched - self._daemons.pids().keys()
            if ended:
                raise self._failed(self._first_cause(ended), "ended")
            return is_ready()

        if not until(is_so, wait_s=READY_S_MAX, every_s=LOOK_S):
            raise SubmissionError(
                f"no mini YARN: {what} not ready within {READY_S_MAX:g} s; see "
                f"{self._programs.layout.logs}, or try with less other work on this machine"
            )

    def _first_cause(self, ended: set[str]) -> str:
        """Name the daemon whose end made others end: one whose port was taken, if any was.

        A ResourceManager needs seconds to end, in which NodeManagers that fail to reach it end
        before it.
        """
        until(lambda: bool(self._without_port()), wait_s=CAUSE_S_MAX, every_s=LOOK_S)
        return min(self._without_port() or ended)

    def _without_port(self) -> set[str]:
        return {name for name in self._launched if self._has_no_port(name)}

    def _has_no_port(self, name: str) -> bool:
        return _TAKEN in self._programs.layout.log(name).read_text(errors="replace")

    def _is_hdfs_ready(self) -> bool:
        user = getpass.getuser()
        return requests.live_data_nodes(self._name_url) > 0 and all(
            requests.make_directory(self._name_url, path, user, permission)
            for path, permission in (("/tmp", "1777"), (f"/user/{user}", "755"))
        )

    def _has_nodes(self) -> bool:
        running = self._daemons.pids()
        states = requests.node_states(self._rm_url)
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
        telling = [line for line in lines if "Exception" in line or " FATAL " in line]
        last = (telling or lines or ["nothing"])[-1]
        return kind(
            f"no mini YARN: {name} {how}, got {last[:300]!r} in its log, wanted it running; see "
            f"{log}",
            daemon=name,
        )
