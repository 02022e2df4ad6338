"""Files of text wherever fsspec finds them: what they are, byte ranges of whole lines, pieces."""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import json
import lzma
import threading
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeVar, cast

from elasticml.data.hdfs import absolute_hdfs, is_hdfs
from elasticml.data.places import local_path, reason_of, remedy_of, system_of
from elasticml.data.source import BLOCK_BYTES, BlockInfo
from elasticml.errors import ConfigError, DataError

Compression = Literal["gzip", "bzip2", "xz"]
T = TypeVar("T")

_MAGIC: Final[tuple[tuple[bytes, Compression], ...]] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)
#: How many bytes of memory a byte of file stands for, roughly; only chunk sizes hang on it.
_EXPANSION: Final = {None: 1, "gzip": 4, "bzip2": 6, "xz": 6}
#: Bytes asked of a decompressor at once; an error names the last line before it.
_READ_BYTES: Final = 2**18
#: What fsspec's file systems tell of a file's version, the surest first.
_VERSION_KEYS: Final = (
    *("ETag", "etag", "Content-MD5", "Digest", "sha"),
    *("mtime", "modificationTime", "LastModified", "last_modified", "Last-Modified"),
    *("updated", "modify"),
)
#: Bytes of a remote file that are looked through at once for the end of a line.
_LINE_BYTES: Final = 2**16
#: Part of every fingerprint: a change in how text becomes chunks makes old caches unusable.
READING_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What is known of a file without reading it."""

    size: int
    #: Changes when the file does: modification time, or a remote store's tag.
    token: str
    compression: Compression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some consecutive whole lines."""

    text: bytes
    #: Number of the first line, from 1; None where counting it would mean reading the file.
    first_line: int | None
    #: Where the text starts in the uncompressed file.
    offset: int


def absolute(path: str) -> str:
    """Make a path absolute, so that every member means the same file; leave other URLs alone.

    Raises
    ------
    ConfigError
        When ``hdfs:///path`` is given and no configuration says which HDFS that is.
    """
    if "://" not in path:
        return str(Path(path).expanduser().absolute())
    return absolute_hdfs(path) if is_hdfs(path) else path


def open_binary(path: str) -> BinaryIO:
    """Open a local or remote file for reading; a ConfigError says that there is none."""
    try:
        system, inner = system_of(path)
        return cast(BinaryIO, system.open(inner, "rb"))
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, ImportError, ValueError) as error:
        raise _unusable(path, "opened", error) from None


def file_facts(path: str) -> FileFacts:
    """Look at a file's size, age and first bytes.

    Raises
    ------
    ConfigError
        When it is missing, a directory, or not allowed to be read.
    DataError
        When it is empty.
    """
    try:
        system, inner = system_of(path)
        info: Mapping[str, Any] = system.info(inner)
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, ImportError, ValueError) as error:
        raise _unusable(path, "looked at", error) from None
    if info["type"] == "directory":
        raise ConfigError(f"data path {path} is a directory, wanted a file", path=path)
    if info["size"] == 0:
        raise DataError(f"{path} is empty (0 bytes), wanted at least one example", path=path)
    size, token = int(info["size"]), version_of(inner, info)
    return FileFacts(size=size, token=token, compression=_compression(path, token, size))


def tells_versions(path: str) -> bool:
    """Whether another version of a file of the same size can be told from this one."""
    return file_facts(path).token != ""


def once_per_version(look: Callable[..., T]) -> Callable[..., T]:
    """Remember what a function of a file's path, its token and more has seen in the file.

    Threads that ask meanwhile wait for the first one. Without a token nothing is remembered.
    """
    seen, looking = functools.lru_cache(maxsize=64)(look), threading.Lock()

    @functools.wraps(look)
    def looked(path: str, token: str, *more: Hashable) -> T:
        if not token:
            return look(path, token, *more)
        with looking:
            return seen(path, token, *more)

    return looked


@once_per_version
def _compression(path: str, token: str, size: int) -> Compression | None:
    """Tell by the first bytes how a file is compressed."""
    with open_binary(path) as source:
        start = source.read(6)
    return next((name for magic, name in _MAGIC if start.startswith(magic)), None)


def _missing(path: str) -> ConfigError:
    return ConfigError(f"data file {path} does not exist; check data.path", path=path)


