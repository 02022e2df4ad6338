"""Python environments of containers: on the nodes already, or packed and handed to them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from elasticml.data.places import is_url
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
    """A Python environment as dask-yarn names it: its kind, and where it is."""

    kind: Kind
    place: str

    def __str__(self) -> str:
        return self.place if self.kind == "archive" else f"{self.kind}://{self.place}"

    @property
    def missing(self) -> str:
        """What a node says that does not have it, as one line."""
        return f"elasticml: there is no {_NAMES[self.kind]} {self.place}"

    def setup(self) -> str:
        """Return the line of a script that enters it; empty where there is nothing to enter."""
        if self.kind == "venv":
            return f"source {self.place}/bin/activate"
        if self.kind == "conda":
            return f"conda activate {self.place}"
        return "" if self.kind == "python" else "source environment/bin/activate"

    def python(self) -> str:
        """Return the interpreter that a script calls after ``setup()``."""
        if self.kind == "archive":
            return "environment/bin/python"
        return self.place if self.kind == "python" else "python"

    def files(self) -> dict[str, str]:
        """Return the files that a container needs of it: target name and source."""
        return {"environment": self.place} if self.kind == "archive" else {}

    def guard(self, script: str) -> str:
        """Return a script that ends with one line that says why where the environment is absent.

        Without it, a container whose environment is absent would go on with whatever Python its
        node has.
        """
        entered = self.setup() or f"command -v {self.place} > /dev/null"
        refusal = f'echo {shlex.quote(self.missing + " on")} "$(hostname)" >&2'
        guarded = f"{entered} || {{ {refusal}; exit {NO_ENVIRONMENT_STATUS}; }}"
        if self.setup() and script.startswith(self.setup()):
            return guarded + script.removeprefix(self.setup())
        return f"{guarded}\n{script}"

    def script(self, *arguments: str) -> str:
        """Return the script of a container that runs Python with these arguments in it."""
        lines = (self.setup(), shlex.join([self.python(), *arguments]))
        return self.guard("\n".join(line for line in lines if line))


def read_environment(text: str) -> Environment:
    """Read what dask-yarn takes: ``venv://``, ``conda://`` or ``python://`` paths, or an archive.

    Raises
    ------
    ConfigError
        When it names nothing, or an archive of this machine that is not there.
    """
    scheme, is_marked, path = text.partition("://")
    if is_marked and scheme in get_args(Kind)[:3]:
        if not path:
            raise ConfigError(f"environment: got {text!r}, wanted a path, as in venv:///opt/env")
        return Environment(kind=_kind(scheme), place=path)
    if not text:
        raise ConfigError("environment: got '', wanted such as venv:///opt/env or env.tar.gz")
    if not is_url(text) and not Path(text).is_file():
        raise ConfigError(
            f"environment: there is no file {text}; pack one with venv-pack or conda-pack, or name "
            "an environment of the nodes as venv:///path, conda:///path or python:///path"
        )
    return Environment(kind="archive", place=text)


def _kind(scheme: str) -> Kind:
    return next(kind for kind in get_args(Kind) if kind == scheme)
