"""Objects of users by their import paths; those of a script or a notebook travel by value.

A class of ``__main__`` cannot be imported elsewhere. A job's record names it by a path that no
module has, ``__main__.v3f2a:Net``, and the submission carries it, pickled. No file does: who reads
a checkpoint or a model in another process gives the object again.
"""

from __future__ import annotations

import importlib
import json
import pickle
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from elasticml.errors import ConfigError, one_line, shown

_BY_VALUE: Final = re.compile(r"__main__\.v[0-9a-f]{8}:\w+")

#: Objects of scripts and notebooks by path, and those that came with a job and were not used yet.
_objects: dict[str, Any] = {}
_pickled: dict[str, bytes] = {}


def path_of(thing: Any) -> str:
    """Return the path of a function, a class or another object: its import path if it has one."""
    if is_importable(thing):
        return f"{thing.__module__}:{thing.__qualname__}"
    for path, known in _objects.items():
        if known is thing:
            return path
    path = f"__main__.v{secrets.token_hex(4)}:{_name(thing)}"
    _objects[path] = thing
    return path


def is_importable(thing: Any) -> bool:
    """Whether an object, or the one at a path, is a module's; else it travels by value."""
    if isinstance(thing, str):
        return _BY_VALUE.fullmatch(thing) is None
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    return module not in (None, "__main__") and bool(name.isidentifier())


def load_object(path: str) -> Any:
    """Return the object at a path.

    Raises
    ------
    ImportError, AttributeError
        When it cannot be imported.
    ConfigError
        When it travelled by value, and not to this process.
    """
    if _BY_VALUE.fullmatch(path) is None:
        module, _, attribute = path.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise ImportError("wanted module:name")
        return getattr(importlib.import_module(module), attribute)
    if path not in _objects and path in _pickled:
        try:
            _objects.setdefault(path, pickle.loads(_pickled[path]))
        except Exception as error:
            raise ImportError(f"it cannot be unpickled here: {one_line(error)}") from error
    if path not in _objects:
        name = path.partition(":")[2]
        raise ConfigError(
            f"{name} was defined in a script or a notebook, and files do not keep it; give it "
            f"again: objects=[{name}] of em.Job.resume or em.Job.attach, trust={name} of "
            "em.load_model"
        )
    return _objects[path]


def imported(key: str, path: str) -> Any:
    """Return the object at a path that a setting names.

    Raises
    ------
    ConfigError
        When it cannot be imported.
    """
    try:
        return load_object(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key}: got {shown(path)}, which cannot be imported ({one_line(error)}); every worker "
            "and the scheduler must be able to import it"
        ) from error


def pickled_objects(sections: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the objects that a job record names and no process can import, pickled.

    Raises
    ------
    ConfigError
        When one is not here, or cannot be pickled.
    """
    import cloudpickle

    found = {}
    for path in _paths(sections):
        thing = load_object(path)
        try:
            found[path] = cloudpickle.dumps(thing)
        except Exception as error:
            raise ConfigError(
                f"{path.partition(':')[2]} cannot be sent to the workers: {one_line(error)}; "
                "define it in a module that they can import"
            ) from None
    return found


def receive_objects(pickled: Mapping[str, bytes]) -> None:
    """Keep objects that came with a job; each is unpickled when it is first used."""
    _pickled.update({path: data for path, data in pickled.items() if path not in _objects})


def give_again(sections: Mapping[str, Any], objects: Iterable[Any]) -> None:
    """Use these objects for the paths of a record that another process wrote.

    Raises
    ------
    ConfigError
        When the record names none like it.
    """
    paths = _paths(sections)
    for thing in objects:
        same = [path for path in paths if path.partition(":")[2] == _name(thing)]
        if not same:
            names = ", ".join(path.partition(":")[2] for path in paths) or "none"
            raise ConfigError(
                f"objects: got {shown(thing)}, wanted those of the script or notebook that made "
                f"the job: {names}"
            )
        _objects.update(dict.fromkeys(same, thing))


def without_marks(text: str) -> str:
    """Return a text with the same paths for all processes that define an object."""
    return re.sub(r"__main__\.v[0-9a-f]{8}:", "__main__:", text)


def _paths(sections: Mapping[str, Any]) -> list[str]:
    section = {k: v for k, v in (sections.get("algorithm") or {}).items() if k != "warm_start"}
    data = sections.get("data") or {}
    beside = [part for part in (data.get("scored") or {}).values() if isinstance(part, Mapping)]
    formats = [source.get("format") for source in (data, *beside)]
    named = json.dumps([section, sections.get("policies"), formats], default=str)
    return sorted(set(_BY_VALUE.findall(named)))


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "name", type(thing).__qualname__)
    return re.sub(r"\W+", "_", str(name).rpartition(".")[2]).strip("_") or "unnamed"
