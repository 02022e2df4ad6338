"""A block of chunks in one file that can be mapped: the cache's, and converted data's.

The file holds an index in JSON, then the chunk bodies on multiples of 64. It is written whole and
then renamed. Index and bodies carry digests, which are checked whenever the file is mapped.
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

from elasticml.data.chunk import Chunk
from elasticml.data.facts import BlockSummary
from elasticml.data.open_files import allow_open_files
from elasticml.errors import DataError
from elasticml.terms import chunk_id

MAGIC: Final = b"emlcache"
VERSION: Final = 2
#: Ends of the names of files, and of those that are being written.
SUFFIX: Final = ".chunks"
PART: Final = ".part"
#: Magic, version, bytes of the index, bytes of the bodies, digest of the index.
_FIXED: Final = struct.Struct("<8sIIQ8s")

Block = tuple[list[Chunk], BlockSummary]


def write_block(path: Path, block: Block) -> None:
    """Write a block under another name, then rename it.

    Raises
    ------
    OSError
        When it cannot be written; nothing of it is left.
    """
    chunks, summary = block
    index = {
        "summary": summary.to_json(),
        "chunks": [[str(chunk.id), chunk.nbytes] for chunk in chunks],
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


def map_block(path: Path) -> Block:
    """Map a block; its chunks are views into the file.

    Raises
    ------
    OSError
        When there is no such file, or it cannot be read.
    DataError
        When it is damaged.
    """
    allow_open_files()  # a mapping holds one as long as anybody has a chunk of the block
    with path.open("rb") as source:
        if os.fstat(source.fileno()).st_size < _FIXED.size:
            raise _damaged(path, "it is cut short")
        view = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))
    magic, version, n_text, n_bodies, digest = _FIXED.unpack_from(view)
    start, text = _bodies_start(n_text), bytes(view[_FIXED.size : _FIXED.size + n_text])
    if magic != MAGIC or version != VERSION:
        raise _damaged(path, "it is no block of chunks of this version")
    if view.nbytes != start + n_bodies or _digest(text) != digest:
        raise _damaged(path, "it is cut short, or its index has changed")
    try:
        index = json.loads(text)
        chunks = _map_chunks(view[start:], index["chunks"])
        return chunks, BlockSummary.from_json(index["summary"])
    except DataError as error:
        raise _damaged(path, error.message.partition(";")[0]) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its index cannot be read: {error!r}") from None


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged: {why}; remove it and make it again", path=str(path))


def _map_chunks(view: memoryview, entries: Sequence[tuple[str, int]]) -> list[Chunk]:
    chunks, start = [], 0
    for text, nbytes in entries:
        body = view[start : start + nbytes]
        chunk = Chunk.from_body(chunk_id(text), body, verify=True)
        chunk.is_mapped = chunk.body.obj is body.obj  # one that is not aligned was copied
        chunks.append(chunk)
        start += nbytes
    return chunks


def _bodies_start(n_text: int) -> int:
    return -(-(_FIXED.size + n_text) // 64) * 64


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest()
