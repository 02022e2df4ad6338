"""Local and remote data files: their versions, their text in whole lines, and their blocks.

A source has a file, a folder of files, or a pattern such as ``2026-*.csv``. Dask and Spark write
such folders. The files come in natural order, so that ``part.2`` is before ``part.10``. Their
columns and their types are those of the first file. Many small files are read in groups: each block
has a cost of its own, in messages and in chunks.
"""

from __future__ import annotations

import base64
import bz2
import functools
import gzip
import hashlib
import json
import lzma
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self, TypeVar, cast

from elasticml.data.source import BLOCK_BYTES, BlockInfo, has_suffix
from elasticml.data.storage.filesystem import (
    is_url,
    join,
    local_path,
    reason_of,
    remedy_of,
    system_of,
)
from elasticml.data.storage.hdfs import absolute_hdfs, is_hdfs
from elasticml.data.storage.untrusted_files import (
    LINE_BYTES_MAX,
    check_expansion,
    check_regular,
)
from elasticml.errors import ConfigError, DataError, ElasticmlError, host_fault, one_line
from elasticml.fast_dataclass import dataclass

Compression = Literal["gzip", "bzip2", "xz"]
T = TypeVar("T")

_MAGIC: Final[tuple[tuple[bytes, Compression], ...]] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)
#: Rough ratio of decompressed to compressed size; only chunk sizes depend on it.
_EXPANSION: Final = {None: 1, "gzip": 4, "bzip2": 6, "xz": 6}
#: Bytes per read from a decompressor; an error names the last line before the failed read.
READ_BYTES: Final = 2**18
#: Keys by which fsspec's file systems report a file's version, most reliable first.
_VERSION_KEYS: Final = (
    *("ETag", "etag", "Content-MD5", "Digest", "sha"),
    *("mtime", "modificationTime", "LastModified", "last_modified", "Last-Modified"),
    *("updated", "modify"),
)
#: Bytes of a remote file that are searched at once for the end of a line.
_LINE_BYTES: Final = 2**16
#: Files of which something is remembered.
_LOOKS: Final = 4096
#: Part of every fingerprint: a change in how text becomes chunks invalidates old caches.
READING_VERSION: Final = 1
#: Blocks into which small parts of files are grouped.
_BLOCKS: Final = 128
_PATTERN: Final = re.compile(r"[*?\[]")
_DIGITS: Final = re.compile(r"(\d+)")
_COMPRESSIONS: Final[Mapping[str, Compression]] = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file's path, size, version and compression, determined without reading all of it."""

    path: str
    size: int
    #: Changes if the file changes: modification time, or a remote store's tag.
    token: str
    compression: Compression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlock:
    """A part of a file that one member reads at once, with other such parts if it is small."""

    file: DataFile
    #: Estimated bytes in memory.
    nbytes: int
    rows: int | None = None
    #: Columns of dense rows in the data, including columns that are dropped for a model.
    columns: int | None = None
    #: Where it starts and ends, in the format's units: bytes of text, rows, images.
    first: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive whole lines."""

    text: bytes
    #: Number of the first line, from 1; None if counting it would require reading the file.
    first_line: int | None
    #: Offset of the text in the uncompressed file.
    offset: int


def absolute(path: str) -> str:
    """Return an absolute path, so that it names the same file on every member; URLs stay.

    Raises
    ------
    ConfigError
        When the path is ``hdfs:///path`` and no configuration names the default file system.
    """
    if "://" not in path:
        return str(Path(path).expanduser().absolute())
    return absolute_hdfs(path) if is_hdfs(path) else path


def _open_local(path: str) -> BinaryIO:
    return open(path, "rb")


def open_binary(path: str, open_local: Callable[[str], Any] = _open_local) -> BinaryIO:
    """Open a local or remote file for reading.

    Raises
    ------
    ConfigError
        When it does not exist, or cannot be opened.
    DataError
        When it is not a regular file.
    """
    check_regular(path)
    with _accessing(path, "opened"):
        local = local_path(path)
        if local is not None:
            return cast(BinaryIO, open_local(str(local)))
        system, inner = system_of(path)
        return cast(BinaryIO, system.open(inner, "rb"))


def file_info(path: str) -> DataFile:
    """Return a file's size, version and compression.

    Raises
    ------
    ConfigError
        When it is missing, a directory, or not readable.
    DataError
        When it is empty.
    """
    with _accessing(path):
        system, inner = system_of(path)
        info: Mapping[str, Any] = system.info(inner)
    return info_of(path, inner, info)


def info_of(path: str, inner: str, info: Mapping[str, Any]) -> DataFile:
    """Return a file's size, version and compression by fsspec's ``info`` of it."""
    if info["type"] == "directory":
        raise ConfigError(f"data path {path} is a directory, wanted a file")
    if info["size"] == 0:
        raise DataError(f"{path} is empty (0 bytes), wanted at least one example")
    size, token = int(info["size"]), version_of(inner, info)
    compression = _compression(path, token, size)
    return DataFile(path=path, size=size, token=token, compression=compression)


def once_per_version(look: Callable[..., T]) -> Callable[..., T]:
    """Cache a function of a file's path, version token and further arguments.

    Concurrent callers wait for the first one. Without a token nothing is cached.
    """
    seen, looking = functools.lru_cache(maxsize=_LOOKS)(look), threading.Lock()

    @functools.wraps(look)
    def looked(path: str, token: str, *more: Hashable) -> T:
        if not token:
            return look(path, token, *more)
        with looking:
            return seen(path, token, *more)

    return looked


@once_per_version
def _compression(path: str, token: str, size: int) -> Compression | None:
    """Return a file's compression, by its first bytes."""
    with open_binary(path) as source:
        start = source.read(6)
    return next((name for magic, name in _MAGIC if start.startswith(magic)), None)


