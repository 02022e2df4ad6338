"""The root directory of a mini YARN: made, or taken over from a former one."""

from __future__ import annotations

import getpass
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from elasticml.clusters.hadoop.daemons import Daemons, marked
from elasticml.clusters.hadoop.layout import Layout
from elasticml.errors import ConfigError

#: The file by which a directory is known as a mini YARN's, so that it may be emptied.
_SIGN = ".elasticml-mini-yarn"

#: Bytes that HDFS, the logs and the containers' files need at the least.
FREE_BYTES_MIN = 512 * 2**20


def default_root() -> Path:
    """Return the directory of the one mini YARN that the command line starts when told nothing."""
    return Path(tempfile.gettempdir()) / f"elasticml-mini-yarn-{getpass.getuser()}"


def make_root(given: Path | None, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return an empty root directory.

    Parameters
    ----------
    given : Path or None
        Absent, empty, or of a former mini YARN, whose files go; None: a new temporary directory.
    say : callable
        Is told what takes long.

    Raises
    ------
    ConfigError
        When it holds something else, or a mini YARN that runs, or the disk is full.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix="mini-yarn-")) if given is None else given
        if given is not None:
            _empty(root, say)
        root.mkdir(parents=True, exist_ok=True)
        (root / _SIGN).touch()
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise ConfigError(
            f"no directory for a mini YARN: got {error}, wanted one to write to; name another: "
            "--root DIR"
        ) from error
    if free < FREE_BYTES_MIN:
        raise ConfigError(
            f"disk full: got {free / 2**20:.0f} MiB free in {root}, wanted "
            f"{FREE_BYTES_MIN / 2**20:.0f}; free some or name another place: --root DIR"
        )
    return root.resolve()


def _empty(root: Path, say: Callable[[str], None]) -> None:
    if not root.exists() or not any(root.iterdir()):
        return
    if not (root / _SIGN).exists():
        raise ConfigError(
            f"--root: got {root}, which holds other files, wanted an absent or empty directory; "
            "name another"
        )
    layout = Layout(root.resolve())
    if layout.state.exists():
        daemons = Daemons(layout)
        daemons.load()
        if daemons.pids():
            raise ConfigError(
                f"a mini YARN runs already at {root}, wanted none; use it, end it (elasticml "
                f"mini-yarn down --root {root}) or name another directory: --root DIR"
            )
    if marked(layout.root):
        raise ConfigError(
            f"processes of a former mini YARN run on at {root}, wanted none; end them: elasticml "
            f"mini-yarn down --root {root}"
        )
    # Unpacked environments are tens of thousands of files on every node.
    say(f"removing the files of the former mini YARN in {root}")
    shutil.rmtree(root)
