"""Places where files are kept: local paths and URLs, written whole, read whole, listed, removed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec

from elasticml.data.hdfs import hdfs_system, is_hdfs
from elasticml.errors import ConfigError, one_line

#: What goes wrong in a file system besides absence: refused, unreachable, unknown, not installed.
_FAILURES = (OSError, ImportError, ValueError)


def is_url(place: str) -> bool:
    """Tell a URL from a local path."""
    return "://" in place


def local_path(place: str) -> Path | None:
    """Return the local path that a place means; None where it is elsewhere."""
    if place.startswith("file://"):
        return Path(place.removeprefix("file://"))
    return None if is_url(place) else Path(place).expanduser()


def join(place: str, *names: str) -> str:
    """Name what lies below a place: ``join("hdfs://nn:8020/runs", "a", "b.json")``."""
    start, colon, path = place.partition("://")
    return "/".join([f"{start}{colon}{path.rstrip('/')}" if colon else place.rstrip("/"), *names])


def system_of(place: str) -> tuple[Any, str]:
    """Return the fsspec file system that a place is in, and its path there.

    Raises
    ------
    ImportError, OSError, ValueError
        When the protocol is unknown, or its library is not installed.
    """
    system, inner = hdfs_system(place) if is_hdfs(place) else fsspec.core.url_to_fs(place)
    return system, str(inner)


def exists(place: str) -> bool:
    """Say whether there is a file or a directory; a ConfigError where that cannot be told."""
    with _failing(place, "looked at"):
        system, inner = system_of(place)
        try:
            system.info(inner)  # fsspec's own exists() takes every failure for absence
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def names(place: str) -> list[str]:
    """List the names in a directory, sorted; none where it is absent."""
    with _failing(place, "listed"):
        system, inner = system_of(place)
        try:
            found = system.ls(inner, detail=False, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)


def read_bytes(place: str) -> bytes:
    """Read a whole file.

    Raises
    ------
    FileNotFoundError
        When it is absent.
    ConfigError
        When it cannot be read.
    """
    with _failing(place, "read", absence_is_failure=False):
        system, inner = system_of(place)
        return bytes(system.cat_file(inner))


def make_directory(place: str) -> None:
    """Make a directory and those above it; one that is there already is fine."""
    with _failing(place, "made"):
        system, inner = system_of(place)
        system.makedirs(inner, exist_ok=True)


def remove(place: str) -> None:
    """Remove a file, or a directory with all that is in it; what is absent already is fine."""
    with _failing(place, "removed"):
        system, inner = system_of(place)
        with suppress(FileNotFoundError):
            system.rm(inner, recursive=True)


def remove_empty(place: str) -> None:
    """Remove a directory in which there is nothing; any other is left, and absence is fine.

    The file system itself looks whether there is anything: what another process puts there in the
    same moment is safe.
    """
    with _failing(place, "removed"):
        system, inner = system_of(place)
        try:
            system.rmdir(inner)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def write_whole(place: str, content: bytes) -> None:
    """Write a file under another name, then rename it: a reader sees all of it or none.

    Directories above it are made. A local file is on the disk on return.

    Raises
    ------
    ConfigError
        When it cannot be written; what stood there before still does.
    """
    path = local_path(place)
    with _failing(place, "written"):
        if path is not None:
            _write_local(path, content)
        else:
            _write_remote(place, content)


def _write_local(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(_part_name(path.name))
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
    part = f"{above}/{_part_name(name)}"
    if above:
        system.makedirs(above, exist_ok=True)
    try:
        system.pipe_file(part, content)
        system.mv(part, inner)
    except BaseException:
        with suppress(*_FAILURES):
            system.rm(part)
        raise


def _part_name(name: str) -> str:
    """Name a file under way: hidden, and no other process's or thread's."""
    return f".{name}.{os.getpid()}-{secrets.token_hex(3)}.part"


@contextmanager
def _failing(place: str, done: str, absence_is_failure: bool = True) -> Iterator[None]:
    """Turn what a file system raises into one line that says what to do."""
    try:
        yield
    except _FAILURES as error:
        if isinstance(error, FileNotFoundError) and not absence_is_failure:
            raise
        raise ConfigError(
            f"{place} cannot be {done}: {reason_of(error)}; {remedy_of(place, error)}", path=place
        ) from error


def reason_of(error: BaseException) -> str:
    """Say in one line what an error of a file system is about."""
    return one_line((isinstance(error, OSError) and error.strerror) or error)


def remedy_of(place: str, error: BaseException) -> str:
    """Say what to do about an error of a file system."""
    if isinstance(error, ImportError):
        return "install that library, or name a local path"
    if isinstance(error, PermissionError):
        return "name a place that this user may write to, or ask for the permission"
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
