"""``MiniYarn``: a real Hadoop on one machine: ResourceManager, NodeManagers, NameNode, DataNode."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from elasticml.errors import ConfigError, SubmissionError
from yarn.mini import startup, watchdog
from yarn.mini.configuration import write_configuration
from yarn.mini.daemons import (
    Daemons,
    environment_of,
    kill_all,
    make_root,
    marked,
)
from yarn.mini.java import Java, find_java, jars_directory
from yarn.mini.layout import Layout
from yarn.mini.mini_settings import (
    HOST,
    MiniSettings,
    Preemption,
    node_host,
    node_name,
)
from yarn.mini.programs import Programs
from yarn.mini.startup import PortTakenError, Start

# Choose free ports, so that several mini YARNs can run side by side.

#: Below Linux's ephemeral ports, above those of well-known services.
PORT_MIN, PORT_MAX = 11000, 32000

#: Ports of the daemons that run once.
SERVICES = (
    "name-rpc",
    "name-http",
    "data-stream",
    "data-http",
    "data-ipc",
    "resource-client",
    "resource-scheduler",
    "resource-tracker",
    "resource-admin",
    "resource-http",
)

#: Ports of each NodeManager.
NODE_SERVICES = ("rpc", "localizer", "http", "collector")


def port_names(nodes: int) -> list[str]:
    """Return the names of all ports of a mini YARN with this number of nodes."""
    return [*SERVICES, *(f"node-{i}-{name}" for i in range(nodes) for name in NODE_SERVICES)]


def choose_ports(names: Sequence[str], rng: random.Random) -> dict[str, int]:
    """Choose a free port for each name.

    Two processes that choose at the same time may choose the same port; a daemon then reports that
    its port is taken, and the start is retried with other ports.

    Parameters
    ----------
    names : sequence of str
        Names of the ports.
    rng : random.Random
        Decides in which order ports are tried.

    Raises
    ------
    ConfigError
        When there are not enough free ports.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as stack:
        # Each chosen port stays bound until all are chosen.
        for port in rng.sample(range(PORT_MIN, PORT_MAX), PORT_MAX - PORT_MIN):
            if len(chosen) == len(names):
                break
            trial = stack.enter_context(socket.socket())
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            chosen[names[len(chosen)]] = port
    if len(chosen) < len(names):
        raise ConfigError(
            f"too few free ports: got {len(chosen)} between {PORT_MIN} and {PORT_MAX} on {HOST}, "
            f"wanted {len(names)}; end processes that listen there (ss -ltnp lists them)"
        )
    return chosen


#: Seconds for a Hadoop command-line tool.
TOOL_S_MAX = 60.0

#: Seconds that a daemon has to exit, on top of the time that its containers may take.
DAEMON_S_MAX = 10.0

#: The ResourceManager's administration tool.
RM_ADMIN = "yarn.client.cli.RMAdminCLI"

