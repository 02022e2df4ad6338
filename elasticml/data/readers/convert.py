"""Convert a source to memory-mappable chunk files, so that later jobs need not parse it."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasticml.data.chunks.by_columns import is_by_columns
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import (
    BlockSummary,
    DatasetStats,
    merge_layout_kinds,
    merge_summaries,
    summarise,
)
from elasticml.data.readers.converted import VERSION, ConvertedSource
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import (
    BLOCK_BYTES,
    CHUNK_BYTES_MAX,
    CHUNKS_MANIFEST,
    Source,
    survey_all,
    unlisted,
)
from elasticml.data.storage.block_file import PART, SUFFIX, write_block
from elasticml.data.storage.filesystem import reason_of, remedy_of
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionProgress:
    """Progress of a conversion."""

    blocks_read: int
    blocks: int
    rows: int
    #: Bytes of chunk bodies.
    nbytes: int


def compute_stats(source: Source) -> DatasetStats:
    """Compute the statistics of a whole source, by reading (or mapping) every block."""
    ready = survey_all(source)
    return merge_summaries([ready.read(b.index, None, 1)[1] for b in ready.blocks()])


def convert(
    source: Source,
    place: Path,
    *,
    chunk_bytes: int = CHUNK_BYTES_MAX,
    like: DatasetStats | None = None,
    on_progress: Callable[[ConversionProgress], None] = lambda written: None,
) -> ConvertedSource:
    """Write a source's chunks to a new folder, which appears only when it is complete.

    Partial folders that killed processes have left for the same destination are removed first.

    The folder's blocks are of about 8 MiB, whatever the source's blocks are, so that members can
    share data that came from one compressed file.

    Parameters
    ----------
    place : Path
        The folder; it must not exist.
    chunk_bytes : int
        Most bytes of a chunk; a chunk holds at least one row.
    like : DatasetStats, optional
        Statistics of the training data, if the source is test data.
    on_progress : callable
        Called with the progress after each block of the source.

    Raises
    ------
    ConfigError
        When the folder exists or cannot be written, or the source is by columns.
    DataError
        When the data are invalid, or change during the conversion.

    Notes
    -----
    After an exception nothing is left on disk.
    """
    if is_by_columns(source.spec()):
        raise ConfigError(
            "the source is by columns, and converted data are by rows: leave out by='columns'",
            key="by",
        )
    place = place.expanduser().absolute()
    if os.path.lexists(place):
        raise ConfigError(
            f"{place} exists already; name another folder, or remove it", path=str(place)
        )
    before = source.fingerprint()  # "ready" lists its files once
    ready = survey_all(source) if like is None else source.with_stats(like)
    described = unlisted(ready.spec())
    spec = {key: value for key, value in described.items() if key != "path"}
    origin = ready.fingerprint()
    name = fingerprint({"of": origin, "settings": spec, "chunk_bytes": chunk_bytes})
    with _part_of(place) as part:
        writer = _Writer(part, name)
        _copy(ready, writer, place, chunk_bytes, on_progress)
        if source.fingerprint() != before:
            raise DataError("the data changed while being read; convert them again")
        with _writing(place):
            _write_manifest(part, writer, name, described, chunk_bytes)
            os.rename(part, place)
    return ConvertedSource(path=str(place))


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Turn an OSError into a ConfigError that the folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be written: {reason_of(error)}; {remedy_of(str(place), error)}",
            path=str(place),
        ) from None


@contextmanager
def _part_of(place: Path) -> Iterator[Path]:
    """Create a temporary folder, locked while this process lives, and remove it at the end.

    Sibling folders that are not locked belong to killed processes and are removed, too.
    """
    part = place.with_name(f".{place.name}.{secrets.token_hex(6)}{PART}")
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        for former in place.parent.glob(f".{glob.escape(place.name)}.*{PART}"):
            _remove_stale(former)
    descriptor = None
    try:
        with _writing(place):
            descriptor = _create_locked(part)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _create_locked(part: Path) -> int | None:
    """Create and lock a folder; retry if another process removed it as stale before the lock."""
    while True:
        part.mkdir()
        try:
            return _lock(part, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue


def _lock(folder: Path, how: int) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, None if it cannot be acquired.

    Raises
    ------
    FileNotFoundError
        When the folder no longer exists, or was replaced by another.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    is_locked = False
    try:
        fcntl.flock(descriptor, how)
        # Removing requires the lock: from here on the folder cannot change.
        is_locked = os.path.samestat(os.fstat(descriptor), os.stat(folder))
        if not is_locked:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    except FileNotFoundError:
        raise
    except OSError:  # locked by another process, or no lock support: leave the folder alone
        return None
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor


def _remove_stale(part: Path) -> None:
    """Remove an unlocked folder; a process that was about to lock it creates it again."""
    try:
        descriptor = _lock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # already gone, or not accessible
        return
    if descriptor is not None:
        shutil.rmtree(part, ignore_errors=True)
        os.close(descriptor)


def _copy(
    source: Source,
    writer: _Writer,
    place: Path,
    chunk_bytes: int,
    on_progress: Callable[[ConversionProgress], None],
) -> None:
    infos = source.blocks()
    for n_read, info in enumerate(infos, 1):
        chunks, summary = source.read(info.index, chunk_bytes, 1)
        with _writing(place):
            writer.add(chunks, summary)
            if n_read == len(infos):
                writer.finish()
        on_progress(
            ConversionProgress(
                blocks_read=n_read,
                blocks=len(infos),
                rows=writer.rows,
                nbytes=writer.nbytes,
            )
        )


class _Writer:
    """Collects chunks into blocks of about 8 MiB, and writes them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.rows = 0
        self.nbytes = 0
        #: Summaries of the source's blocks, without labels: the written blocks are counted again.
        self.summaries: list[BlockSummary] = []
        self._folder = folder
        self._name = name
        self._pending: list[Chunk] = []
        self._pending_bytes = 0

    def add(self, chunks: list[Chunk], summary: BlockSummary) -> None:
        """Add one block of the source."""
        self.summaries.append(replace(summary, labels={}, continuous=True))
        for chunk in chunks:
            if self._pending and self._pending_bytes + chunk.nbytes > BLOCK_BYTES:
                self._write()
            self._pending.append(chunk)
            self._pending_bytes += chunk.nbytes

    def finish(self) -> None:
        """Write the pending chunks; write at least one block."""
        if self._pending or not self.blocks:
            self._write()

    def _write(self) -> None:
        chunks, number = self._pending, len(self.blocks)
        for ordinal, chunk in enumerate(chunks):
            chunk.id = ChunkId(self._name, number, ordinal)
        layout = self.summaries[-1].layout
        if chunks:
            layout = replace(
                chunks[0].layout,
                kind=merge_layout_kinds([chunk.layout.kind for chunk in chunks]),
                n_columns=max(chunk.layout.n_columns for chunk in chunks),
            )
        summary = summarise(number, chunks, layout)
        file = f"{number:06d}{SUFFIX}"
        write_block(self._folder / file, (chunks, summary))
        # Temporary files are private to their writer; the data have the folder's permissions.
        (self._folder / file).chmod(self._folder.stat().st_mode & 0o666)
        entry = {"file": file, "rows": summary.rows, "nbytes": summary.nbytes}
        self.blocks.append(entry)
        self.rows += summary.rows
        self.nbytes += summary.nbytes
        self._pending, self._pending_bytes = [], 0


def _write_manifest(
    folder: Path, writer: _Writer, name: str, origin: dict[str, Any], chunk_bytes: int
) -> None:
    facts = merge_summaries(writer.summaries)
    counts: dict[str, int] = {}
    for summary in writer.summaries:
        for sentence, count in summary.counts.items():
            counts[sentence] = counts.get(sentence, 0) + count
    manifest = {
        "version": VERSION,
        "name": name,
        "origin": origin,
        "chunk_bytes": chunk_bytes,
        "counts": counts,
        "vocabularies": {word: list(some) for word, some in facts.vocabularies.items()},
        "index_base": facts.index_base,
        "encoder": facts.encoder,
        "blocks": writer.blocks,
    }
    (folder / CHUNKS_MANIFEST).write_text(json.dumps(manifest, indent=1))
