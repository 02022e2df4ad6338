"""Java on this machine: where it is, whether it will do, and the options Hadoop wants of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticml.errors import ConfigError

#: Hadoop 3.4 runs on these; newer ones lack the security manager that it still asks for.
VERSION_MIN, VERSION_MAX = 8, 22

_INSTALL = "install a JDK (Debian: apt install openjdk-17-jdk-headless) or set JAVA_HOME to one"

#: Packages of Java that Hadoop looks into by reflection.
_OPENED = ("java.lang", "java.util", "java.net", "java.nio", "java.io", "java.util.concurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation.

    Parameters
    ----------
    home : str
        What ``JAVA_HOME`` names.
    version : int
        Such as 17.
    """

    home: str
    version: int

    @property
    def program(self) -> str:
        """Path of the ``java`` program."""
        return str(Path(self.home) / "bin" / "java")

    def options(self, heap_mib: int) -> list[str]:
        """Return the options for a daemon: a small heap, a quick start, what Hadoop looks into.

        Parameters
        ----------
        heap_mib : int, mebibytes
            Largest heap.
        """
        # One thread collects garbage and one compiles: a mini YARN is six such processes.
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
    """Find the Java that ``JAVA_HOME`` or the path names.

    Raises
    ------
    ConfigError
        When there is none, or none that Hadoop runs on.
    """
    named = environ.get("JAVA_HOME")
    program = f"{named}/bin/java" if named else shutil.which("java", path=environ.get("PATH"))
    if not program or not os.access(program, os.X_OK):
        found = f"JAVA_HOME={named}, which has no bin/java" if named else "no java on the PATH"
        raise ConfigError(f"no Java: got {found}, wanted Java {VERSION_MIN} to 21; {_INSTALL}")
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = version_of(said)
    if version is None or not VERSION_MIN <= version <= VERSION_MAX:
        raise ConfigError(
            f"no usable Java: got {said.strip().splitlines()[:1]} from {program}, wanted Java "
            f"{VERSION_MIN} to 21; {_INSTALL}"
        )
    home = Path(program).resolve().parents[1]
    # Java 8 keeps its runtime in a folder of the development kit.
    return Java(home=str(home.parent if home.name == "jre" else home), version=version)


def version_of(said: str) -> int | None:
    """Read the major version out of what ``java -version`` says; None where there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None
