"""The files of a source and their blocks: a file, a folder, or a pattern such as ``2026-*.csv``.

Dask and Spark write such folders. The files come in natural order, so that ``part.2`` is before
``part.10``. Their columns and their types are those of the first file. Many small files are read in
groups: each block has a cost of its own, in messages and in chunks.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice
from pathlib import PurePosixPath
from typing import Any, Final, Self

from elasticml.data.readers.files import (
    Compression,
    DataFile,
    FileBlock,
    fingerprint,
    info_of,
    missing,
    unusable,
    version_of,
)
from elasticml.data.source import BLOCK_BYTES, BlockInfo, has_suffix
from elasticml.data.storage.filesystem import join, system_of
from elasticml.errors import ConfigError, DataError

#: Blocks into which small parts of files are grouped.
_BLOCKS: Final = 128
_MAGIC: Final = re.compile(r"[*?\[]")
_DIGITS: Final = re.compile(r"(\d+)")
_COMPRESSIONS: Final[Mapping[str, Compression]] = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}


def files_of(path: str, suffixes: Sequence[str]) -> tuple[DataFile, ...]:
    """Return the file of a path, or the files of a folder or a pattern, in natural order.

    Left out are empty files, those whose names begin with ``_`` or ``.``, and, where any file of a
    folder has one of the suffixes, those without one.

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
                return (info_of(path, inner, about),)
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
    return _visible(path, base, inner, found, suffixes)


def _visible(
    path: str,
    base: str,
    inner: str,
    found: Mapping[str, Mapping[str, Any]],
    suffixes: Sequence[str],
) -> tuple[DataFile, ...]:
    prefix = inner.rstrip("/") + "/"
    # Some file systems include the host in file names; "inner" does not have it.
    names = {name.rstrip("/").partition(prefix)[2]: entry for name, entry in found.items()}
    names = {name: e for name, e in names.items() if PurePosixPath(name).name[:1] not in ("_", ".")}
    folders = sorted(name for name, entry in names.items() if entry["type"] == "directory")
    files = sorted((name for name in names if name not in folders), key=_natural)
    named = [name for name in files if has_suffix(name, suffixes)]
    files = [name for name in named or files if names[name]["size"]]
    if not files:
        what = f"the folder {path} has" if base == path else f"the pattern {path} matches"
        within = f" (but folders, such as {folders[0]}: name one of them)" if folders else ""
        raise ConfigError(f"{what} no file with data{within}; check data.path")
    if folders and base == path:
        raise ConfigError(
            f"the folder {path} has folders in it, such as {folders[0]}, wanted files of data "
            f"alone; name one of them, or a pattern such as {join(path, '*', '*')}"
        )
    return tuple(
        DataFile(
            path=join(base, name) if base else name,
            size=int(names[name]["size"]),
            token=version_of(str(names[name]["name"]), names[name]),
            # Of one of many files the suffix says how it is compressed.
            compression=_COMPRESSIONS.get(PurePosixPath(name).suffix.lower()),
        )
        for name in files
    )


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]


