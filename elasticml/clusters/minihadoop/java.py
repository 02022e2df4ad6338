"""Find a Java that Hadoop runs on, and the JVM options for its daemons."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticml.errors import ConfigError

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
