"""The configuration of a Hadoop cluster: its *-site.xml files, read as Hadoop reads them."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elasticml.errors import ConfigError

#: The variables that name the folder, the one that counts first.
VARIABLES: Final = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")
#: Later files win, except over what an earlier one calls final.
FILES: Final = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml", "capacity-scheduler.xml")

_REFERENCE: Final = re.compile(r"\$\{([^\s${}]+)\}")
#: As many nested references as Hadoop follows.
_EXPANSIONS_MAX: Final = 20
_INCLUDE: Final = "{http://www.w3.org/2001/XInclude}include"
_INCLUDES_MAX: Final = 10
_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class HadoopConf:
    """The settings of a cluster, as far as its files say them; defaults are the reader's."""

    values: Mapping[str, str] = field(default_factory=dict)
    #: Where they were read from, the one that counts first.
    folders: tuple[Path, ...] = ()

    def text(self, key: str, default: str = "") -> str:
        """Return a setting with its references to others filled in; empty counts as not set."""
        value = self.values.get(key, "")
        for _ in range(_EXPANSIONS_MAX):
            found = next((m for m in _REFERENCE.finditer(value) if m[1] in self.values), None)
            if found is None:
                break
            value = value[: found.start()] + self.values[found[1]] + value[found.end() :]
        return value.strip() or default

    def number(self, key: str, default: float) -> float:
        """Return a number; a ConfigError where the setting is none."""
        text = self.text(key)
        try:
            return float(text) if text else default
        except ValueError:
            raise ConfigError(
                f"{key} is {text!r}, wanted a number; correct it in {self.where()}", key=key
            ) from None

    def flag(self, key: str, default: bool) -> bool:
        """Return whether a setting is true."""
        return {"true": True, "false": False}.get(self.text(key).lower(), default)

    def seconds(self, key: str, default_s: float, unit: str = "ms") -> float:
        """Return a time in seconds; ``unit`` is meant where the setting names none."""
        text = self.text(key)
        if not text:
            return default_s
        found = re.fullmatch(r"(-?[\d.]+)\s*(ns|us|ms|s|m|h|d)?", text)
        if found is None:
            raise ConfigError(
                f"{key} is {text!r}, wanted a time such as 5000 or 5s; correct it in "
                f"{self.where()}",
                key=key,
            )
        return float(found[1]) * _UNITS_S[found[2] or unit]

    def words(self, key: str) -> tuple[str, ...]:
        """Return the words of a setting that is a list with commas."""
        return tuple(word.strip() for word in self.text(key).split(",") if word.strip())

    def where(self) -> str:
        """Say where the settings come from, for messages."""
        return ", ".join(map(str, self.folders)) or "the cluster's configuration"


def parse_site(text: bytes, name: str) -> list[tuple[str, str, bool]]:
    """Read one file's properties: name, value, whether it is final.

    Raises
    ------
    ConfigError
        When it is no XML of that kind.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ConfigError(
            f"{name} is no readable XML: {error}; copy it from the cluster again", path=name
        ) from None
    if root.tag != "configuration":
        raise ConfigError(
            f"{name} holds <{root.tag}>, wanted <configuration>; copy it from the cluster again",
            path=name,
        )
    found = []
    for item in root:
        if item.tag == _INCLUDE:
            found.append((_INCLUDE, item.get("href", ""), False))
        key = (item.findtext("name") or "").strip()
        if item.tag == "property" and key:
            is_final = (item.findtext("final") or "").strip().lower() == "true"
            found.append((key, item.findtext("value") or "", is_final))
    return found


def read_folders(folders: Iterable[Path]) -> HadoopConf:
    """Read the configuration in some folders; of two files of a name the first one's counts.

    Raises
    ------
    ConfigError
        When a file cannot be read.
    """
    folders = tuple(folders)
    values: dict[str, str] = {}
    final: set[str] = set()
    for name in FILES:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            continue
        for key, value, is_final in _properties(path, _INCLUDES_MAX):
            if key not in final:
                values[key] = value
                final |= {key} if is_final else set()
    return HadoopConf(values=values, folders=folders)


def _properties(path: Path, depth: int) -> list[tuple[str, str, bool]]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; check its permissions", path=str(path)
        ) from None
    found = []
    for key, value, is_final in parse_site(text, str(path)):
        if key != _INCLUDE:
            found.append((key, value, is_final))
        elif depth and (path.parent / value).is_file():
            found += _properties(path.parent / value, depth - 1)
    return found


def named_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """List the folders that the environment names; none where it names none."""
    return tuple(Path(environment[name]) for name in VARIABLES if environment.get(name))


def hadoop_conf(environment: Mapping[str, str] | None = None) -> HadoopConf:
    """Read the cluster's configuration where the environment says that it is; empty without.

    Raises
    ------
    ConfigError
        When a folder that it names is none, or a file cannot be read.
    """
    folders = named_folders(os.environ if environment is None else environment)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"{' or '.join(VARIABLES)} names {folder}, which is no folder; name the one with "
                "core-site.xml and yarn-site.xml",
                path=str(folder),
            )
    return read_folders(folders)