#: Attempts to start when other programs take the chosen ports.
TRIES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started mini YARN.

    Parameters
    ----------
    daemons : Daemons
        Its processes.
    programs : Programs
        Command lines and paths.
    ports : mapping of str to int
        Port of each service.
    """

    daemons: Daemons
    programs: Programs
    ports: Mapping[str, int]


class MiniYarn:
    """A real Hadoop on this machine, for experiments and tests.

    Every process listens on loopback addresses, on free ports. As a context manager it ends with
    its block, and with this process, even if that is killed; after :meth:`up` it runs until
    :meth:`down`, which another process may call on ``MiniYarn.at(root)``.

    Parameters
    ----------
    root : str, Path or None
        Directory for configuration, data and logs; it may be absent, empty, or of a former mini
        YARN. None is a temporary one, which is removed with the cluster.
    say : callable or None
        Called with progress messages of one line.
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
        self._given_root = None if root is None else Path(root).resolve()
        self._running: Running | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @classmethod
    def at(cls, root: str | Path) -> MiniYarn:
        """Return the mini YARN that another process has started at ``root``.

        Raises
        ------
        ConfigError
            When there is none.
        """
        layout = Layout(Path(root).resolve())
        daemons = Daemons(layout)
        try:
            daemons.load()
        except FileNotFoundError:
            raise ConfigError(
                f"no mini YARN: there is no {layout.state.name} in {layout.root}; start one: "
                "make yarn-up"
            ) from None
        facts = daemons.facts
        settings = dict(facts["settings"])
        if settings["preemption"] is not None:
            settings["preemption"] = Preemption(**settings["preemption"])
        cluster = cls(layout.root, **settings)
        cluster._running = Running(
            daemons=daemons,
            programs=Programs(java=Java(**facts["java"]), jars=Path(facts["jars"]), layout=layout),
            ports=facts["ports"],
        )
        return cluster

    @classmethod
    def end_at(cls, root: str | Path) -> int:
        """End the mini YARN at ``root``, even a broken one; return the number of its processes."""
        layout = Layout(Path(root).resolve())
        count = len(marked(layout.root))
        if layout.state.exists():
            cls.at(layout.root).down()
        kill_all(marked(layout.root))
        return count

    def up(self) -> Self:
        """Start all daemons and wait until YARN can grant containers.

        Raises
        ------
        ConfigError
            When Java, Maven, the directory or ports are missing; nothing was started.
        SubmissionError
            When a daemon exits or does not become ready; nothing is left running.
        """
        return self._up(is_kept=True)

    def __enter__(self) -> Self:
        """Start all daemons; they end with this process at the latest."""
        return self._up(is_kept=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all daemons and containers."""
        self.down()

    def down(self) -> None:
        """End every process: daemons, containers and their remaining children."""
        if self._running is None:
            return
        self._running.daemons.end_all(self.settings.sigkill_delay_s)
        self._clean_up()

    @property
    def root(self) -> Path:
        """Directory of configuration, data and logs."""
        return self._now.programs.layout.root

    @property
    def conf_dir(self) -> Path:
        """Directory for ``HADOOP_CONF_DIR``."""
        return self._now.programs.layout.conf

    @property
    def hdfs_url(self) -> str:
        """URL of HDFS, such as ``hdfs://127.0.0.1:12345``."""
        return f"hdfs://{HOST}:{self._now.ports['name-rpc']}"

    @property
    def webhdfs_url(self) -> str:
        """URL of WebHDFS, such as ``http://127.0.0.1:12346``."""
        return f"http://{HOST}:{self._now.ports['name-http']}"

    @property
    def rm_url(self) -> str:
        """URL of the ResourceManager's web service."""
        return f"http://{HOST}:{self._now.ports['resource-http']}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables for a client: configuration, Java, PATH."""
        return self._now.programs.client_environment()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the running daemons by name, such as ``node-0``."""
        return self._now.daemons.pids()

    def daemons(self) -> list[str]:
        """Return the names of all daemons of this cluster, running or not."""
        nodes = [node_name(i) for i in range(self.settings.nodes)]
        return ["resource", *nodes, "name", "data"]

    def processes(self) -> list[int]:
        """Return the ids of all processes of this cluster, containers included."""
        return [process.pid for process in marked(self.root)]

    def nodes(self) -> dict[str, str]:
        """Return the state, such as ``RUNNING``, of each node that the ResourceManager knows."""
        return startup.node_states(self.rm_url)

    def kill_node(self, number: int, *, containers: bool = False) -> None:
        """Kill a NodeManager with SIGKILL; its containers keep running unless they are killed too.

        Parameters
        ----------
        number : int
            Index of the node, from 0.
        containers : bool
            Whether to kill its containers too, as when a machine dies.
        """
        self._end(node_name(number), signal.SIGKILL)
        if containers:
            host = node_host(number)
            on_node = [p for p in marked(self.root) if environment_of(p.pid).get("NM_HOST") == host]
            kill_all(on_node)

    def start_node(self, number: int) -> None:
        """Restart a NodeManager; return when it has registered with the ResourceManager."""
        self._begin(node_name(number))

    def kill_resource_manager(self) -> None:
        """Kill the ResourceManager with SIGKILL."""
        self._end("resource", signal.SIGKILL)

    def stop_resource_manager(self) -> None:
        """Stop the ResourceManager with SIGTERM; applications keep running."""
        self._end("resource", signal.SIGTERM)

    def start_resource_manager(self) -> None:
        """Restart the ResourceManager; return when its nodes have registered again."""
        self._begin("resource")

    def repair(self) -> None:
        """Restart every daemon that has exited, and recommission nodes."""
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
            # A decommissioned or lost NodeManager exits by itself sooner or later.
            self._end(node_name(number), signal.SIGKILL)
            self._begin(node_name(number))

    def decommission(self, number: int, seconds: int) -> None:
        """Decommission a node gracefully.

        Parameters
        ----------
        number : int
            Index of the node, from 0.
        seconds : int
            Timeout for its containers.
        """
        leaving = self._now.programs.layout.leaving
        leaving.write_text(leaving.read_text() + f"{node_host(number)}\n")
        self.tool(RM_ADMIN, "-refreshNodes", "-g", str(seconds), "-server")

    def recommission(self) -> None:
        """Recommission all nodes; one that has left must be started again."""
        self._now.programs.layout.leaving.write_text("")
        self.tool(RM_ADMIN, "-refreshNodes")

    def tool(self, main: str, *arguments: str) -> str:
        """Run a Hadoop tool, such as ``yarn.client.cli.NodeCLI``; return its standard output.

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
            output = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise SubmissionError(
                f"{main} {' '.join(arguments)}: got exit code {done.returncode} and {output}, "
                f"wanted 0; see {self._now.programs.layout.logs}"
            )
        return done.stdout

    @property
    def _now(self) -> Running:
        if self._running is None:
            raise ConfigError("the mini YARN is not running; call up() first, or use it in `with`")
        return self._running

    def _end(self, name: str, number: int) -> None:
        daemons = self._now.daemons
        daemons.signal(name, number)
        if not daemons.wait([name], self.settings.sigkill_delay_s + DAEMON_S_MAX):
            daemons.signal(name, signal.SIGKILL)
            daemons.wait([name], DAEMON_S_MAX)

    def _begin(self, name: str) -> None:
        """Restart a daemon; do nothing if it is running."""
        now = self._now
        if name not in now.daemons.pids():
            self._start(now).again(name)

    def _up(self, *, is_kept: bool) -> Self:
        if self._running is not None:
            raise ConfigError(
                f"this mini YARN is already running at {self.root}; call down() first"
            )
        java = find_java()
        jars = jars_directory(self._say)
        for left in reversed(range(TRIES_MAX)):
            layout = Layout(make_root(self._given_root, self._say))
            now = self._running = Running(
                daemons=Daemons(layout),
                programs=Programs(java=java, jars=jars, layout=layout),
                # Not seeded: two clusters must not choose the same ports.
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
                    self._watchdog = watchdog.start_watchdog(
                        layout.root, wait_s, self._given_root is None
                    )
                write_configuration(self.settings, layout, now.ports, jars)
                now.programs.write_shims()
                self._start(now).everything()
            except PortTakenError:
                self._roll_back()
                if not left:
                    raise
                self._say("another program has taken a port; trying others")
            except BaseException:
                self._roll_back()
                raise
            else:
                return self
        raise AssertionError("unreachable")

    def _start(self, now: Running) -> Start:
        return Start(now.daemons, now.programs, self.settings, now.ports, self._say)

    def _roll_back(self) -> None:
        """End the daemons of a cluster that did not become ready."""
        kill_all(marked(self.root))
        self._now.daemons.end_all(0.0)
        self._clean_up()

    def _clean_up(self) -> None:
        """Remove a temporary directory, or the state file in a given one."""
        if self._given_root is None:
            shutil.rmtree(self.root, ignore_errors=True)
        else:
            self._now.programs.layout.state.unlink(missing_ok=True)
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None
        self._running = None
