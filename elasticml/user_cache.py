"""The user's cache folder, which all processes share, and its environment variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from elasticml.errors import ConfigError
from elasticml.ids import parse_size

#: The least recently used blocks are removed when the directory exceeds this size.
CACHE_BYTES_MAX: Final = 4 * 2**30
_OFF: Final = "off"

#: A directory; False for no cache; True or None for the environment's setting.
CacheSetting = str | Path | bool | None


def cache_directory(directory: str | Path | None = None) -> Path:
    """Return ``directory``, else ``$ELASTICML_CACHE``, else ``~/.cache/elasticml``."""
    if directory is not None:
        return Path(directory).expanduser()
    named = os.environ.get("ELASTICML_CACHE")
    is_place = named is not None and named not in ("", _OFF)
    return Path(str(named)) if is_place else Path.home() / ".cache" / "elasticml"


def is_off(setting: CacheSetting = None) -> bool:
    """Whether caching of data is off: by the setting, else by ``ELASTICML_CACHE=off``."""
    if isinstance(setting, bool) or setting is None:
        return setting is False or os.environ.get("ELASTICML_CACHE") == _OFF
    return False


def cache_bytes_max() -> int:
    """Return ``$ELASTICML_CACHE_SIZE`` in bytes, else 4 GiB.

    Raises
    ------
    ConfigError
        When the variable is not a size.
    """
    named = os.environ.get("ELASTICML_CACHE_SIZE")
    if not named:
        return CACHE_BYTES_MAX
    try:
        return parse_size(named)
    except ValueError:
        raise ConfigError(
            f"ELASTICML_CACHE_SIZE is {named!r}, wanted a size such as 4 GiB"
        ) from None