def _unusable(path: str, done: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"data file {path} cannot be {done}: {reason_of(error)}; {remedy_of(path, error)}",
        path=path,
    )


def version_of(inner: str, info: Mapping[str, Any]) -> str:
    """Tell a file's version by its path there and what fsspec says of it; "" where nothing does."""
    local = Path(inner)
    if "ino" in info and local.exists():
        return str(local.stat().st_mtime_ns)
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None), "")


def fingerprint(spec: Mapping[str, Any], facts: FileFacts | None = None) -> str:
    """Digest a source's spec (path, options) with the size and age of its file; 16 hex digits."""
    parts: list[Any] = [READING_VERSION, dict(spec)]
    if facts is not None:
        parts += [facts.size, facts.token]
    text = json.dumps(parts, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def text_blocks(facts: FileFacts) -> list[BlockInfo]:
    """Blocks of a text file: ranges of 8 MiB, or the whole file where it is compressed."""
    if facts.compression is not None:
        return [BlockInfo(index=0, nbytes=facts.size * _EXPANSION[facts.compression])]
    starts = range(0, facts.size, BLOCK_BYTES)
    return [
        BlockInfo(index=i, nbytes=min(BLOCK_BYTES, facts.size - start))
        for i, start in enumerate(starts)
    ]


def block_pieces(path: str, block: int, facts: FileFacts) -> Iterator[Piece]:
    """Yield the whole lines of one block, in pieces of about 8 MiB.

    Lines belong to the block in which they begin, so that every line is in exactly one block.

    Raises
    ------
    DataError
        When a compressed file is damaged or cut short.
    """
    if facts.compression is not None:
        yield from _decompressed(path, facts.compression)
    else:
        yield _line_range(path, block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)


def _line_range(path: str, start: int, stop: int) -> Piece:
    """Read the lines that begin at an offset of at least ``start`` and below ``stop``."""
    with open_binary(path) as source:
        begin = 0
        if start:
            source.seek(start - 1)
            begin = start - 1 + len(read_line(source))
        if local_path(path) is not None:
            # Where the last line ends is cheap to find here, and then all is read in one go.
            source.seek(stop - 1)
            stop += max(0, len(read_line(source)) - 1)
            source.seek(begin)
        text = source.read(max(0, stop - begin))
        if text and not text.endswith(b"\n"):
            text += read_line(source)
    return Piece(text=text, first_line=None if start else 1, offset=begin)


def read_line(source: BinaryIO) -> bytes:
    """Read to the end of a line; of a remote file little more, where fsspec reads megabytes."""
    read_until: Callable[..., bytes] | None = getattr(source, "readuntil", None)
    return source.readline() if read_until is None else read_until(b"\n", _LINE_BYTES)


def _decompressed(path: str, compression: Compression) -> Iterator[Piece]:
    line, offset, parts, size = 1, 0, list[bytes](), 0
    with open_binary(path) as raw:
        source = decompressor(raw, compression)
        while True:
            try:
                part = source.read(_READ_BYTES)
            except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                lines = line + sum(part.count(b"\n") for part in parts)
                raise DataError(
                    f"{path}, line {lines}: the {compression} data end early or are damaged "
                    f"({error}); copy or download the file again",
                    path=path,
                    line=lines,
                ) from None
            parts.append(part)
            size += len(part)
            if part and size < BLOCK_BYTES:
                continue
            text = b"".join(parts)
            end = text.rfind(b"\n") + 1 if part else len(text)
            if end:
                yield Piece(text=text[:end], first_line=line, offset=offset)
                line, offset = line + text.count(b"\n", 0, end), offset + end
            parts, size = [text[end:]], len(text) - end
            if not part:
                return


def decompressor(raw: BinaryIO, compression: Compression) -> BinaryIO:
    """Read what is compressed in an open file."""
    if compression == "gzip":
        return cast(BinaryIO, gzip.open(raw, "rb"))
    if compression == "bzip2":
        return cast(BinaryIO, bz2.open(raw, "rb"))
    return cast(BinaryIO, lzma.open(raw, "rb"))


def line_number(path: str, piece: Piece, position: int) -> int:
    """Count lines up to byte ``position`` of a piece, from 1; reads what is before the piece."""
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
