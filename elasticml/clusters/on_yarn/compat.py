"""dask-yarn on today's distributed: its module, imported with the names that have moved since."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from elasticml.errors import ConfigError

#: Names that dask-yarn 0.9 imports from ``distributed.utils`` and that live in ``dask.utils`` now.
_MOVED = ("format_bytes", "parse_timedelta")

_lock = threading.Lock()


def import_skein() -> ModuleType:
    """Return skein.

    Raises
    ------
    ConfigError
        When it is not installed.
    """
    return _import("skein")


def import_dask_yarn() -> ModuleType:
    """Return ``dask_yarn.core``; nothing stays patched for its sake.

    Raises
    ------
    ConfigError
        When dask-yarn or skein is not installed.
    """
    # Two threads that import at once must not take the borrowed names from each other.
    with _lock, _moved_names_restored():
        _import("dask_yarn")
        core = _import("dask_yarn.core")
        _fill_defaults(_import("dask_yarn.config").defaults)
        return core


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"YARN needs dask-yarn and skein, but {error.name} is not installed; "
            "pip install 'elasticml[yarn]'"
        ) from error


def _fill_defaults(defaults: dict[str, Any]) -> None:
    """Put what is not set to what dask-yarn says.

    It does so itself when it is imported; inside ``with dask.config.set(...)`` that is undone.
    """
    import dask

    dask.config.update(dask.config.config, defaults, priority="old")


@contextmanager
def _moved_names_restored() -> Iterator[None]:
    import dask.utils
    import distributed.utils

    lent = [name for name in _MOVED if not hasattr(distributed.utils, name)]
    for name in lent:
        setattr(distributed.utils, name, getattr(dask.utils, name))
    try:
        yield
    finally:
        for name in lent:
            delattr(distributed.utils, name)
