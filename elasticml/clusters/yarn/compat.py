"""Import dask-yarn on today's distributed, which has moved names that dask-yarn imports."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from elasticml.errors import ConfigError, how_to_install

#: Names that dask-yarn 0.9 imports from ``distributed.utils`` and that are in ``dask.utils`` now.
_MOVED = ("format_bytes", "parse_timedelta")

_lock = threading.Lock()


def import_skein() -> ModuleType:
    """Import and return skein.

    Raises
    ------
    ConfigError
        When it is not installed.
    """
    return _import("skein")


def import_dask_yarn() -> ModuleType:
    """Import and return ``dask_yarn.core``; no module stays patched.

    Raises
    ------
    ConfigError
        When dask-yarn or skein is not installed.
    """
    # Two threads that import at once must not remove the patched names under each other.
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
            f"{how_to_install('yarn')}"
        ) from error


def _fill_defaults(defaults: dict[str, Any]) -> None:
    """Apply dask-yarn's configuration defaults to keys that are not set.

    dask-yarn does so itself on import; leaving a ``with dask.config.set(...)`` block undoes that.
    """
    import dask

    dask.config.update(dask.config.config, defaults, priority="old")


@contextmanager
def _moved_names_restored() -> Iterator[None]:
    import dask.utils
    import distributed.utils

    patched = [name for name in _MOVED if not hasattr(distributed.utils, name)]
    for name in patched:
        setattr(distributed.utils, name, getattr(dask.utils, name))
    try:
        yield
    finally:
        for name in patched:
            delattr(distributed.utils, name)
