"""A binary cache of parsed blocks on disk, shared by the members of one host and by later jobs.

One file holds one block, see :mod:`elasticml.data.storage.block_file`. Members that need the same
block at the same time wait for the first one to write it. Truncated and damaged files are parsed
again. Without a writable directory nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from elasticml.data.storage.block_file import (
    PART,
    SUFFIX,
    Block,
    is_locked,
    locked,
    map_block,
    write_block,
)
from elasticml.data.storage.file_limits import FREE_SHARE_MIN
from elasticml.errors import DataError
from elasticml.user_cache import CacheSetting, cache_bytes_max, cache_directory, is_off

_LOCK: Final = ".lock"
_PIN: Final = ".pin"
#: Seconds for which blocks stay pinned if no member pins them again.
PINNED_S_MAX: Final = 7 * 86_400


def _folder(setting: CacheSetting) -> Path:
    return cache_directory(None if isinstance(setting, bool) else setting)


def cached(
    key: str,
    parse: Callable[[], Block],
    setting: CacheSetting = None,
    is_kept: Callable[[Block], bool] = lambda block: True,
) -> Block:
    """Return the block cached under ``key``, or parse and cache it.

    Parameters
    ----------
    key : str
        Identifies the block, the version of its data and the chunk size; valid as a file name.
    parse : callable
        Reads the block; called at most once, and by one process at a time where the directory
        supports advisory locks.
    setting : path, bool or None
        Location of the cache; False for none.
    is_kept : callable
        Whether to cache the parsed block: it must be worth its space, and ``key`` must still
        identify the data, as a block may mix two versions if the file changed meanwhile.

    Raises
    ------
    Exception
        Exceptions of ``parse`` propagate. A cache that cannot be read or written is not an error.
    """
    if is_off(setting):
        return parse()
    try:
        folder = _folder(setting)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, a file in the way, no home directory
        return parse()
    path = folder / f"{key}{SUFFIX}"
    block = _load(path)
    if block is not None:
        return block
    with locked(folder / f"{key}{_LOCK}"):
        block = _load(path)
        if block is not None:
            return block
        block = parse()
        with contextlib.suppress(OSError):
            if is_kept(block) and _has_room(folder, block):
                write_block(path, block)
                _sweep(folder, keep=path)
        return block


def pin(source: str, job: str, setting: CacheSetting = None) -> None:
    """Keep the cached blocks of a source until :func:`unpin`, at most seven days.

    A job that resumes after its scheduler was lost finds them. Where nothing can be cached, this
    does nothing.

    Parameters
    ----------
    source : str
        The start of the blocks' keys: the fingerprint of their source.
    job : str
        Names the job, the same one in all its attempts.
    """
    if is_off(setting):
        return
    with contextlib.suppress(OSError, RuntimeError):
        folder = _folder(setting)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / f"{source}.{_digest(job)}{_PIN}").touch()


def unpin(job: str, setting: CacheSetting = None) -> None:
    """Let the cache remove what a job has pinned."""
    if is_off(setting):
        return
    with contextlib.suppress(OSError, RuntimeError):
        for path in _folder(setting).glob(f"*.{_digest(job)}{_PIN}"):
            path.unlink(missing_ok=True)


def _digest(job: str) -> str:
    return hashlib.blake2b(job.encode(), digest_size=8).hexdigest()


def _pinned(folder: Path) -> tuple[str, ...]:
    """Return the starts of the names of pinned blocks; remove pins that are too old."""
    sources = []
    for path in folder.glob(f"*{_PIN}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > PINNED_S_MAX:
                path.unlink()
            else:
                sources.append(f"{path.name.partition('.')[0]}-")
    return tuple(sources)


def _load(path: Path) -> Block | None:
    """Map a cached block and mark it as used; None if it is absent or damaged."""
    try:
        block = map_block(path)
        for chunk in block[0]:
            chunk.load()  # verifies the body now, while the block can still be parsed again
    except (OSError, DataError):
        return None
    with contextlib.suppress(OSError):  # not the time of the last write, which others watch
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return block


def _has_room(folder: Path, block: Block) -> bool:
    """Whether a block fits the size limit and leaves enough of the disk free."""
    nbytes = sum(chunk.nbytes for chunk in block[0])
    disk = shutil.disk_usage(folder)
    return nbytes <= cache_bytes_max() and disk.free - nbytes >= FREE_SHARE_MIN * disk.total


def _sweep(folder: Path, keep: Path) -> None:
    """Remove the oldest blocks until the rest fit, and the partial files of killed writers.

    Pinned blocks stay.
    A removed block stays readable for processes that have mapped it.
    """
    entries = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            entries.append((max(status.st_atime_ns, status.st_mtime_ns), status.st_size, path))
    total, limit = sum(size for _, size, _ in entries), cache_bytes_max()
    pinned = _pinned(folder) if total > limit else ()
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        if path != keep and not path.name.startswith(pinned):
            path.unlink(missing_ok=True)
            path.with_suffix(_LOCK).unlink(missing_ok=True)
            total -= size
    for part in folder.glob(f"*{SUFFIX}*{PART}"):
        lock = folder / f"{part.name.partition(SUFFIX)[0]}{_LOCK}"
        # The caller holds its own block's lock and has already finished writing it.
        if lock == keep.with_suffix(_LOCK) or not is_locked(lock):
            part.unlink(missing_ok=True)
