"""Build hook of the wheel: it contains the agent's jar, or is not built.

Everything else that setuptools needs is in pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
AGENT = ROOT / "yarn" / "agent"
JAR = ROOT / "elasticml" / "clusters" / "yarn" / "elasticml-agent.jar"

#: Set to 1 to build a wheel without the jar. On YARN its jobs then learn of pre-emption by SIGTERM
#: only, without the notice before; everything else is the same.
WITHOUT_AGENT = "ELASTICML_WITHOUT_AGENT"


class BuildWithAgent(build_py):
    """Build the jar first, if it is missing or older than its sources."""

    def run(self) -> None:
        """Build the jar, then copy the package with it."""
        if not self.editable_mode and os.environ.get(WITHOUT_AGENT) != "1" and is_stale():
            build_agent()
        super().run()


def is_stale() -> bool:
    """Return whether the jar is missing or older than its sources."""
    if not JAR.is_file():
        return True
    sources = [AGENT / "pom.xml", *(p for p in (AGENT / "src").rglob("*") if p.is_file())]
    return max(path.stat().st_mtime for path in sources) > JAR.stat().st_mtime


def build_agent() -> None:
    """Build and test the jar with Maven, and copy it into the package.

    Raises
    ------
    SetupError
        When Maven or the JDK is missing, or the build fails.
    """
    try:
        subprocess.run(
            ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "package"],
            cwd=AGENT,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            f"the wheel needs the agent that forwards YARN's notices, which Maven could not build "
            f"({error}); install Maven and a JDK (Debian: maven, default-jdk), install a wheel "
            f"instead of the sources, or leave the agent out: {WITHOUT_AGENT}=1"
        ) from error
    shutil.copy(AGENT / "target" / JAR.name, JAR)


setup(cmdclass={"build_py": BuildWithAgent})
