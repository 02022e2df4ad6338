"""Python environments of containers: installed on every node, or shipped as an archive."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from elasticml.data.storage.filesystem import is_url
from elasticml.errors import ConfigError

Kind = Literal["venv", "conda", "python", "archive"]

#: Exit status of a container whose environment is not on its node.
NO_ENVIRONMENT_STATUS = 78

_NAMES: dict[Kind, str] = {
    "venv": "virtual environment",
    "conda": "conda environment",
    "python": "Python interpreter",
    "archive": "archive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python environment as dask-yarn names it: its kind, and its path or URL."""

    kind: Kind
    place: str

    def __str__(self) -> str:
        return self.place if self.kind == "archive" else f"{self.kind}://{self.place}"

    @property
    def missing(self) -> str:
        """Error message of a node that lacks it, one line."""
        return f"elasticml: there is no {_NAMES[self.kind]} {self.place}"

    def setup(self) -> str:
        """Return the shell command that activates it; empty if none is needed."""
        if self.kind == "venv":
            return f"source {self.place}/bin/activate"
        if self.kind == "conda":
            return f"conda activate {self.place}"
        return "" if self.kind == "python" else "source environment/bin/activate"

    def python(self) -> str:
        """Return the interpreter to call after ``setup()``."""
        if self.kind == "archive":
            return "environment/bin/python"
        return self.place if self.kind == "python" else "python"

    def files(self) -> dict[str, str]:
        """Return the files to ship to a container: source by target name."""
        return {"environment": self.place} if self.kind == "archive" else {}

    def guard(self, script: str) -> str:
        """Return the script preceded by a check that exits with one line if the environment lacks.

        Without it a container without its environment would run any Python that its node has.
        """
        check = self.setup() or f"command -v {self.place} > /dev/null"
        complain = f'echo {shlex.quote(self.missing + " on")} "$(hostname)" >&2'
        guarded = f"{check} || {{ {complain}; exit {NO_ENVIRONMENT_STATUS}; }}"
        if self.setup() and script.startswith(self.setup()):
            return guarded + script.removeprefix(self.setup())
        return f"{guarded}\n{script}"

    def script(self, *arguments: str) -> str:
        """Return a container script that runs Python in this environment with ``arguments``."""
        lines = (self.setup(), shlex.join([self.python(), *arguments]))
        return self.guard("\n".join(line for line in lines if line))


def read_environment(text: str) -> Environment:
    """Parse dask-yarn's notation: ``venv://``, ``conda://`` or ``python://`` path, or an archive.

    Raises
    ------
    ConfigError
        When it is empty, has no path, or names a local archive that does not exist.
    """
    scheme, is_marked, path = text.partition("://")
    if is_marked and scheme in get_args(Kind)[:3]:
        if not path:
            raise ConfigError(f"environment: got {text!r}, wanted a path, as in venv:///opt/env")
        return Environment(kind=_kind(scheme), place=path)
    if not text:
        raise ConfigError("environment: got '', wanted venv:///opt/env, env.tar.gz or the like")
    if not is_url(text) and not Path(text).is_file():
        raise ConfigError(
            f"environment: there is no file {text}; pack one with venv-pack or conda-pack, or give "
            "a path on the nodes: venv:///path, conda:///path or python:///path"
        )
    return Environment(kind="archive", place=text)


def _kind(scheme: str) -> Kind:
    return next(kind for kind in get_args(Kind) if kind == scheme)
