"""A real Hadoop on one machine: ResourceManager, NodeManagers, NameNode and DataNode."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from elasticml.clusters.hadoop import requests, warden
from elasticml.clusters.hadoop.configuration import write_configuration
from elasticml.clusters.hadoop.daemons import Daemons, environment_of, kill_all, marked
from elasticml.clusters.hadoop.jars import jars_directory
from elasticml.clusters.hadoop.java import Java, find_java
from elasticml.clusters.hadoop.layout import Layout
from elasticml.clusters.hadoop.ports import choose_ports, port_names
from elasticml.clusters.hadoop.programs import Programs
from elasticml.clusters.hadoop.root import make_root
from elasticml.clusters.hadoop.settings import (
    HOST,
    MiniSettings,
    Preemption,
    node_host,
    node_name,
)
from elasticml.clusters.hadoop.start import PortTakenError, Start
from elasticml.errors import ConfigError, SubmissionError

#: Seconds for a tool of Hadoop.
TOOL_S_MAX = 60.0

#: Seconds that a daemon has to end, on top of what its containers may take.
DAEMON_S_MAX = 10.0

#: The ResourceManager's administration.
RM_ADMIN = "yarn.client.cli.RMAdminCLI"

#: Starts that may fail because another program took a port in between.
TRIES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What there is of a mini YARN once it has been started.

    Parameters
    ----------
    daemons : Daemons
        Its processes.
    programs : Programs
        How they are run, and where they lie.
    ports : mapping of str to int
        Port of each service.
    """

    daemons: Daemons
    programs: Programs
    ports: Mapping[str, int]


