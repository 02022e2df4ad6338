"""Hadoop's programs: command lines of daemons and tools, and the shims ``yarn`` and ``hdfs``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn.mini.configuration import MARKER
from yarn.mini.java import Java
from yarn.mini.layout import Layout

_HADOOP = "org.apache.hadoop"

#: Main class and heap size in mebibytes of each kind of daemon.
DAEMONS = {
    "name": (f"{_HADOOP}.hdfs.server.namenode.NameNode", 192),
    "data": (f"{_HADOOP}.hdfs.server.datanode.DataNode", 128),
    "resource": (f"{_HADOOP}.yarn.server.resourcemanager.ResourceManager", 256),
    "node": (f"{_HADOOP}.yarn.server.nodemanager.NodeManager", 192),
}

#: Subcommands of the shims besides ``classpath``, with their main classes.
_YARN_TOOLS = {
    "application": "yarn.client.cli.ApplicationCLI",
    "container": "yarn.client.cli.ApplicationCLI",
    "logs": "yarn.client.cli.LogsCLI",
    "node": "yarn.client.cli.NodeCLI",
    "queue": "yarn.client.cli.QueueCLI",
    "rmadmin": "yarn.client.cli.RMAdminCLI",
}
_HDFS_TOOLS = {"dfs": "fs.FsShell", "dfsadmin": "hdfs.tools.DFSAdmin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Command lines and environments of one mini YARN's programs.

    Parameters
    ----------
    java : Java
        The Java that runs them.
    jars : Path
        Folder of Hadoop's jars.
    layout : Layout
        Paths of the configuration.
    """

    java: Java
    jars: Path
    layout: Layout

    def daemon(self, name: str) -> list[str]:
        """Return the command line of a daemon: ``name``, ``data``, ``resource`` or ``node-0``."""
        kind, _, number = name.partition("-")
        main, heap_mib = DAEMONS[kind]
        conf = self.layout.node_conf(int(number)) if number else self.layout.conf
        return [*self._java(conf, heap_mib), main]

    def format_name(self) -> list[str]:
        """Return the command line that formats an empty file system."""
        main, heap_mib = DAEMONS["name"]
        return [*self._java(self.layout.conf, heap_mib), main, "-format", "-nonInteractive"]

    def tool(self, main: str, *arguments: str) -> list[str]:
        """Return the command line of a tool, such as ``yarn.client.cli.RMAdminCLI``."""
        return [*self._java(self.layout.conf, 128), f"{_HADOOP}.{main}", *arguments]

    def client_environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment variables for a client of this cluster."""
        path = environ.get("PATH", os.defpath)
        ours = str(self.layout.bin)
        return {
            "HADOOP_CONF_DIR": str(self.layout.conf),
            "JAVA_HOME": self.java.home,
            "PATH": path if path.startswith(f"{ours}:") else f"{ours}:{path}",
        }

    def daemon_environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the whole environment of a daemon."""
        own = {MARKER: str(self.layout.root)}
        return {**environ, **self.client_environment(environ), **own}

    def write_shims(self) -> None:
        """Write the shell scripts ``yarn`` and ``hdfs``."""
        self.layout.bin.mkdir(exist_ok=True)
        whole = ":".join([str(self.layout.conf), *map(str, sorted(self.jars.glob("*.jar")))])
        short = f"{self.layout.conf}:{self.jars}/*"
        classpath = (
            f'  classpath) [ "${{2:-}}" = --glob ] && echo {shlex.quote(whole)} '
            f"|| echo {shlex.quote(short)} ;;"
        )
        for name, tools in (("yarn", _YARN_TOOLS), ("hdfs", _HDFS_TOOLS)):
            usage = " | ".join(["classpath --glob", *tools])
            lines = ["#!/bin/sh", 'tool="${1:-}"', 'case "$tool" in', classpath]
            for tool, main in tools.items():
                # ApplicationCLI takes the subcommand as its first argument.
                shift = "" if main.endswith("ApplicationCLI") else "shift; "
                command = shlex.join(self.tool(main))
                lines.append(f'  {tool}) {shift}exec {command} "$@" ;;')
            lines.append(f'  *) echo "{name}: got $tool, wanted {usage}" >&2; exit 2 ;;')
            program = self.layout.bin / name
            program.write_text("\n".join([*lines, "esac", ""]))
            program.chmod(0o755)

    def _java(self, conf: Path, heap_mib: int) -> list[str]:
        class_path = f"{conf}:{self.layout.static}:{self.jars}/*"
        own = [
            f"-Djdk.net.hosts.file={self.layout.hosts}",
            f"-Djava.io.tmpdir={self.layout.temporary}",
        ]
        return [self.java.program, *self.java.options(heap_mib), *own, "-cp", class_path]
