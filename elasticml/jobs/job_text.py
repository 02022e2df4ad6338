"""Read a job file's YAML and apply ``--set`` overrides to it before validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from elasticml.errors import ConfigError


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the sections of a job file.

    Raises
    ------
    ConfigError
        When the file does not exist, is not YAML, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"job file {str(path)!r}: byte {error.start} is not UTF-8; name a YAML file",
            path=str(path),
        ) from None
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ConfigError(
            f"job file {str(path)!r}: {why}; name a YAML file", path=str(path)
        ) from None
    return _mapping(text, str(path))


def _mapping(text: str, where: str) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"job file {where!r}{place}: not YAML: {problem}", path=where) from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"job file {where!r}: wanted sections such as data: and algorithm:, got "
            f"{'nothing' if raw is None else type(raw).__name__}",
            path=where,
        )
    return raw


def change(raw: dict[str, Any], setting: str) -> None:
    """Apply one ``section.key=value`` override to a job file's mapping, in place.

    Parameters
    ----------
    setting : str
        A number in the path is a list index, from 0. The value is parsed as YAML.

    Raises
    ------
    ConfigError
        When it has no ``=``, the value is not YAML, or the path does not exist.
    """
    path, sign, text = setting.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise ConfigError(
            f"--set {setting}: wanted section.key=value, such as --set stop.rounds=50"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {setting}: the value is not YAML; quote it") from None
    place: Any = raw
    for key in keys[:-1]:
        place = _step(place, key, setting)
    if isinstance(place, list):
        _step(place, keys[-1], setting)
        place[int(keys[-1])] = value
    elif isinstance(place, dict):
        place[keys[-1]] = value
    else:
        raise ConfigError(f"--set {setting}: {keys[-2]} is {place!r}, which has no keys")


def _step(place: Any, key: str, setting: str) -> Any:
    if isinstance(place, list):
        if not key.isdigit() or int(key) >= len(place):
            raise ConfigError(f"--set {setting}: wanted a number below {len(place)}, got {key!r}")
        return place[int(key)]
    if not isinstance(place, dict):
        raise ConfigError(f"--set {setting}: {key!r} is below {place!r}, which has no keys")
    if place.get(key) is None:
        place[key] = {}
    return place[key]
