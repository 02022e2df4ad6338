"""Hadoop's jars: fetched by Maven once, kept in the user's cache under the hash of the list."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from elasticml.data.cache import cache_directory
from elasticml.errors import ConfigError

#: Seconds that Maven may take for some ninety megabytes.
FETCH_S_MAX = 900.0


def pom() -> Path:
    """Return the list of Hadoop's artifacts, in Maven's format."""
    return Path(str(files("elasticml.clusters.hadoop").joinpath("pom.xml")))


def jars_directory(say: Callable[[str], None], cache: Path | None = None) -> Path:
    """Return the folder with Hadoop's jars; fetch them where it is not there yet.

    Parameters
    ----------
    say : callable
        Told in a line when there is something to wait for.
    cache : Path or None
        Where jars are kept; None: ``hadoop`` in the user's cache.

    Raises
    ------
    ConfigError
        When Maven is missing or cannot fetch them.
    """
    content = pom().read_bytes()
    folder = (cache or cache_directory() / "hadoop") / hashlib.sha256(content).hexdigest()[:16]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _fetch(folder, say)
    return folder


def _fetch(folder: Path, say: Callable[[str], None]) -> None:
    """Have Maven copy the jars into a folder of another name, then rename it."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(
            f"no Hadoop: got no jars in {folder} and no mvn on the PATH to fetch them, wanted "
            "Maven 3; install it (Debian: apt install maven)"
        )
    say("fetching Hadoop with Maven, some 90 MB, once")
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as fresh:
        command = [
            maven,
            "--batch-mode",
            "--quiet",
            f"--file={pom()}",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={fresh}/jars",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=FETCH_S_MAX
            )
        except subprocess.TimeoutExpired:
            reason = f"nothing within {FETCH_S_MAX:g} s"
        else:
            if done.returncode == 0:
                os.rename(Path(fresh) / "jars", folder)
                return
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            reason = (lines or [f"exit code {done.returncode}"])[0]
    raise ConfigError(
        f"cannot fetch Hadoop: got {reason!r} from Maven, wanted its jars; check the network and "
        f"the free space of {folder.parent}, then run: mvn -f {pom()} dependency:resolve"
    )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let one process at a time in; the lock goes with the process."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