class MiniYarn:
    """A real Hadoop on this machine, for trying things out and for tests.

    Every process listens on loopback addresses, on ports that were free. As a context manager it
    ends with its block, and with this process, however that ends; after :meth:`up` it goes on until
    :meth:`down`, which another process may call on ``MiniYarn.at(root)``.

    Parameters
    ----------
    root : str, Path or None
        Directory for configuration, data and logs, absent or empty or of a former mini YARN; None:
        a temporary one, which goes with the cluster.
    say : callable or None
        Told in a line what is being done.
    **settings
        Fields of :class:`MiniSettings`, such as ``nodes`` and ``preemption``.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        say: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> None:
        self.settings = MiniSettings(**settings)
        self._say = say or (lambda line: None)
        self._given = None if root is None else Path(root).resolve()
        self._running: Running | None = None
        self._warden: subprocess.Popen[bytes] | None = None

    @classmethod
    def at(cls, root: str | Path) -> MiniYarn:
        """Return the mini YARN that another process has started at ``root``.

        Raises
        ------
        ConfigError
            When none was started there.
        """
        layout = Layout(Path(root).resolve())
        daemons = Daemons(layout)
        try:
            daemons.load()
        except FileNotFoundError:
            raise ConfigError(
                f"no mini YARN: got no {layout.state.name} in {layout.root}, wanted a started one; "
                "start one with: elasticml mini-yarn up"
            ) from None
        facts = daemons.facts
        settings = dict(facts["settings"])
        if settings["preemption"] is not None:
            settings["preemption"] = Preemption(**settings["preemption"])
        found = cls(layout.root, **settings)
        found._running = Running(
            daemons=daemons,
            programs=Programs(java=Java(**facts["java"]), jars=Path(facts["jars"]), layout=layout),
            ports=facts["ports"],
        )
        return found

    @classmethod
    def end_at(cls, root: str | Path) -> int:
        """End whatever there is of a mini YARN at ``root``, however broken; count its processes."""
        layout = Layout(Path(root).resolve())
        count = len(marked(layout.root))
        if layout.state.exists():
            cls.at(layout.root).down()
        kill_all(marked(layout.root))
        return count

    def up(self) -> Self:
        """Start everything and wait until containers can be granted.

        Raises
        ------
        ConfigError
            When Java, Maven, the directory or ports are missing; nothing was started.
        SubmissionError
            When a daemon ended or did not get ready; nothing is left running.
        """
        return self._up(is_kept=True)

    def __enter__(self) -> Self:
        """Start everything; it ends with this process at the latest."""
        return self._up(is_kept=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything."""
        self.down()

    def down(self) -> None:
        """End every process: daemons, containers and what containers left behind."""
        if self._running is None:
            return
        self._running.daemons.end_all(self.settings.sigkill_delay_s)
        self._clear_away()

    @property
    def root(self) -> Path:
        """Directory of configuration, data and logs."""
        return self._now.programs.layout.root

    @property
    def conf_dir(self) -> Path:
        """What ``HADOOP_CONF_DIR`` names."""
        return self._now.programs.layout.conf

    @property
    def hdfs_url(self) -> str:
        """Where HDFS is, such as ``hdfs://127.0.0.1:12345``."""
        return f"hdfs://{HOST}:{self._now.ports['name-rpc']}"

    @property
    def webhdfs_url(self) -> str:
        """Where HDFS is over HTTP, such as ``http://127.0.0.1:12346``."""
        return f"http://{HOST}:{self._now.ports['name-http']}"

    @property
    def rm_url(self) -> str:
        """The ResourceManager's web service."""
        return f"http://{HOST}:{self._now.ports['resource-http']}"

    def environment(self) -> dict[str, str]:
        """Return what a client adds to its environment: configuration, Java, path."""
        return self._now.programs.client_environment()

    def pids(self) -> dict[str, int]:
        """Return the process id of each daemon that runs, such as of ``node-0``."""
        return self._now.daemons.pids()

    def daemons(self) -> list[str]:
        """Return the names of the daemons that there should be."""
        nodes = [node_name(i) for i in range(self.settings.nodes)]
        return ["resource", *nodes, "name", "data"]

    def processes(self) -> list[int]:
        """Return the ids of all processes of this cluster, containers included."""
        return [process.pid for process in marked(self.root)]

    def nodes(self) -> dict[str, str]:
        """Return the state of each node that the ResourceManager knows, such as ``RUNNING``."""
        return requests.node_states(self.rm_url)

    def kill_node(self, number: int, *, containers: bool = False) -> None:
        """Kill a NodeManager with SIGKILL; its containers live on, as they would, or go with it.

        Parameters
        ----------
        number : int
            Which, from 0.
        containers : bool
            Whether its containers are killed with it, as when a machine dies.
        """
        self._end(node_name(number), signal.SIGKILL)
        if containers:
            host = node_host(number)
            mine = [p for p in marked(self.root) if environment_of(p.pid).get("NM_HOST") == host]
            kill_all(mine)

    def start_node(self, number: int) -> None:
        """Start a NodeManager again; returns when the ResourceManager has it back."""
        self._begin(node_name(number))

    def kill_resource_manager(self) -> None:
        """Kill the ResourceManager with SIGKILL."""
        self._end("resource", signal.SIGKILL)

    def stop_resource_manager(self) -> None:
        """End the ResourceManager in good order; applications go on."""
        self._end("resource", signal.SIGTERM)

    def start_resource_manager(self) -> None:
        """Start the ResourceManager again; returns when it has its nodes back."""
        self._begin("resource")

    def repair(self) -> None:
        """Start every daemon that has ended, and take back nodes that were told to leave."""
        if "resource" not in self.pids():
            self._begin("resource")
        if self._now.programs.layout.leaving.read_text():
            self.recommission()
        for name in self.daemons():
            self._begin(name)
        states = self.nodes()
        for number in range(self.settings.nodes):
            host = node_host(number)
            if any(s == "RUNNING" for node, s in states.items() if node.startswith(f"{host}:")):
                continue
            # One that was told to leave, or was given up for lost, ends by itself sooner or later.
            self._end(node_name(number), signal.SIGKILL)
            self._begin(node_name(number))

    def decommission(self, number: int, seconds: int) -> None:
        """Tell the ResourceManager that a node is to leave, and when at the latest.

        Parameters
        ----------
        number : int
            Which, from 0.
        seconds : int
            Time that its containers have.
        """
        leaving = self._now.programs.layout.leaving
        leaving.write_text(leaving.read_text() + f"{node_host(number)}\n")
        self.tool(RM_ADMIN, "-refreshNodes", "-g", str(seconds), "-server")

    def recommission(self) -> None:
        """Take all nodes back that were told to leave; one that has left is to be started again."""
        self._now.programs.layout.leaving.write_text("")
        self.tool(RM_ADMIN, "-refreshNodes")

    def tool(self, main: str, *arguments: str) -> str:
        """Run a tool of Hadoop, such as ``yarn.client.cli.NodeCLI``; return what it prints.

        Raises
        ------
        SubmissionError
            When it fails.
        """
        done = subprocess.run(
            self._now.programs.tool(main, *arguments),
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=TOOL_S_MAX,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise SubmissionError(
                f"{main} {' '.join(arguments)}: got exit code {done.returncode} and {said}, "
                f"wanted 0; see {self._now.programs.layout.logs}"
            )
        return done.stdout

    @property
    def _now(self) -> Running:
        if self._running is None:
            raise ConfigError("no mini YARN: got one that is not started, wanted a started one; up")
        return self._running

    def _end(self, name: str, number: int) -> None:
        daemons = self._now.daemons
        daemons.signal(name, number)
        if not daemons.wait([name], self.settings.sigkill_delay_s + DAEMON_S_MAX):
            daemons.signal(name, signal.SIGKILL)
            daemons.wait([name], DAEMON_S_MAX)

    def _begin(self, name: str) -> None:
        """Start a daemon again; nothing happens where it runs."""
        now = self._now
        if name not in now.daemons.pids():
            self._start(now).again(name)

    def _up(self, *, is_kept: bool) -> Self:
        if self._running is not None:
            raise ConfigError(f"a mini YARN: got one that runs at {self.root}, wanted none; down")
        java = find_java()
        jars = jars_directory(self._say)
        for left in reversed(range(TRIES_MAX)):
            layout = Layout(make_root(self._given, self._say))
            now = self._running = Running(
                daemons=Daemons(layout),
                programs=Programs(java=java, jars=jars, layout=layout),
                # Chance that no seed decides: two clusters must not choose the same ports.
                ports=choose_ports(port_names(self.settings.nodes), random.SystemRandom()),
            )
            now.daemons.facts = {
                "settings": asdict(self.settings),
                "java": asdict(java),
                "jars": str(jars),
                "ports": now.ports,
            }
            try:
                now.daemons.save()
                if not is_kept:
                    wait_s = self.settings.sigkill_delay_s
                    self._warden = warden.hire(layout.root, wait_s, self._given is None)
                write_configuration(self.settings, layout, now.ports, jars)
                now.programs.write_shims()
                self._start(now).everything()
            except PortTakenError:
                self._abandon()
                if not left:
                    raise
                self._say("another program took a port meanwhile; trying others")
            except BaseException:
                self._abandon()
                raise
            else:
                return self
        raise AssertionError("unreachable")

    def _start(self, now: Running) -> Start:
        return Start(now.daemons, now.programs, self.settings, now.ports, self._say)

    def _abandon(self) -> None:
        """End what was started of a cluster that did not get ready."""
        kill_all(marked(self.root))
        self._now.daemons.end_all(0.0)
        self._clear_away()

    def _clear_away(self) -> None:
        """Remove a temporary directory, or what says that a cluster runs in a given one."""
        if self._given is None:
            shutil.rmtree(self.root, ignore_errors=True)
        else:
            self._now.programs.layout.state.unlink(missing_ok=True)
        if self._warden is not None:
            assert self._warden.stdin is not None
            self._warden.stdin.close()
            self._warden.wait()
            self._warden = None
        self._running = None