def missing(path: str) -> ConfigError:
    """Return the error for a file that does not exist."""
    return ConfigError(
        f"data file {path} does not exist; check data.path",
        missing_file=path,
        host_fault=OSError.__name__,
    )


def changed(path: str) -> DataError:
    """Return the error for a file that is not the listed one."""
    return DataError(f"{path} has changed since it was listed; start a new job when it is in place")


@contextmanager
def _accessing(path: str, action: str = "accessed") -> Iterator[None]:
    """Turn a file system's exceptions into a ``ConfigError`` about a file of data."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ImportError, ValueError) as error:
        raise ConfigError(
            f"data file {path} cannot be {action}: {reason_of(error)}; {remedy_of(path, error)}",
            host_fault=host_fault(error),
        ) from None


def located(error: ElasticmlError, process: str) -> ElasticmlError:
    """Return the error of another process than the user's: it names the host that lacks a file."""
    path = error.fields.get("missing_file")
    if path is None:
        return error
    return ConfigError(
        f"data file {path} does not exist on host {socket.gethostname()}, where {process} runs; "
        "check data.path: a file must have the same path on the hosts of the scheduler and of all "
        "workers, such as on a shared file system; or give a URL that they can open, or a Dask "
        "frame (em.from_dask)",
        host_fault=error.fields["host_fault"],
    )


def version_of(inner: str, info: Mapping[str, Any]) -> str:
    """Return a file's version from fsspec's ``info`` of its path; "" if it is unknown."""
    if "ino" in info:
        with suppress(OSError):
            return str(os.stat(inner).st_mtime_ns)
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None), "")


def _state_of(path: str) -> tuple[int, str]:
    """Return a file's size and version as they are now."""
    if not is_url(path):  # fsspec takes ten times as long
        status = os.stat(path)
        return status.st_size, str(status.st_mtime_ns)
    system, inner = system_of(path)
    info = system.info(inner)
    return info["size"], version_of(inner, info)


