"""Data in several files of one format: a folder, or a pattern such as ``logs/2026-*.csv``.

Dask and Spark write such folders. The files come in natural order, so that ``part.2`` is before
``part.10``. Their columns and their types are those of the first file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

from elasticml.data.readers.files import (
    Compression,
    FileInfo,
    fingerprint,
    info_of,
    missing,
    unusable,
    version_of,
)
from elasticml.data.source import BlockInfo, format_of_suffix
from elasticml.data.storage.filesystem import join, system_of
from elasticml.errors import ConfigError, DataError

_MAGIC: Final = re.compile(r"[*?\[]")
_DIGITS: Final = re.compile(r"(\d+)")
_COMPRESSIONS: Final[Mapping[str, Compression]] = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the files."""

    path: str
    info: FileInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PartBlock:
    """A block of one of the files."""

    part: Part
    #: Its number in the file.
    index: int
    #: Its number in all files, and what is known of it.
    block: BlockInfo


def parts_of(path: str, format: str) -> tuple[Part, ...]:
    """Return the file of a path, or the files of a folder or a pattern, in natural order.

    Left out are empty files, those whose names begin with ``_`` or ``.``, and, where any file of a
    folder has a suffix of the format, those without one.

    Raises
    ------
    ConfigError
        When there is no such file, or the folder has folders in it.
    DataError
        When the only file is empty.
    """
    pattern = _MAGIC.search(path)
    try:
        system, inner = system_of(path)
        if pattern is None or system.exists(inner):
            about = system.info(inner)
            if about["type"] != "directory":
                return (Part(path=path, info=info_of(path, inner, about)),)
            base, found = path, {e["name"]: e for e in system.ls(inner, detail=True, refresh=True)}
        else:
            base = path[: pattern.start()].rpartition("/")[0]
            system.invalidate_cache()
            found = system.glob(inner, detail=True)
            inner = inner[: len(inner) - len(path) + len(base)]
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ImportError, ValueError) as error:
        raise unusable(path, "accessed", error) from None
    return _visible(path, base, inner, found, format)


def _visible(
    path: str, base: str, inner: str, found: Mapping[str, Mapping[str, Any]], format: str
) -> tuple[Part, ...]:
    prefix = inner.rstrip("/") + "/"
    # Some file systems include the host in file names; "inner" does not have it.
    names = {name.rstrip("/").partition(prefix)[2]: entry for name, entry in found.items()}
    names = {name: e for name, e in names.items() if PurePosixPath(name).name[:1] not in ("_", ".")}
    folders = sorted(name for name, entry in names.items() if entry["type"] == "directory")
    files = sorted((name for name in names if name not in folders), key=_natural)
    named = [name for name in files if format_of_suffix(name) == format]
    files = [name for name in named or files if names[name]["size"]]
    if not files:
        what = f"the folder {path} has" if base == path else f"the pattern {path} matches"
        within = f" (but folders, such as {folders[0]}: name one of them)" if folders else ""
        raise ConfigError(f"{what} no file with data{within}; check data.path", path=path)
    if folders and base == path:
        raise ConfigError(
            f"the folder {path} has folders in it, such as {folders[0]}, wanted files of data "
            f"alone; name one of them, or a pattern such as {join(path, '*', '*')}",
            path=path,
        )
    return tuple(
        Part(path=join(base, name) if base else name, info=_info(names[name], name))
        for name in files
    )


def _info(entry: Mapping[str, Any], name: str) -> FileInfo:
    """Return the facts of a listed file; its suffix says how it is compressed."""
    return FileInfo(
        size=int(entry["size"]),
        token=version_of(str(entry["name"]), entry),
        compression=_COMPRESSIONS.get(PurePosixPath(name).suffix.lower()),
    )


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]


class Listing:
    """The files of a source, and their blocks: listed once, on first use.

    A source that keeps it reads each of n files without listing all n again. A file may change
    meanwhile, so each is looked at once more after it was read.

    Parameters
    ----------
    path, format : str
        As for :func:`parts_of`.
    blocks_of : callable (Part) -> sequence of BlockInfo
        Splits a file.
    """

    def __init__(
        self, path: str, format: str, blocks_of: Callable[[Part], Sequence[BlockInfo]]
    ) -> None:
        self._path = path
        self._format = format
        self._blocks_of = blocks_of
        self._fingerprints: dict[str, str] = {}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The files."""
        return parts_of(self._path, self._format)

    @cached_property
    def blocks(self) -> list[PartBlock]:
        """The blocks of all files, numbered from 0."""
        blocks = [(part, block) for part in self.parts for block in self._blocks_of(part)]
        return [
            PartBlock(part=part, index=block.index, block=replace(block, index=number))
            for number, (part, block) in enumerate(blocks)
        ]

    @cached_property
    def are_versioned(self) -> bool:
        """Whether a change of any file that keeps its size can be detected."""
        return all(part.info.token for part in self.parts)

    def block(self, number: int) -> PartBlock:
        """Return a block by its number.

        Raises
        ------
        DataError
            When there are fewer: files were removed while a job read.
        """
        if number >= len(self.blocks):
            raise DataError(
                f"{self._path} has {len(self.blocks)} blocks, and block {number} is to be read: "
                "files have changed; start a new job when all are in place",
                path=self._path,
            )
        return self.blocks[number]

    def check(self, part: Part) -> None:
        """Check that a file, which has been read, is still the listed one.

        Raises
        ------
        DataError
            When it has changed or is gone.
        """
        try:
            system, inner = system_of(part.path)
            entry = system.info(inner)
        except FileNotFoundError:
            entry = {"name": inner, "size": None}
        except (OSError, ImportError, ValueError) as error:
            raise unusable(part.path, "accessed", error) from None
        if (entry["size"], version_of(inner, entry)) != (part.info.size, part.info.token):
            raise DataError(
                f"{part.path} has changed while it was read; start a new job when it is in place",
                path=part.path,
            )

    def fingerprint(self, spec: Mapping[str, Any]) -> str:
        """Digest a source's spec with its files' names, sizes and versions; 16 hex digits."""
        key = json.dumps(spec, sort_keys=True)
        if key not in self._fingerprints:
            if len(self.parts) == 1:
                self._fingerprints[key] = fingerprint(spec, self.parts[0].info)
            else:
                files = [[part.path, part.info.size, part.info.token] for part in self.parts]
                self._fingerprints[key] = fingerprint({**spec, "files": files})
        return self._fingerprints[key]
