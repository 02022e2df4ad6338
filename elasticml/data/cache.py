"""A binary cache of blocks that are slow to read again, such as compressed text.

One file holds one block: an index in JSON, then the chunk bodies on multiples of 64, so that the
file can be mapped. It is written whole and then renamed; members that want the same block at the
same time wait for the first one to write it. Without a writable directory nothing is cached.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from elasticml.data.chunk import Chunk
from elasticml.data.facts import BlockSummary
from elasticml.errors import DataError
from elasticml.terms import chunk_id

MAGIC: Final = b"emlcache"
VERSION: Final = 1
#: The least recently written files go when the directory holds more than this.
CACHE_BYTES_MAX: Final = 4 * 2**30
_FIXED: Final = struct.Struct("<8sIIQ")
_SUFFIX: Final = ".chunks"

Block = tuple[list[Chunk], BlockSummary]


def cache_directory(given: str | Path | None = None) -> Path:
    """Return ``given``, else ``$ELASTICML_CACHE``, else ``~/.cache/elasticml``."""
    if given is not None:
        return Path(given)
    named = os.environ.get("ELASTICML_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "elasticml"


def cached(key: str, parse: Callable[[], Block], directory: str | Path | None = None) -> Block:
    """Return the block cached under ``key``, or parse it and cache it.

    Parameters
    ----------
    key : str
        Names the block, the version of its data and the chunk size; a file name.
    parse : callable
        Reads the block; called at most once, and by one process at a time where the directory
        supports advisory locks.

    Raises
    ------
    Exception
        Whatever ``parse`` raises. A cache that cannot be read or written is no error.
    """
    try:
        folder = cache_directory(directory)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, a file in the way, no home directory
        return parse()
    path = folder / f"{key}{_SUFFIX}"
    found = _load(path)
    if found is not None:
        return found
    with _lock(folder / f"{key}.lock"):
        found = _load(path)
        if found is not None:
            return found
        block = parse()
        with contextlib.suppress(OSError):
            _store(path, block)
            _evict(folder, keep=path)
        return block


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock; the kernel frees it when its holder dies. Without locks, go on."""
    handle = None
    with contextlib.suppress(OSError):
        handle = path.open("ab")
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            handle.close()


def _store(path: Path, block: Block) -> None:
    chunks, summary = block
    index = {
        "summary": summary.to_json(),
        "chunks": [[str(chunk.id), chunk.nbytes] for chunk in chunks],
    }
    text = json.dumps(index).encode()
    head = _FIXED.pack(MAGIC, VERSION, len(text), sum(chunk.nbytes for chunk in chunks)) + text
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(head.ljust(_bodies_start(len(text)), b"\0"))
            for chunk in chunks:
                out.write(chunk.body)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _load(path: Path) -> Block | None:
    """Map a cached block; None when it is not there, or damaged."""
    try:
        with path.open("rb") as source:
            view = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # absent, or empty
        return None
    if view.nbytes < _FIXED.size:
        return None
    magic, version, n_text, n_bodies = _FIXED.unpack_from(view)
    start = _bodies_start(n_text)
    if magic != MAGIC or version != VERSION or view.nbytes != start + n_bodies:
        return None
    try:
        index = json.loads(bytes(view[_FIXED.size : _FIXED.size + n_text]))
        chunks = _map_chunks(view[start:], index["chunks"])
        return chunks, BlockSummary.from_json(index["summary"])
    except (DataError, ValueError, KeyError, TypeError):
        return None


def _map_chunks(view: memoryview, entries: Sequence[tuple[str, int]]) -> list[Chunk]:
    chunks, start = [], 0
    for text, nbytes in entries:
        body = view[start : start + nbytes]
        chunks.append(Chunk.from_body(chunk_id(text), body, verify=True))
        start += nbytes
    return chunks


def _bodies_start(n_text: int) -> int:
    return -(-(_FIXED.size + n_text) // 64) * 64


def _evict(folder: Path, keep: Path) -> None:
    """Remove the oldest blocks until the rest fit; who has one mapped keeps it."""
    entries = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            entries.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= CACHE_BYTES_MAX:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            total -= size
