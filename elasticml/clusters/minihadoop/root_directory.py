"""Create the root directory of a mini YARN, or reuse that of a former one."""

from __future__ import annotations

import getpass
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from elasticml.clusters.minihadoop.daemons import Daemons, marked
from elasticml.clusters.minihadoop.layout import Layout
from elasticml.errors import ConfigError

#: Marker file of a mini YARN's directory: only a directory with it may be emptied.
_MARKER_FILE = ".elasticml-mini-yarn"

#: Least free bytes for HDFS, logs and the containers' files.
FREE_BYTES_MIN = 512 * 2**20


def default_root() -> Path:
    """Return the command line's default root directory, one for each user."""
    return Path(tempfile.gettempdir()) / f"elasticml-mini-yarn-{getpass.getuser()}"


def make_root(given: Path | None, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return an empty root directory.

    Parameters
    ----------
    given : Path or None
        Absent, empty, or of a former mini YARN, whose files are removed; None is a new temporary
        directory.
    say : callable
        Called with progress messages of one line.

    Raises
    ------
    ConfigError
        When it holds other files or a running mini YARN, or the disk is full.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix="mini-yarn-")) if given is None else given
        if given is not None:
            _empty(root, say)
        root.mkdir(parents=True, exist_ok=True)
        (root / _MARKER_FILE).touch()
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise ConfigError(
            f"no directory for a mini YARN: {error}; choose one that you can write to: --root DIR"
        ) from error
    if free < FREE_BYTES_MIN:
        raise ConfigError(
            f"disk full: got {free / 2**20:.0f} MiB free in {root}, wanted "
            f"{FREE_BYTES_MIN / 2**20:.0f}; free some or choose another directory: --root DIR"
        )
    return root.resolve()


def _empty(root: Path, say: Callable[[str], None]) -> None:
    if not root.exists() or not any(root.iterdir()):
        return
    if not (root / _MARKER_FILE).exists():
        raise ConfigError(
            f"--root: got {root}, which holds other files, wanted an absent or empty directory; "
            "choose another"
        )
    layout = Layout(root.resolve())
    if layout.state.exists():
        daemons = Daemons(layout)
        daemons.load()
        if daemons.pids():
            raise ConfigError(
                f"a mini YARN is already running at {root}; use it, end it (elasticml mini-yarn "
                f"down --root {root}) or choose another directory: --root DIR"
            )
    if marked(layout.root):
        raise ConfigError(
            f"processes of a former mini YARN are still running at {root}; end them: elasticml "
            f"mini-yarn down --root {root}"
        )
    # Slow: unpacked environments are tens of thousands of files on every node.
    say(f"removing the files of the former mini YARN in {root}")
    shutil.rmtree(root)
