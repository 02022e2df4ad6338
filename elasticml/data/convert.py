"""Write a source as chunk files that can be mapped: once, so that no later job parses it again."""

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

from elasticml.data.block_file import PART, SUFFIX, write_block
from elasticml.data.by_columns import is_by_columns
from elasticml.data.chunk import Chunk
from elasticml.data.converted import MANIFEST, VERSION, ConvertedSource
from elasticml.data.facts import (
    BlockSummary,
    DataFacts,
    merge_layout_kinds,
    merge_summaries,
    summarise,
)
from elasticml.data.files import fingerprint
from elasticml.data.packed import LEVEL_MAX, LEVEL_MIN
from elasticml.data.places import reason_of, remedy_of
from elasticml.data.source import BLOCK_BYTES, CHUNK_BYTES_MAX, Source, survey_all
from elasticml.errors import ConfigError, DataError
from elasticml.terms import ChunkId


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How far a conversion is."""

    blocks_read: int
    blocks: int
    rows: int
    #: Bytes of chunk bodies, and those that they take on the disk.
    nbytes: int
    stored_bytes: int


def facts_of(source: Source) -> DataFacts:
    """Read what is true of a whole source, block by block; of a converted one, map it."""
    ready = survey_all(source)
    return merge_summaries([ready.read(b.index, None, 1)[1] for b in ready.blocks()])


def convert(
    source: Source,
    place: Path,
    *,
    chunk_bytes: int = CHUNK_BYTES_MAX,
    level: int | None = None,
    like: DataFacts | None = None,
    tell: Callable[[Written], None] = lambda written: None,
) -> ConvertedSource:
    """Write a source's chunks to a new folder, which appears when all of it is there.

    What a process that was killed has left of an attempt at the same folder is removed first.

    Blocks of the folder are of about 8 MiB whatever those of the source are, so that members can
    share data that were one compressed file.

    Parameters
    ----------
    place : Path
        The folder; it must not be there yet.
    chunk_bytes : int
        Most bytes of a chunk, or one row.
    level : int, from -7 to 19, optional
        How bodies are compressed with Zstandard: the larger, the smaller and the slower. Without
        one they are not.
    like : DataFacts, optional
        Of the training data, where the source is data to test with.
    tell : callable
        Told after each block of the source that was read.

    Raises
    ------
    ConfigError
        When the folder is there already, or cannot be written, or the source is by columns, or
        there is no such level.
    DataError
        When the data are wrong, or change meanwhile. In any case nothing is left.
    """
    if is_by_columns(source.spec()):
        raise ConfigError(
            "the source is by columns, and converted data are by rows: leave by='columns' out",
            key="by",
        )
    if level is not None and not LEVEL_MIN <= level <= LEVEL_MAX:
        raise ConfigError(
            f"level is {level}, wanted a whole number from {LEVEL_MIN} to {LEVEL_MAX}", key="level"
        )
    place = place.expanduser().absolute()
    if os.path.lexists(place):
        raise ConfigError(
            f"{place} is there already; name another folder, or remove it", path=str(place)
        )
    ready = survey_all(source) if like is None else source.with_facts(like)
    spec = {key: value for key, value in ready.spec().items() if key != "path"}
    origin = ready.fingerprint()
    name = fingerprint({"of": origin, "settings": spec, "chunk_bytes": chunk_bytes})
    with _part_of(place) as part:
        writer = _Writer(part, name, level)
        _copy(ready, writer, place, chunk_bytes, tell)
        if ready.fingerprint() != origin:
            raise DataError("the data changed while they were read; convert them again")
        with _writing(place):
            _write_manifest(part, writer, name, ready.spec(), chunk_bytes)
            os.rename(part, place)
    return ConvertedSource(path=str(place))


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Say of what fails in here that the folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be written: {reason_of(error)}; {remedy_of(str(place), error)}",
            path=str(place),
        ) from None


@contextmanager
def _part_of(place: Path) -> Iterator[Path]:
    """Make a folder to write to, locked for as long as this process lives; nothing is left of it.

    Folders beside it that nobody has locked are those of processes that were killed.
    """
    part = place.with_name(f".{place.name}.{secrets.token_hex(6)}{PART}")
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        for former in place.parent.glob(f".{glob.escape(place.name)}.*{PART}"):
            _remove_if_left(former)
    descriptor = None
    try:
        with _writing(place):
            descriptor = _made(part)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _made(part: Path) -> int | None:
    """Make and lock a folder; again where another process has taken it for one that was left."""
    while True:
        part.mkdir()
        try:
            return _locked(part, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue


def _locked(folder: Path, how: int) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, None where it cannot be had.

    Raises
    ------
    FileNotFoundError
        When there is no longer such a folder, or another one.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    is_locked = False
    try:
        fcntl.flock(descriptor, how)
        # Whoever removes it has locked it: from here on it stays as it is.
        is_locked = os.path.samestat(os.fstat(descriptor), os.stat(folder))
        if not is_locked:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    except FileNotFoundError:
        raise
    except OSError:  # another's, or a file system without locks: what is there stays
        return None
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor


def _remove_if_left(part: Path) -> None:
    """Remove a folder that nobody has locked; who was about to lock an empty one makes it anew."""
    try:
        descriptor = _locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # gone meanwhile, or not ours to look at
        return
    if descriptor is not None:
        shutil.rmtree(part, ignore_errors=True)
        os.close(descriptor)


def _copy(
    source: Source,
    writer: _Writer,
    place: Path,
    chunk_bytes: int,
    tell: Callable[[Written], None],
) -> None:
    infos = source.blocks()
    for done, info in enumerate(infos, 1):
        chunks, summary = source.read(info.index, chunk_bytes, 1)
        with _writing(place):
            writer.add(chunks, summary)
            if done == len(infos):
                writer.finish()
        tell(
            Written(
                blocks_read=done,
                blocks=len(infos),
                rows=writer.rows,
                nbytes=writer.nbytes,
                stored_bytes=writer.stored_bytes,
            )
        )


class _Writer:
    """Gathers chunks into blocks of about 8 MiB, and writes these."""

    def __init__(self, folder: Path, name: str, level: int | None) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.rows = 0
        self.nbytes = 0
        self.stored_bytes = 0
        #: What the source has said of its blocks; chunks and labels are counted anew.
        self.said: list[BlockSummary] = []
        self._folder = folder
        self._name = name
        self._level = level
        self._gathered: list[Chunk] = []
        self._gathered_bytes = 0

    def add(self, chunks: list[Chunk], summary: BlockSummary) -> None:
        """Take in what one block of the source holds."""
        self.said.append(replace(summary, labels={}, continuous=True))
        for chunk in chunks:
            if self._gathered and self._gathered_bytes + chunk.nbytes > BLOCK_BYTES:
                self._write()
            self._gathered.append(chunk)
            self._gathered_bytes += chunk.nbytes

    def finish(self) -> None:
        """Write what is left; at least one block."""
        if self._gathered or not self.blocks:
            self._write()

    def _write(self) -> None:
        chunks, number = self._gathered, len(self.blocks)
        for ordinal, chunk in enumerate(chunks):
            chunk.id = ChunkId(self._name, number, ordinal)
        layout = self.said[-1].layout
        if chunks:
            layout = replace(
                chunks[0].layout,
                kind=merge_layout_kinds([chunk.layout.kind for chunk in chunks]),
                n_columns=max(chunk.layout.n_columns for chunk in chunks),
            )
        summary = summarise(number, chunks, layout)
        file = f"{number:06d}{SUFFIX}"
        stored = write_block(self._folder / file, (chunks, summary), self._level)
        # Temporary files are their writer's alone; the data are for everybody who sees the folder.
        (self._folder / file).chmod(self._folder.stat().st_mode & 0o666)
        entry = {"file": file, "rows": summary.rows, "nbytes": summary.nbytes, "stored": stored}
        self.blocks.append(entry)
        self.rows += summary.rows
        self.nbytes += summary.nbytes
        self.stored_bytes += stored
        self._gathered, self._gathered_bytes = [], 0


def _write_manifest(
    folder: Path, writer: _Writer, name: str, origin: dict[str, Any], chunk_bytes: int
) -> None:
    facts = merge_summaries(writer.said)
    counts: dict[str, int] = {}
    for summary in writer.said:
        for sentence, count in summary.counts.items():
            counts[sentence] = counts.get(sentence, 0) + count
    # Whether bodies are compressed is no part of the name: they are the same.
    manifest = {
        "version": VERSION,
        "name": name,
        "origin": origin,
        "chunk_bytes": chunk_bytes,
        "counts": counts,
        "vocabularies": {word: list(some) for word, some in facts.vocabularies.items()},
        "index_base": facts.index_base,
        "blocks": writer.blocks,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
