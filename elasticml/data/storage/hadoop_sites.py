"""Read a Hadoop cluster's configuration from its ``*-site.xml`` files, as Hadoop does."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elasticml.errors import ConfigError, one_line

#: Environment variables that name the configuration folder, in order of precedence.
VARIABLES: Final = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")
#: Later files override earlier ones, except properties that are marked final.
FILES: Final = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml", "capacity-scheduler.xml")

_REFERENCE: Final = re.compile(r"\$\{([^\s${}]+)\}")
#: Nested references that Hadoop follows.
_EXPANSIONS_MAX: Final = 20
_INCLUDE: Final = "{http://www.w3.org/2001/XInclude}include"
_INCLUDES_MAX: Final = 10
_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class HadoopConf:
    """The properties set in a cluster's configuration files; callers supply the defaults."""

    values: Mapping[str, str] = field(default_factory=dict)
    #: Folders that were read, in order of precedence.
    folders: tuple[Path, ...] = ()

    def text(self, key: str, default: str = "") -> str:
        """Return a property with its references expanded; empty counts as not set."""
        value = self.values.get(key, "")
        for _ in range(_EXPANSIONS_MAX):
            reference = next((m for m in _REFERENCE.finditer(value) if m[1] in self.values), None)
            if reference is None:
                break
            value = (
                value[: reference.start()] + self.values[reference[1]] + value[reference.end() :]
            )
        return value.strip() or default

    def number(self, key: str, default: float) -> float:
        """Return a numeric property; raises ConfigError if it is not a number."""
        text = self.text(key)
        try:
            return float(text) if text else default
        except ValueError:
            raise ConfigError(
                f"{key} is {text!r}, wanted a number; correct it in {self.where()}"
            ) from None

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean property; ``default`` if it is neither true nor false."""
        return {"true": True, "false": False}.get(self.text(key).lower(), default)

    def seconds(self, key: str, default_s: float, unit: str = "ms") -> float:
        """Return a duration in seconds; ``unit`` applies if the property names none."""
        text = self.text(key)
        if not text:
            return default_s
        match = re.fullmatch(r"(-?[\d.]+)\s*(ns|us|ms|s|m|h|d)?", text)
        if match is None:
            raise ConfigError(
                f"{key} is {text!r}, wanted a time such as 5000 or 5s; correct it in {self.where()}"
            )
        return float(match[1]) * _UNITS_S[match[2] or unit]

    def words(self, key: str) -> tuple[str, ...]:
        """Return the items of a comma-separated property."""
        return tuple(word.strip() for word in self.text(key).split(",") if word.strip())

    def where(self) -> str:
        """Return the folders of the configuration, for messages."""
        return ", ".join(map(str, self.folders)) or "the cluster's configuration"


def parse_site(text: bytes, name: str) -> list[tuple[str, str, bool]]:
    """Parse one file's properties: name, value, and whether it is final.

    Raises
    ------
    ConfigError
        When it is not a Hadoop configuration in XML.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ConfigError(
            f"{name} is not readable XML: {one_line(error)}; copy it from the cluster again"
        ) from None
    if root.tag != "configuration":
        raise ConfigError(
            f"{name} holds <{root.tag}>, wanted <configuration>; copy it from the cluster again"
        )
    properties = []
    for item in root:
        if item.tag == _INCLUDE:
            properties.append((_INCLUDE, item.get("href", ""), False))
        key = (item.findtext("name") or "").strip()
        if item.tag == "property" and key:
            is_final = (item.findtext("final") or "").strip().lower() == "true"
            properties.append((key, item.findtext("value") or "", is_final))
    return properties


def read_folders(folders: Iterable[Path]) -> HadoopConf:
    """Read the configuration in several folders; of two files of one name the first counts.

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
            f"{path} cannot be read: {error.strerror}; check its permissions"
        ) from None
    properties = []
    for key, value, is_final in parse_site(text, str(path)):
        if key != _INCLUDE:
            properties.append((key, value, is_final))
        elif depth and (path.parent / value).is_file():
            properties += _properties(path.parent / value, depth - 1)
    return properties


def named_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the configuration folders that the environment variables name."""
    return tuple(Path(environment[name]) for name in VARIABLES if environment.get(name))


def hadoop_conf(environment: Mapping[str, str] | None = None) -> HadoopConf:
    """Read the configuration in the folders that the environment names; empty if it names none.

    Raises
    ------
    ConfigError
        When a named folder is not a folder, or a file cannot be read.
    """
    folders = named_folders(os.environ if environment is None else environment)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"{' or '.join(VARIABLES)} names {folder}, which is not a folder; name the one "
                "with core-site.xml and yarn-site.xml"
            )
    return read_folders(folders)
