"""A block of chunks in one file that can be mapped: the cache's, and converted data's.

The file holds an index in JSON, then the chunk bodies on multiples of 64, as they are or
compressed. It is written whole and then renamed. The index is checked when the file is mapped, a
body by its checksum before anything of it but labels and weights is looked at.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elasticml.data.away import away_of
from elasticml.data.chunk import Chunk
from elasticml.data.facts import BlockSummary
from elasticml.data.open_files import allow_open_files
from elasticml.errors import DataError
from elasticml.terms import chunk_id

MAGIC: Final = b"emlcache"
VERSION: Final = 3
#: Ends of the names of files, and of those that are being written.
SUFFIX: Final = ".chunks"
PART: Final = ".part"
#: Magic, version, bytes of the index, bytes of the bodies, digest of the index.
_FIXED: Final = struct.Struct("<8sIIQ8s")

Block = tuple[list[Chunk], BlockSummary]


def write_block(path: Path, block: Block, level: int | None = None) -> int:
    """Write a block under another name, then rename it; return the bytes that its bodies take.

    Parameters
    ----------
    level : int, optional
        How bodies are compressed, see :func:`elasticml.data.packed.pack`; None: not at all.

    Raises
    ------
    OSError
        When it cannot be written; nothing of it is left.
    """
    chunks, summary = block
    # Compiled code is loaded where bodies are: what only begins a container does without.
    from elasticml.data.checksums import checksum
    from elasticml.data.packed import pack

    bodies = [chunk.body if level is None else pack(chunk.body, level) for chunk in chunks]
    sizes = [len(body) for body in bodies]
    index = {
        "summary": summary.to_json(),
        "chunks": [
            [str(chunk.id), size, f"{checksum(chunk.body):016x}"]
            for chunk, size in zip(chunks, sizes, strict=True)
        ],
    }
    text = json.dumps(index).encode()
    n_bodies = sum(sizes)
    head = _FIXED.pack(MAGIC, VERSION, len(text), n_bodies, _digest(text)) + text
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=PART)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(head.ljust(_bodies_start(len(text)), b"\0"))
            for body in bodies:
                out.write(body)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return n_bodies


def map_block(path: Path) -> Block:
    """Map a block; its chunks' bodies are in the file, and come when they are looked at.

    Raises
    ------
    OSError
        When there is no such file, or it cannot be read.
    DataError
        When its index is damaged. Of a body that is, its chunk says so.
    """
    allow_open_files()  # a mapping holds one as long as anybody has a chunk of the block
    with path.open("rb") as source:
        if os.fstat(source.fileno()).st_size < _FIXED.size:
            raise _damaged(path, "it is cut short")
        memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(memory)
    magic, version, n_text, n_bodies, digest = _FIXED.unpack_from(view)
    start, text = _bodies_start(n_text), bytes(view[_FIXED.size : _FIXED.size + n_text])
    if magic != MAGIC or version != VERSION:
        raise _damaged(path, "it is no block of chunks of this version")
    if view.nbytes != start + n_bodies or _digest(text) != digest:
        raise _damaged(path, "it is cut short, or its index has changed")
    try:
        index = json.loads(text)
        # Headers are here and there: nothing of what is around them is read along.
        memory.madvise(mmap.MADV_RANDOM)
        chunks = _map_chunks(view[start:], index["chunks"], str(path))
        memory.madvise(mmap.MADV_NORMAL)
        return chunks, BlockSummary.from_json(index["summary"])
    except DataError as error:
        raise _damaged(path, error.message.partition(";")[0]) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its index cannot be read: {error!r}") from None


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged: {why}; remove it and make it again", path=str(path))


def _map_chunks(
    view: memoryview, entries: Sequence[tuple[str, int, str]], place: str
) -> list[Chunk]:
    chunks, start = [], 0
    for text, nbytes, digits in entries:
        away = away_of(view[start : start + nbytes], text, place, int(digits, 16))
        chunk = Chunk.of_away(chunk_id(text), away)
        chunk.is_mapped = True
        chunks.append(chunk)
        start += nbytes
    return chunks


def _bodies_start(n_text: int) -> int:
    return -(-(_FIXED.size + n_text) // 64) * 64


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest()
