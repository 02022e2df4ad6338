"""Read the YAML of job files, and apply ``--set`` overrides to it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from elasticml.data.source import FILE_FORMATS, infer_format
from elasticml.errors import ConfigError, shown
from elasticml.jobs.yaml_text import TEXT_BYTES_MAX, load_yaml
from elasticml.specification.settings_model import IS_PATH, names_by_key

#: Keys of ``data`` that are not options of the reader.
_NOT_THE_READERS = ("test", "chunk_size", "cache")


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Read the sections of a job file.

    Raises
    ------
    ConfigError
        When the file does not exist, is not YAML, or is not a mapping.
    """
    try:
        with path.open("rb") as file:
            text = file.read(TEXT_BYTES_MAX + 1).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"job file {str(path)!r}: byte {error.start} is not UTF-8; name a YAML file"
        ) from None
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ConfigError(f"job file {str(path)!r}: {why}; name a YAML file") from None
    return _mapping(text, str(path))


def _mapping(text: str, where: str) -> dict[str, Any]:
    raw = load_yaml(text, f"job file {where!r}")
    if not isinstance(raw, dict):
        raise ConfigError(
            f"job file {where!r}: wanted sections such as data: and algorithm:, got "
            f"{'nothing' if raw is None else type(raw).__name__}"
        )
    return raw


def apply_override(raw: dict[str, Any], setting: str) -> None:
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
            f"--set {setting[:100]}: wanted section.key=value, such as --set stop.rounds=50"
        )
    try:
        value = load_yaml(text, "the value")
    except ConfigError as error:
        raise ConfigError(
            f"--set {setting[:100]}: the value is not YAML; quote it ({error.message})"
        ) from None
    place: Any = raw
    for key in keys[:-1]:
        place = _step(place, key, setting)
    if isinstance(place, list):
        _step(place, keys[-1], setting)
        place[int(keys[-1])] = value
    elif isinstance(place, dict):
        place[keys[-1]] = value
    else:
        raise ConfigError(f"--set {setting[:100]}: {keys[-2]} is {shown(place)}, which has no keys")


def _step(place: Any, key: str, setting: str) -> Any:
    if isinstance(place, list):
        if not key.isdigit() or int(key) >= len(place):
            raise ConfigError(
                f"--set {setting[:100]}: wanted a number below {len(place)}, got {shown(key)}"
            )
        return place[int(key)]
    if not isinstance(place, dict):
        raise ConfigError(
            f"--set {setting[:100]}: {shown(key)} is below {shown(place)}, which has no keys"
        )
    if place.get(key) is None:
        place[key] = {}
    return place[key]


def data_section(path: Path) -> Mapping[str, Any]:
    """Return a job file's ``data`` section.

    Raises
    ------
    ConfigError
        When the file cannot be read, or has no such section.
    """
    section = read_yaml_mapping(path).get("data")
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"job file '{path}': data is {shown(section)}, wanted a mapping with format and path"
        )
    return section


def readers_part(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of the reader in a section ``data``, with absolute paths.

    Raises
    ------
    ConfigError
        When it neither names a format nor implies one.
    """
    spec = {key: value for key, value in section.items() if key not in _NOT_THE_READERS}
    spec = with_path(spec, folder)
    if spec.get("format") is None:
        spec["format"] = infer_format(str(spec.get("path", "")))
    if spec["format"] is None:
        raise ConfigError(
            f"data.format: left out, and the name {shown(spec.get('path'))} does not imply one; "
            f"wanted one of {', '.join(FILE_FORMATS)}"
        )
    return spec


def with_path(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make a spec's paths absolute, with environment variables expanded."""
    resolved = dict(spec)
    for key in ("path", "labels"):
        if isinstance(spec.get(key), str):
            resolved[key] = absolute_path(spec[key], f"data.{key}", folder)
    return resolved


def absolute_path(path: str, key: str, folder: Path) -> str:
    """Expand environment variables and ``~`` in a path, and make it absolute; URLs stay.

    Raises
    ------
    ConfigError
        When it names a variable that is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise ConfigError(
            f"{key}: {path!r} names the environment variable {unset[1]}, which is not set; "
            f"export {unset[1]}=..."
        )
    if path.startswith("$") and "://" not in expanded:
        # Relative paths from variables are relative to the working directory, as in a shell.
        expanded = os.path.abspath(expanded)
    return expanded if "://" in expanded else str(folder / expanded)


def absolute_paths(kind: Any, section: Any, path: str, folder: Path) -> Any:
    """Make the paths of a section absolute, and those of the sections in it.

    Parameters
    ----------
    kind : type
        The class of its settings, some of which are marked as paths.
    section : mapping or other value
    path : str
        What messages call the section.
    """
    if not isinstance(section, Mapping):
        return section
    made = dict(section)
    for key, name in names_by_key(kind).items():
        setting, where = kind.__pydantic_fields__[name], f"{path}.{key}"
        if IS_PATH in setting.metadata and isinstance(made.get(key), str):
            made[key] = absolute_path(made[key], where, folder)
        for inner in get_args(setting.annotation):
            if hasattr(inner, "__pydantic_fields__") and key in made:
                made[key] = absolute_paths(inner, made[key], where, folder)
    return made
