"""Whole-file storage at local paths and fsspec URLs: read, write, list, remove.

A *place* is a local path or a URL.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elasticml.data.storage.hdfs import hdfs_system, is_hdfs
from elasticml.errors import ConfigError, one_line

#: Exceptions of file systems: access denied, unreachable, unknown protocol, library missing.
_FAILURES = (OSError, ImportError, ValueError)


def is_url(place: str) -> bool:
    """Whether a place is a URL."""
    return "://" in place


def local_path(place: str) -> Path | None:
    """Return a place's local path; None if it is remote."""
    if place.startswith("file://"):
        return Path(place.removeprefix("file://"))
    if is_url(place):
        return None
    return Path(place).expanduser() if place[:1] == "~" else Path(place)


def join(place: str, *names: str) -> str:
    """Join names to a place: ``join("hdfs://nn:8020/runs", "a", "b.json")``."""
    start, colon, path = place.partition("://")
    return "/".join([f"{start}{colon}{path.rstrip('/')}" if colon else place.rstrip("/"), *names])


def system_of(place: str) -> tuple[Any, str]:
    """Return the fsspec file system of a place, and the path in it.

    Raises
    ------
    ImportError, OSError, ValueError
        When the protocol is unknown, or its library is not installed.
    """
    if is_hdfs(place):
        system, inner = hdfs_system(place)
        return system, str(inner)
    # Imported here: a fit of arrays opens no file.
    import fsspec

    if is_url(place):
        system, inner = fsspec.core.url_to_fs(place)
    else:  # the same, which the function above takes longer to find than to open a file
        system = fsspec.filesystem("file")
        inner = system._strip_protocol(place)
    return system, str(inner)


def exists(place: str) -> bool:
    """Whether a file or directory exists; raises ConfigError if that cannot be determined."""
    with failing(place, "accessed"):
        system, inner = system_of(place)
        try:
            system.info(inner)  # fsspec's own exists() treats every failure as absence
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def names(place: str) -> list[str]:
    """Return the sorted names in a directory; empty if it does not exist."""
    with failing(place, "listed"):
        system, inner = system_of(place)
        try:
            paths = system.ls(inner, detail=False, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in paths)


def read_bytes(place: str) -> bytes:
    """Read a whole file.

    Raises
    ------
    FileNotFoundError
        When it does not exist.
    ConfigError
        When it cannot be read.
    """
    with failing(place, "read", absence_is_failure=False):
        system, inner = system_of(place)
        return bytes(system.cat_file(inner))


def make_directory(place: str) -> None:
    """Create a directory and its parents; no error if it exists."""
    with failing(place, "created"):
        system, inner = system_of(place)
        system.makedirs(inner, exist_ok=True)


def remove(place: str) -> None:
    """Remove a file, or a directory recursively; no error if it does not exist."""
    with failing(place, "removed"):
        system, inner = system_of(place)
        with suppress(FileNotFoundError):
            system.rm(inner, recursive=True)


def remove_empty(place: str) -> None:
    """Remove a directory if it is empty; no error if it is not, or does not exist.

    The file system itself checks for emptiness, so a file that another process creates at the same
    moment is safe.
    """
    with failing(place, "removed"):
        system, inner = system_of(place)
        try:
            system.rmdir(inner)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def write_whole(place: str, content: bytes) -> None:
    """Write a file atomically: under a temporary name, then renamed.

    Parent directories are created. A local file is synced to disk before this returns.

    Raises
    ------
    ConfigError
        When it cannot be written; a previous file is unchanged.
    """
    path = local_path(place)
    with failing(place, "written"):
        if path is not None:
            _write_local(path, content)
        else:
            _write_remote(place, content)


def create(place: str, content: bytes) -> bool:
    """Create a file, and its directory, unless it exists; return whether this call has created it.

    One of several processes succeeds where the file system can create exclusively: local and shared
    directories, HDFS, and object stores whose fsspec class does (its ``mode="create"``).

    Raises
    ------
    ConfigError
        When it cannot be written.
    """
    make_directory(place.rpartition("/")[0])
    path = local_path(place)
    with failing(place, "written"):
        try:
            if path is not None:
                with path.open("xb") as file:
                    file.write(content)
            else:
                system, inner = system_of(place)
                system.pipe_file(inner, content, mode="create")
        except FileExistsError:
            return False
        return True


def _write_local(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(part_name(path.name))
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_remote(place: str, content: bytes) -> None:
    system, inner = system_of(place)
    above, _, name = inner.rpartition("/")
    part = f"{above}/{part_name(name)}"
    if above:
        system.makedirs(above, exist_ok=True)
    try:
        system.pipe_file(part, content)
        system.mv(part, inner)
    except BaseException:
        with suppress(*_FAILURES):
            system.rm(part)
        raise


def part_name(name: str) -> str:
    """Return a temporary name: hidden, and unique among processes and threads."""
    return f".{name}.{os.getpid()}-{secrets.token_hex(3)}.part"


@contextmanager
def failing(place: str, action: str, absence_is_failure: bool = True) -> Iterator[None]:
    """Turn a file system's exceptions into a one-line ConfigError with a remedy."""
    try:
        yield
    except _FAILURES as error:
        if isinstance(error, FileNotFoundError) and not absence_is_failure:
            raise
        raise ConfigError(
            f"{place} cannot be {action}: {reason_of(error)}; {remedy_of(place, error)}"
        ) from error


def reason_of(error: BaseException) -> str:
    """Describe a file-system error in one line."""
    return one_line((isinstance(error, OSError) and error.strerror) or error)


def remedy_of(place: str, error: BaseException) -> str:
    """Return the remedy for a file-system error."""
    if isinstance(error, ImportError):
        return "install that library, or name a local path"
    if isinstance(error, PermissionError):
        return "name a place that this user may write to, or ask for permission"
    if isinstance(error, ValueError):
        return "name a local path, or a URL such as hdfs:///user/me/runs"
    if isinstance(error, ConnectionError | TimeoutError):
        return "start the server, or correct the host and port in the path or in HADOOP_CONF_DIR"
    if isinstance(error, OSError) and error.errno in (errno.EDQUOT, errno.ENOSPC):
        return "remove what is not needed, or ask for more room"
    if isinstance(error, OSError) and error.errno == errno.EROFS and is_hdfs(place):
        return "wait until its data nodes have reported, or: hdfs dfsadmin -safemode leave"
    if is_url(place):
        return "check the host and the path, and that there is room"
    return "check the path, and that there is room"
