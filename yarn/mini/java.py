"""Java and Hadoop's jars: find a Java that Hadoop runs on, and fetch the jars once with Maven."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elasticml.errors import ConfigError
from elasticml.user_cache import cache_directory

# Find a Java that Hadoop runs on, and the JVM options for its daemons.

#: Java versions that Hadoop 3.4 runs on; newer ones lack the security manager, which it still uses.
VERSION_MIN, VERSION_MAX = 8, 22

_INSTALL = "install a JDK (Debian: apt install openjdk-17-jdk-headless) or set JAVA_HOME to one"

#: Java packages that Hadoop accesses by reflection.
_OPENED = ("java.lang", "java.util", "java.net", "java.nio", "java.io", "java.util.concurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation.

    Parameters
    ----------
    home : str
        Its ``JAVA_HOME``.
    version : int
        Major version, such as 17.
    """

    home: str
    version: int

    @property
    def program(self) -> str:
        """Path of the ``java`` program."""
        return str(Path(self.home) / "bin" / "java")

    def options(self, heap_mib: int) -> list[str]:
        """Return the JVM options for a daemon: small heap, fast start, opened packages.

        Parameters
        ----------
        heap_mib : int, mebibytes
            Maximum heap size.
        """
        # One thread for garbage collection and one for compilation: a mini YARN has six JVMs.
        options = [
            f"-Xmx{heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.net.preferIPv4Stack=true",
            "-Djava.awt.headless=true",
        ]
        if self.version >= 9:
            options += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        return options


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find Java through ``JAVA_HOME``, else on the PATH.

    Raises
    ------
    ConfigError
        When there is none, or its version does not suit Hadoop.
    """
    named = environ.get("JAVA_HOME")
    program = f"{named}/bin/java" if named else shutil.which("java", path=environ.get("PATH"))
    if not program or not os.access(program, os.X_OK):
        problem = f"JAVA_HOME={named} has no bin/java" if named else "there is no java on the PATH"
        raise ConfigError(f"no Java: {problem}, wanted Java {VERSION_MIN} to 21; {_INSTALL}")
    output = subprocess.run(
        [program, "-version"], capture_output=True, text=True, check=False
    ).stderr
    version = version_of(output)
    if version is None or not VERSION_MIN <= version <= VERSION_MAX:
        raise ConfigError(
            f"no usable Java: got {output.strip().splitlines()[:1]} from {program}, wanted Java "
            f"{VERSION_MIN} to 21; {_INSTALL}"
        )
    home = Path(program).resolve().parents[1]
    # Java 8 keeps its runtime in the folder jre of the JDK.
    return Java(home=str(home.parent if home.name == "jre" else home), version=version)


def version_of(output: str) -> int | None:
    """Parse the major version from the output of ``java -version``; None if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


# Hadoop's jars: fetched once with Maven and cached under the hash of the artifact list.

#: Seconds that Maven may take to fetch about 90 MB.
FETCH_S_MAX = 900.0


def pom() -> Path:
    """Return the path of the list of Hadoop's artifacts, a Maven POM."""
    return Path(__file__).with_name("pom.xml")


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
