"""Where the files of a mini YARN lie below its root directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticml.clusters.hadoop.settings import node_name


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of a mini YARN.

    Parameters
    ----------
    root : Path
        Absolute; everything is below it.
    """

    root: Path

    @property
    def conf(self) -> Path:
        """Configuration of clients, containers, and all daemons but the NodeManagers."""
        return self.root / "conf"

    def node_conf(self, number: int) -> Path:
        """Return the configuration of one NodeManager."""
        return self.root / "conf" / node_name(number)

    def node(self, number: int) -> Path:
        """Return the folder of a NodeManager's containers and their logs."""
        return self.root / node_name(number)

    @property
    def static(self) -> Path:
        """Folder on the class path of the daemons: the empty web applications."""
        return self.root / "static"

    @property
    def bin(self) -> Path:
        """The programs ``yarn`` and ``hdfs``."""
        return self.root / "bin"

    @property
    def logs(self) -> Path:
        """What the daemons write."""
        return self.root / "logs"

    @property
    def temporary(self) -> Path:
        """What the daemons unpack and forget, as the web servers do."""
        return self.root / "tmp"

    @property
    def state(self) -> Path:
        """The file by which another process finds the daemons."""
        return self.root / "mini-yarn.json"

    @property
    def leaving(self) -> Path:
        """The list of nodes that are to leave."""
        return self.root / "conf" / "leaving-nodes"

    @property
    def hosts(self) -> Path:
        """The host names that daemons know."""
        return self.root / "conf" / "hosts"

    def log(self, daemon: str) -> Path:
        """Return the log of a daemon."""
        return self.logs / f"{daemon}.log"