class Listing:
    """The files of a source, and their blocks: listed once, on first use.

    It travels with a job as a compressed table, so that no other process lists them again. A file
    may change meanwhile, so each is looked at once more after it was read.

    Parameters
    ----------
    path : str
        The file, folder or pattern, for messages.
    list_files : callable () -> sequence of DataFile
    list_parts : callable (files) -> sequence of FileBlock
        Splits them; small parts are read in groups.
    """

    def __init__(
        self,
        path: str,
        list_files: Callable[[], Sequence[DataFile]],
        list_parts: Callable[[Sequence[DataFile]], Sequence[FileBlock]],
    ) -> None:
        self._path = path
        self._list_files = list_files
        self._list_parts = list_parts
        self._fingerprints: dict[str, str] = {}

    @cached_property
    def files(self) -> Sequence[DataFile]:
        """The files."""
        return self._list_files()

    @cached_property
    def groups(self) -> list[Sequence[FileBlock]]:
        """The parts of files of which each block consists, in their order."""
        parts = self._list_parts(self.files)
        most = min(BLOCK_BYTES, sum(part.nbytes for part in parts) // _BLOCKS)
        groups, size = list[list[FileBlock]](), 0
        for part in parts:
            if not groups or size + part.nbytes > most:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.nbytes
        return list(groups)

    @cached_property
    def blocks(self) -> list[BlockInfo]:
        """The blocks of all files, numbered from 0."""
        return [_block_of(number, group) for number, group in enumerate(self.groups)]

    @cached_property
    def are_versioned(self) -> bool:
        """Whether a change of any file that keeps its size can be detected."""
        return all(file.token for file in self.files)

    @property
    def is_complete(self) -> bool:
        """Whether the files and the blocks were listed."""
        return "groups" in vars(self)

    @cached_property
    def table(self) -> str:
        """All files and blocks as a table of columns, compressed, in letters that JSON takes.

        Numbers are stored as differences to the row before: those of equal files vanish.
        """
        at = {file.path: number for number, file in enumerate(self.files)}
        parts = [part for group in self.groups for part in group]
        columns = {
            "path": [file.path for file in self.files],
            "size": _differences([file.size for file in self.files]),
            "token": [file.token for file in self.files],
            "compression": [file.compression for file in self.files],
            "file": _differences([at[part.file.path] for part in parts]),
            "first": _differences([part.first for part in parts]),
            "stop": _differences([part.stop - part.first for part in parts]),
            "nbytes": _differences([part.nbytes for part in parts]),
            "rows": [part.rows for part in parts],
            "columns": [part.columns for part in parts],
            "group": _differences([len(group) for group in self.groups]),
        }
        # Versions are mostly times in nanoseconds, whose first digits are the same.
        if all(file.token.isdecimal() and file.token[:1] != "0" for file in self.files):
            columns["token"] = _differences([int(file.token) for file in self.files])
        text = json.dumps(columns, separators=(",", ":")).encode()
        return base64.b85encode(zlib.compress(text, 9)).decode()

    @classmethod
    def of_table(cls, path: str, table: str) -> Self:
        """Return the listing that :attr:`table` describes; nothing is listed.

        Raises
        ------
        ValueError
            When the table is damaged.
        """
        columns = json.loads(zlib.decompress(base64.b85decode(table)))
        tokens = columns["token"]
        if any(isinstance(token, int) for token in tokens):
            tokens = map(str, accumulate(tokens))
        rows = zip(
            columns["path"],
            accumulate(columns["size"]),
            tokens,
            columns["compression"],
            strict=True,
        )
        listing = cls(path, tuple, lambda files: ())
        listing.table = table
        listing.files = files = [
            DataFile(path=path, size=size, token=token, compression=compression)
            for path, size, token, compression in rows
        ]
        ranges = zip(
            accumulate(columns["file"]),
            accumulate(columns["first"]),
            accumulate(columns["stop"]),
            accumulate(columns["nbytes"]),
            columns["rows"],
            columns["columns"],
            strict=True,
        )
        parts = (
            FileBlock(
                nbytes=nbytes,
                rows=n_rows,
                columns=width,
                file=files[file],
                first=first,
                stop=first + length,
            )
            for file, first, length, nbytes, n_rows, width in ranges
        )
        listing.groups = [list(islice(parts, size)) for size in accumulate(columns["group"])]
        return listing

    def parts(self, number: int) -> Sequence[FileBlock]:
        """Return the parts of files of a block, by its number.

        Raises
        ------
        DataError
            When there are fewer: files were removed while a job read.
        """
        if number >= len(self.groups):
            raise DataError(
                f"{self._path} has {len(self.groups)} blocks, and block {number} is to be read: "
                "files have changed; start a new job when all are in place"
            )
        return self.groups[number]

    def check(self, file: DataFile) -> None:
        """Check that a file, which has been read, is still the listed one.

        Raises
        ------
        DataError
            When it has changed or is gone.
        """
        try:
            system, inner = system_of(file.path)
            entry = system.info(inner)
        except FileNotFoundError:
            entry = {"name": inner, "size": None}
        except (OSError, ImportError, ValueError) as error:
            raise unusable(file.path, "accessed", error) from None
        if (entry["size"], version_of(inner, entry)) != (file.size, file.token):
            raise DataError(
                f"{file.path} has changed since it was listed; start a new job when it is in place"
            )

    def fingerprint(self, spec: Mapping[str, Any]) -> str:
        """Digest a source's spec with its files' names, sizes and versions; 16 hex digits."""
        key = json.dumps(spec, sort_keys=True)
        if key not in self._fingerprints:
            if len(self.files) == 1:
                self._fingerprints[key] = fingerprint(spec, self.files[0])
            else:
                parts: dict[str, Any] = {
                    "files": [[file.path, file.size, file.token] for file in self.files]
                }
                sizes = [len(group) for group in self.groups]
                if max(sizes, default=1) > 1:
                    parts["groups"] = sizes
                self._fingerprints[key] = fingerprint({**spec, **parts})
        return self._fingerprints[key]


def _block_of(number: int, parts: Sequence[FileBlock]) -> BlockInfo:
    rows = [part.rows for part in parts if part.rows is not None]
    return BlockInfo(
        index=number,
        nbytes=sum(part.nbytes for part in parts),
        rows=sum(rows) if len(rows) == len(parts) else None,
        columns=parts[0].columns,
    )


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]
