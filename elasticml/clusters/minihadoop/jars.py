"""Hadoop's jars: fetched once with Maven and cached under the hash of the artifact list."""

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

from elasticml.data.storage.block_cache import cache_directory
from elasticml.errors import ConfigError

#: Seconds that Maven may take to fetch about 90 MB.
FETCH_S_MAX = 900.0


def pom() -> Path:
    """Return the path of the list of Hadoop's artifacts, a Maven POM."""
    return Path(str(files("elasticml.clusters.minihadoop").joinpath("pom.xml")))


def jars_directory(say: Callable[[str], None], cache: Path | None = None) -> Path:
    """Return the folder with Hadoop's jars; fetch them if it does not exist.

    Parameters
    ----------
    say : callable
        Called with progress messages of one line.
    cache : Path or None
        Folder for the jars; None is ``hadoop`` in the user's cache.

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
    with _locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _fetch(folder, say)
    return folder


def _fetch(folder: Path, say: Callable[[str], None]) -> None:
    """Fetch the jars with Maven into a temporary folder, then rename it."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(
            f"no Hadoop: there are no jars in {folder}, and no mvn on the PATH to fetch them; "
            "install Maven 3 (Debian: apt install maven)"
        )
    say("fetching Hadoop with Maven: about 90 MB, once")
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
            reason = f"not done within {FETCH_S_MAX:g} s"
        else:
            if done.returncode == 0:
                os.rename(Path(fresh) / "jars", folder)
                return
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            reason = (lines or [f"exit code {done.returncode}"])[0]
    raise ConfigError(
        f"cannot fetch Hadoop with Maven: {reason}; check the network and the free space of "
        f"{folder.parent}, then run: mvn -f {pom()} dependency:resolve"
    )


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold an inter-process lock; the kernel releases it when the process exits."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
