"""Check which dependencies of elasticml this machine has, with a remedy for each that it lacks."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elasticml.errors import how_to_install, one_line
from elasticml.ids import VERSION, format_size

#: Seconds that ``java -version`` and the like may take.
ASK_S = 20

#: Folder of data sets when ``ELASTICML_DATA`` is not set.
DATA = "../shared/data"

State = Literal["ok", "missing", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    #: Description of what was found.
    found: str
    #: What it is needed for.
    serves: str
    #: Whether nothing works without it.
    required: bool = False
    #: What to do; empty if it is usable.
    remedy: str = ""


def check_python() -> Check:
    """Check this interpreter's version."""
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= (3, 11)
    return Check(
        name="Python",
        state="ok" if is_new else "broken",
        found=f"{version} at {sys.executable}, {os.cpu_count()} processors",
        serves="everything",
        required=True,
        remedy="" if is_new else "install Python 3.11 or newer and create a new environment",
    )


def check_package(
    name: str,
    module: str,
    serves: str,
    remedy: str,
    *,
    required: bool = True,
    load: Callable[[str], object] = importlib.import_module,
) -> Check:
    """Check that a library can be imported.

    Parameters
    ----------
    load : callable
        Imports a module by name.
    """
    try:
        imported = load(module)
    except ModuleNotFoundError as error:
        state: State = "missing" if error.name == module else "broken"
        found = "not installed" if state == "missing" else f"{module}: {one_line(error)}"
    except Exception as error:
        state, found = "broken", f"cannot be imported: {type(error).__name__}: {one_line(error)}"
    else:
        state, found = "ok", str(getattr(imported, "__version__", "found"))
    return Check(
        name=name,
        state=state,
        found=found,
        serves=serves,
        required=required,
        remedy="" if state == "ok" else remedy,
    )


def check_program(
    name: str,
    command: list[str],
    serves: str,
    remedy: str,
    *,
    version_min: int = 0,
    ask: Callable[[list[str]], str] | None = None,
) -> Check:
    """Check a program's version.

    Parameters
    ----------
    command : list of str
        Command that prints the version.
    version_min : int
        Least major version.
    ask : callable, optional
        Returns the output of a command; raises OSError if it cannot be run.
    """
    try:
        answer = (ask or ask_program)(command)
    except (OSError, subprocess.SubprocessError) as error:
        state: State = "missing" if isinstance(error, FileNotFoundError) else "broken"
        found = (
            f"no {command[0]} on the PATH"
            if state == "missing"
            else f"{command[0]}: {one_line(error)}"
        )
    else:
        # Maven prints its version in bold.
        answer = re.sub(r"\x1b\[[0-9;]*m", "", answer)
        numbers = re.search(r"(\d+)(\.\d+)*", answer)
        first = int(numbers[1]) if numbers else 0
        state = "ok" if first >= version_min else "broken"
        found = numbers[0] if numbers else answer.strip()[:60] or "no version"
    return Check(
        name=name,
        state=state,
        found=found,
        serves=serves,
        remedy="" if state == "ok" else remedy,
    )


def check_data(environment: Mapping[str, str]) -> Check:
    """Check the folder of data sets that ``ELASTICML_DATA`` names."""
    named = environment.get("ELASTICML_DATA") or (DATA if Path(DATA).is_dir() else None)
    state: State = "ok"
    if not named:
        state, found = "missing", f"ELASTICML_DATA is not set, and there is no {DATA}"
    elif not os.access(named, os.R_OK | os.X_OK) or not Path(named).is_dir():
        state, found = "broken", f"{named} is not a readable folder"
    else:
        found = f"{named}, {sum(1 for entry in Path(named).iterdir() if entry.is_dir())} data sets"
    return Check(
        name="Data sets",
        state=state,
        found=found,
        serves="job files that name $ELASTICML_DATA, and the studies",
        remedy="" if state == "ok" else "export ELASTICML_DATA=/folder/with/data/sets",
    )


def check_cache(folder: Path) -> Check:
    """Check that the cache of parsed files is writable."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    is_usable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    free = format_size(shutil.disk_usage(place).free)
    return Check(
        name="Cache",
        state="ok" if is_usable else "broken",
        found=f"{folder}, {free} free" if is_usable else f"{folder} is not writable",
        serves="compressed files, which are parsed once instead of by every member",
        remedy="" if is_usable else "export ELASTICML_CACHE=/a/writable/folder",
    )


def check_yarn(environment: Mapping[str, str]) -> Check:
    """Check the configuration of a YARN cluster."""
    serves = "YARN clusters"
    for variable in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        named = environment.get(variable)
        if not named:
            continue
        file = Path(named) / "yarn-site.xml"
        if file.is_file():
            return Check(name="YARN", state="ok", found=str(file), serves=serves)
        return Check(
            name="YARN",
            state="broken",
            found=f"{variable}={named} has no yarn-site.xml",
            serves=serves,
            remedy=f"export {variable}=/folder/with/yarn-site.xml",
        )
    return Check(
        name="YARN",
        state="missing",
        found="neither YARN_CONF_DIR nor HADOOP_CONF_DIR is set",
        serves=serves,
        remedy="export YARN_CONF_DIR=/folder/with/yarn-site.xml",
    )


def all_checks(environment: Mapping[str, str], cache: Path) -> list[Check]:
    """Run all checks, the required ones first."""
    reinstall = f"reinstall elasticml in this environment, {how_to_install()}"
    return [
        check_python(),
        Check(
            name="elasticml",
            state="ok",
            found=f"{VERSION} at {Path(__file__).parents[1]}",
            serves="everything",
            required=True,
        ),
        check_package("Dask", "distributed", "clusters, including local ones", reinstall),
        check_package("numba", "numba", "the compiled kernels", reinstall),
        check_package("pyarrow", "pyarrow", "CSV and Parquet files", reinstall, required=False),
        check_package("matplotlib", "matplotlib", "plots and reports", reinstall, required=False),
        check_cache(cache),
        check_data(environment),
        check_program(
            "Java",
            ["java", "-version"],
            "YARN clusters",
            "install a JDK of version 8 or newer (Debian: openjdk-17-jdk-headless)",
            version_min=1,
        ),
        check_program(
            "Maven",
            ["mvn", "--version"],
            "building the YARN agent, and the mini YARN",
            "install Maven 3 (Debian: maven)",
            version_min=3,
        ),
        check_yarn(environment),
    ]


def ask_program(command: list[str]) -> str:
    """Return a program's output.

    Raises
    ------
    OSError, subprocess.SubprocessError
        When it cannot be run, fails, or takes too long.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True)
    return done.stdout + done.stderr