def fingerprint(spec: Mapping[str, Any], file: DataFile | None = None) -> str:
    """Digest a source's spec (path, options) with its file's size and version; 16 hex digits."""
    parts: list[Any] = [READING_VERSION, dict(spec)]
    if file is not None:
        parts += [file.size, file.token]
    text = json.dumps(parts, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def whole_file(file: DataFile) -> list[FileBlock]:
    """Return a file as a single block."""
    nbytes = file.size * _EXPANSION[file.compression]
    return [FileBlock(nbytes=nbytes, file=file, stop=file.size)]


def text_blocks(file: DataFile) -> list[FileBlock]:
    """Return the blocks of a text file: ranges of 8 MiB, or the whole file if compressed."""
    if file.compression is not None:
        return whole_file(file)
    ranges = [(at, min(at + BLOCK_BYTES, file.size)) for at in range(0, file.size, BLOCK_BYTES)]
    return [
        FileBlock(nbytes=stop - first, file=file, first=first, stop=stop) for first, stop in ranges
    ]


def block_pieces(block: FileBlock) -> Iterator[Piece]:
    """Yield the whole lines of one block, in pieces of about 8 MiB.

    A line belongs to the block in which it begins, so every line is in exactly one block.

    Raises
    ------
    DataError
        When a compressed file is damaged or truncated.
    """
    file = block.file
    if file.compression is not None:
        yield from _decompressed(file.path, file.compression, file.size)
    else:
        yield _line_range(file.path, block.first, block.stop)


def _line_range(path: str, start: int, stop: int) -> Piece:
    """Read the lines that begin at an offset of at least ``start`` and below ``stop``."""
    with open_binary(path) as source:
        begin = 0
        if start:
            source.seek(start - 1)
            begin = start - 1 + len(read_line(source, path))
        if local_path(path) is not None:
            # In a local file the end of the last line is cheap to find; then one read suffices.
            source.seek(stop - 1)
            stop += max(0, len(read_line(source, path)) - 1)
            source.seek(begin)
        text = source.read(max(0, stop - begin))
        if text and not text.endswith(b"\n"):
            text += read_line(source, path)
    return Piece(text=text, first_line=None if start else 1, offset=begin)


def read_line(source: BinaryIO, path: str) -> bytes:
    """Read to the end of a line; on remote files in small steps, where fsspec reads megabytes.

    Raises
    ------
    DataError
        When the line is longer than ``LINE_BYTES_MAX``.
    """
    if not hasattr(source, "readuntil"):
        line = source.readline(LINE_BYTES_MAX + 1)
    else:
        parts, start = list[bytes](), source.tell()
        while sum(map(len, parts)) <= LINE_BYTES_MAX:
            part = source.read(_LINE_BYTES)
            end = part.find(b"\n") + 1
            parts.append(part[:end] if end else part)
            if end or not part:
                break
        line = b"".join(parts)
        source.seek(start + len(line))
    if len(line) > LINE_BYTES_MAX:
        raise _long_line(path, f"the line around byte {source.tell() - len(line)}")
    return line


def _long_line(path: str, what: str) -> DataError:
    return DataError(
        f"{path}: {what} is longer than {LINE_BYTES_MAX} bytes, wanted lines of text; copy or "
        "download the file again"
    )


def _decompressed(path: str, compression: Compression, compressed_bytes: int) -> Iterator[Piece]:
    line, offset, parts, size = 1, 0, list[bytes](), 0
    has_end = False
    with open_binary(path) as raw:
        source = decompressor(raw, compression)
        while True:
            try:
                part = source.read(READ_BYTES)
            except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
                lines = line + sum(part.count(b"\n") for part in parts)
                raise DataError(
                    f"{path}, line {lines}: the {compression} data end early or are damaged "
                    f"({one_line(error)}); copy or download the file again"
                ) from None
            parts.append(part)
            size += len(part)
            has_end = has_end or b"\n" in part
            check_expansion(path, "the file", offset + size, compressed_bytes)
            if size > LINE_BYTES_MAX and not has_end:
                raise _long_line(path, f"line {line}")
            if part and (size < BLOCK_BYTES or not has_end):
                continue
            text = b"".join(parts)
            end = text.rfind(b"\n") + 1 if part else len(text)
            if end:
                yield Piece(text=text[:end], first_line=line, offset=offset)
                line, offset = line + text.count(b"\n", 0, end), offset + end
            parts, size, has_end = [text[end:]], len(text) - end, False
            if not part:
                return


def decompressor(raw: BinaryIO, compression: Compression) -> BinaryIO:
    """Return a file object that decompresses an open file."""
    if compression == "gzip":
        return cast(BinaryIO, gzip.open(raw, "rb"))
    if compression == "bzip2":
        return cast(BinaryIO, bz2.open(raw, "rb"))
    return cast(BinaryIO, lzma.open(raw, "rb"))


def line_number(path: str, piece: Piece, position: int) -> int:
    """Return the line, from 1, of byte ``position`` of a piece; may read the file before it."""
    first = piece.first_line
    if first is None:
        first, left = 1, piece.offset
        with open_binary(path) as source:
            while left > 0:
                part = source.read(min(left, BLOCK_BYTES))
                if not part:
                    break
                first, left = first + part.count(b"\n"), left - len(part)
    return first + piece.text.count(b"\n", 0, position)


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
    pattern = _PATTERN.search(path)
    with _accessing(path):
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
    return _visible(path, base, inner, found, suffixes)


def _visible(
    path: str,
    base: str,
    inner: str,
    found: Mapping[str, Mapping[str, Any]],
    suffixes: Sequence[str],
) -> tuple[DataFile, ...]:
    names = {
        name: entry
        for name, entry in entries_in(inner, found).items()
        if name.rpartition("/")[2][:1] not in ("_", ".")
    }
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
    return tuple(listed_file(base, name, names[name]) for name in files)


def entries_in(inner: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return what a file system has found in a folder, by names relative to it."""
    prefix = inner.rstrip("/") + "/"
    # Some file systems include the host in file names; "inner" does not have it.
    return {name.rstrip("/").partition(prefix)[2]: entry for name, entry in found.items()}


def listed_file(folder: str, name: str, entry: Mapping[str, Any]) -> DataFile:
    """Return a file of a listed folder; its suffix says how it is compressed."""
    return DataFile(
        path=join(folder, name) if folder else name,
        size=int(entry["size"] or 0),
        token=version_of(str(entry["name"]), entry),
        compression=_COMPRESSIONS.get(os.path.splitext(name)[1].lower()),
    )


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]


#: The fields of files and of their parts that a table has.
_OF_FILES: Final = ("path", "size", "token", "compression")
_OF_PARTS: Final = ("file", "first", "stop", "nbytes", "rows", "columns")


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
        columns: dict[str, list[Any]] = {
            **{name: [getattr(file, name) for file in self.files] for name in _OF_FILES},
            **{name: [getattr(part, name) for part in parts] for name in _OF_PARTS},
            "group": [len(group) for group in self.groups],
        }
        columns["file"] = [at[part.file.path] for part in parts]
        # Versions are mostly times in nanoseconds, whose first digits are the same.
        if all(file.token.isdecimal() and file.token[:1] != "0" for file in self.files):
            columns["token"] = [int(file.token) for file in self.files]
        columns = {name: _differences(column) for name, column in columns.items()}
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
        stored = json.loads(zlib.decompress(base64.b85decode(table)))
        columns = {name: _sums(column) for name, column in stored.items()}
        columns["token"] = [str(token) for token in columns["token"]]
        listing = cls(path, tuple, lambda files: ())
        listing.table = table
        listing.files = files = [
            DataFile(**dict(zip(_OF_FILES, row, strict=True)))
            for row in zip(*(columns[name] for name in _OF_FILES), strict=True)
        ]
        columns["file"] = [files[number] for number in columns["file"]]
        parts = (
            FileBlock(**dict(zip(_OF_PARTS, row, strict=True)))
            for row in zip(*(columns[name] for name in _OF_PARTS), strict=True)
        )
        listing.groups = [list(islice(parts, size)) for size in columns["group"]]
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
        with _accessing(file.path):
            try:
                now = _state_of(file.path)
            except FileNotFoundError:
                now = None
        if now != (file.size, file.token):
            raise changed(file.path)

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


def _differences(column: list[Any]) -> list[Any]:
    """Return whole numbers as differences to the one before; other columns as they are."""
    if not all(isinstance(value, int) for value in column):
        return column
    return [number - before for number, before in zip(column, [0, *column], strict=False)]


def _sums(column: list[Any]) -> list[Any]:
    """Return the column of which these are the :func:`_differences`."""
    return list(accumulate(column)) if all(isinstance(v, int) for v in column) else column
