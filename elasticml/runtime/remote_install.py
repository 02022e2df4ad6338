"""What runs in processes that may lack elasticml: it travels by value and imports nothing of ours.

``elasticml/jobs/install.py`` sends these functions and plugins.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import NannyPlugin, WorkerPlugin
from packaging.requirements import Requirement


def installed_here(requirements: Sequence[str]) -> dict[str, Any]:
    """Return what this process has, without importing it.

    Returns
    -------
    dict
        ``version`` of elasticml on disk and ``loaded`` in this process, None for none; ``missing``,
        the requirements that are not met; ``host``.
    """
    importlib.invalidate_caches()
    ids = sys.modules.get("elasticml.ids")
    spec = importlib.util.find_spec("elasticml")
    version = None
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "ids.py"
        found = file.is_file() and re.search(r'^VERSION\b.*"(.+)"', file.read_text(), re.MULTILINE)
        version = found[1] if found else version
    missing = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            has = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(text)
        else:
            if not requirement.specifier.contains(has, prereleases=True):
                missing.append(text)
    return {
        "version": version,
        "loaded": getattr(ids, "VERSION", None),
        "missing": missing,
        "host": socket.gethostname(),
    }


@dataclass(frozen=True)
class Wheel:
    """A wheel to install, with what it requires."""

    name: str
    version: str
    content: bytes
    requirements: tuple[str, ...]

    def install_here(self) -> dict[str, Any]:
        """Install the wheel and what it lacks, where they are not there; return what is there.

        Raises
        ------
        RuntimeError
            When pip fails: its last line.
        """
        # Where pip installs: other users cannot write there, as they can to the temporary folder.
        folder = Path(sysconfig.get_path("purelib"))
        if not os.access(folder, os.W_OK):
            folder = Path(site.getuserbase())
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / ".elasticml.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # workers of a host share an environment
            found = installed_here(self.requirements)
            if found["version"] != self.version:
                with tempfile.TemporaryDirectory() as fresh:
                    path = Path(fresh) / self.name
                    path.write_bytes(self.content)
                    _pip("--no-deps", "--force-reinstall", str(path))
            if found["missing"]:
                _pip(*found["missing"])
        return installed_here(self.requirements)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-input"]
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip") is None:
        if uv is None:
            raise RuntimeError(f"{sys.prefix} has neither pip nor uv")
        command = [uv, "pip", "install", "--python", sys.executable]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        raise RuntimeError((errors or lines or ["pip failed"])[-1])


async def install_in_thread(wheel: Wheel) -> dict[str, Any]:
    """Install a wheel without stopping the process's event loop."""
    return await asyncio.to_thread(wheel.install_here)


class WorkerInstall(WorkerPlugin):
    """Installs a wheel in workers that join, before any other plugin is loaded."""

    name = "elasticml-install"

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel

    def setup(self, worker: Any) -> None:
        """Install; it blocks, so that plugins which need the wheel wait."""
        self.wheel.install_here()


class NannyInstall(NannyPlugin):
    """The same for nannies."""

    name = "elasticml-nanny-install"

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel

    def setup(self, nanny: Any) -> None:
        """Install; it blocks, so that plugins which need the wheel wait."""
        self.wheel.install_here()


def install_first(dask_scheduler: Any) -> None:
    """Load these plugins before all others in workers and nannies that join."""
    for plugins, kind in (
        (dask_scheduler.worker_plugins, WorkerInstall),
        (dask_scheduler.nanny_plugins, NannyInstall),
    ):
        others = {name: plugin for name, plugin in plugins.items() if name != kind.name}
        first = {kind.name: plugins[kind.name]}
        plugins.clear()
        plugins.update(first | others)
