"""Paths of a mini YARN's files below its root directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from yarn.mini.mini_settings import node_name


@dataclass(frozen=True, slots=True)
class Layout:
    """The files and folders of a mini YARN.

    Parameters
    ----------
    root : Path
        Absolute; everything is below it.
    """

    root: Path

    @property
    def conf(self) -> Path:
        """Configuration of clients, containers, and all daemons except the NodeManagers."""
        return self.root / "conf"

    def node_conf(self, number: int) -> Path:
        """Return the configuration folder of one NodeManager."""
        return self.root / "conf" / node_name(number)

    def node(self, number: int) -> Path:
        """Return the folder of a NodeManager's containers and their logs."""
        return self.root / node_name(number)

    @property
    def static(self) -> Path:
        """Folder on the daemons' class path with empty web applications."""
        return self.root / "static"

    @property
    def bin(self) -> Path:
        """The programs ``yarn`` and ``hdfs``."""
        return self.root / "bin"

    @property
    def logs(self) -> Path:
        """Folder of the daemons' logs."""
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        """Folder in which containers cache data and find compiled kernels."""
        return self.root / "cache"

    @property
    def temporary(self) -> Path:
        """Temporary folder of the daemons, whose web servers leave unpacked files behind."""
        return self.root / "tmp"

    @property
    def state(self) -> Path:
        """State file through which other processes find the daemons."""
        return self.root / "mini-yarn.json"

    @property
    def leaving(self) -> Path:
        """List of the nodes to decommission."""
        return self.root / "conf" / "leaving-nodes"

    @property
    def hosts(self) -> Path:
        """Hosts file of the daemons."""
        return self.root / "conf" / "hosts"

    def log(self, daemon: str) -> Path:
        """Return the log file of a daemon."""
        return self.logs / f"{daemon}.log"
