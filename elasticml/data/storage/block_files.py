"""Memory-mappable files that hold one block of chunks, and the cache of parsed blocks in them.

A file holds a JSON index, then the chunk bodies, aligned to 64 bytes. It is written completely and
then renamed. The index is verified when the file is mapped; a body is verified by its checksum
before any of it except labels and weights is accessed.

The cache is shared by the members of one host and by later jobs. Members that need the same block
at the same time wait for the first one to write it. Truncated and damaged files are parsed again.
Without a writable directory nothing is cached. Converted data are such files, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from elasticml.data.chunks.body import LazyBody
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.storage.file_limits import FREE_SHARE_MIN, raise_open_file_limit
from elasticml.data.storage.untrusted_files import check_regular
from elasticml.errors import DataError, one_line
from elasticml.ids import chunk_id
from elasticml.user_cache import CacheSetting, cache_bytes_max, cache_directory, is_off

MAGIC: Final = b"emlcache"
VERSION: Final = 4
#: Suffixes of finished files, and of files being written.
SUFFIX: Final = ".chunks"
PART: Final = ".part"
_LOCK: Final = ".lock"
_PIN: Final = ".pin"
#: Seconds for which blocks stay pinned if no member pins them again.
PINNED_S_MAX: Final = 7 * 86_400
#: Magic, version, bytes of the index, bytes of the bodies, digest of the index.
_FIXED: Final = struct.Struct("<8sIIQ8s")

Block = tuple[list[Chunk], BlockSummary]


def write_block(path: Path, block: Block) -> None:
    """Write a block under a temporary name, then rename it.

    Raises
    ------
    OSError
        When the file cannot be written; no partial file is left.
    """
    chunks, summary = block
    # Imported here: a process that only starts a container need not load compiled code.
    from elasticml.data.chunks.checksums import checksum

    index = {
        "summary": summary.to_json(),
        "chunks": [
            [str(chunk.id), chunk.nbytes, f"{checksum(chunk.body):016x}"] for chunk in chunks
        ],
    }
    text = json.dumps(index).encode()
    n_bodies = sum(chunk.nbytes for chunk in chunks)
    head = _FIXED.pack(MAGIC, VERSION, len(text), n_bodies, _digest(text)) + text
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=PART)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(head.ljust(_bodies_start(len(text)), b"\0"))
            for chunk in chunks:
                out.write(chunk.body)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class MappedFile(mmap.mmap):
    """The mapped file of a block, which notices that it was written to since."""

    path: Path
    #: Digest of its index, which has the checksums of its bodies.
    digest: bytes
    #: Inode, time of the last write, size.
    _written: tuple[int, int, int]

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        """Map a file; raises OSError."""
        with path.open("rb") as source:
            status = os.fstat(source.fileno())
            if status.st_size < _FIXED.size:
                raise _damaged(path, "it is cut short")
            memory = cls(source.fileno(), 0, access=mmap.ACCESS_READ)
        memory.path, memory._written = path, _written(status)
        return memory

    def check(self) -> None:
        """Verify all bodies again if the file was written to; one put in its place is another.

        Raises
        ------
        DataError
            When its content is not what it was.
        """
        try:
            written = _written(self.path.stat())
        except OSError:  # removed: the mapping keeps its content
            return
        if written == self._written or written[0] != self._written[0]:
            return
        chunks, _ = map_block(self.path)
        for chunk in chunks:
            again = chunk.stored.obj
            assert isinstance(again, MappedFile)
            if again.digest != self.digest:
                raise _damaged(self.path, "its index has changed while a job read it")
            chunk.load()
        self._written = written


def _written(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def files_of(chunks: Iterable[Chunk]) -> set[MappedFile]:
    """Return the block files that these chunks' bodies are mapped from."""
    exporters = (chunk.stored.obj for chunk in chunks if chunk.is_mapped)
    return {file for file in exporters if isinstance(file, MappedFile)}


def map_block(path: Path) -> Block:
    """Map a block; its chunks' bodies are loaded from the file on access.

    Raises
    ------
    OSError
        When the file does not exist or cannot be read.
    DataError
        When the index is damaged. A damaged body raises when its chunk is loaded.
    """
    check_regular(str(path))
    raise_open_file_limit()  # a mapping keeps a descriptor open while any chunk of the block exists
    memory = MappedFile.open(path)
    view = memoryview(memory)
    magic, version, n_text, n_bodies, digest = _FIXED.unpack_from(view)
    start, text = _bodies_start(n_text), bytes(view[_FIXED.size : _FIXED.size + n_text])
    if magic != MAGIC or version != VERSION:
        raise _damaged(path, "it is not a block of chunks of this version")
    if view.nbytes != start + n_bodies or _digest(text) != digest:
        raise _damaged(path, "it is cut short, or its index has changed")
    memory.digest = digest
    try:
        index = json.loads(text)
        # Headers are scattered over the file: read-ahead would load their surroundings.
        memory.madvise(mmap.MADV_RANDOM)
        chunks = _map_chunks(view[start:], index["chunks"], str(path))
        memory.madvise(mmap.MADV_NORMAL)
        return chunks, BlockSummary.from_json(index["summary"])
    except DataError as error:
        raise _damaged(path, error.message.partition(";")[0]) from None
    except Exception as error:  # the digest of an index detects damage, and forgery does not
        raise _damaged(path, f"its index cannot be read: {one_line(error)}") from error


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged: {why}; remove it and make it again")


def _map_chunks(
    view: memoryview, entries: Sequence[tuple[str, int, str]], place: str
) -> list[Chunk]:
    chunks, start = [], 0
    for text, nbytes, digits in entries:
        lazy_body = LazyBody(view[start : start + nbytes], int(digits, 16), text, place)
        chunk = Chunk.from_lazy_body(chunk_id(text), lazy_body)
        chunk.is_mapped = True
        chunks.append(chunk)
        start += nbytes
    return chunks


def _bodies_start(n_text: int) -> int:
    return -(-(_FIXED.size + n_text) // 64) * 64


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file, which is created, or a folder; no-op where locks are not supported.

    The kernel releases the lock if its holder dies.
    """
    descriptor = None
    with contextlib.suppress(OSError):
        how = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(path, how | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether another process holds a lock; True if locks are not supported."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


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
        (folder / f"{source}.{_digest(job.encode()).hex()}{_PIN}").touch()


def unpin(job: str, setting: CacheSetting = None) -> None:
    """Let the cache remove what a job has pinned."""
    if is_off(setting):
        return
    with contextlib.suppress(OSError, RuntimeError):
        for path in _folder(setting).glob(f"*.{_digest(job.encode()).hex()}{_PIN}"):
            path.unlink(missing_ok=True)


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
