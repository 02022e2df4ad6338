"""Folders of block files, the files of the cache: written by ``elasticml convert``, then mapped."""

from __future__ import annotations

import functools
import glob
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field

from elasticml.data.chunks.by_columns import is_by_columns
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.rows import OVERHEAD_BYTES, cut, fit_columns, rows_of_chunk
from elasticml.data.dataset_stats import (
    BlockSummary,
    DatasetStats,
    merge_layout_kinds,
    merge_summaries,
    summarise,
)
from elasticml.data.formats import Format, LocalOrUrl, reader
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import (
    BLOCK_BYTES,
    CHUNK_BYTES_MAX,
    CHUNKS_MANIFEST,
    BlockInfo,
    Source,
    survey_all,
    unlisted,
)
from elasticml.data.storage.block_files import (
    PART,
    SUFFIX,
    Block,
    is_locked,
    locked,
    map_block,
    write_block,
)
from elasticml.data.storage.filesystem import failing, is_url
from elasticml.data.storage.untrusted_files import check_regular, reading, reads_untrusted_files
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId

VERSION: Final = 3


def _local(path: str) -> str:
    if is_url(path):
        raise ConfigError(
            f"data.path is {path}, wanted a folder on a disk that all members can access: chunk "
            "files are memory-mapped; copy the folder there"
        )
    return path


@reads_untrusted_files
class ChunkFolder(Format):
    """Return a source for a folder of chunk files; nothing is read yet.

    Parameters
    ----------
    path : str
        A folder written by ``elasticml convert``, on a disk that all members can access.

    Raises
    ------
    ConfigError
        When the path is a URL, or a setting is out of range.

    Examples
    --------
    >>> source = em.read_chunks("flights.chunks")  # written by elasticml convert
    """

    format = "chunks"
    reader = "read_chunks"

    path: Annotated[LocalOrUrl, AfterValidator(_local)] = Field(
        kw_only=False, description="folder written by elasticml convert"
    )

    def check(self) -> None:
        """Check constraints between fields."""
        if self.dtype != "float64":
            raise ValueError(f"dtype: got {self.dtype}, and chunks keep the type that they have")

    def fingerprint(self) -> str:
        """Return 16 hex digits over the original source, its version, and the reading options."""
        return str(self.manifest()["name"])

    def manifest(self) -> Mapping[str, Any]:
        """Return the folder's manifest.

        Raises
        ------
        ConfigError
            When the folder or its manifest is missing.
        DataError
            When it is not a manifest, or one of another version.
        """
        path = Path(self.path) / CHUNKS_MANIFEST
        try:
            status = path.stat()
        except OSError:
            raise ConfigError(
                f"{self.path} holds no chunk files ({CHUNKS_MANIFEST} is missing); check "
                "data.path, or create it with: elasticml convert SOURCE DEST"
            ) from None
        return _read_manifest(path, status.st_mtime_ns)

    def blocks(self) -> list[BlockInfo]:
        """Return one block per chunk file; raises as :meth:`manifest` does."""
        return [
            BlockInfo(index=k, nbytes=int(entry["nbytes"]), rows=int(entry["rows"]))
            for k, entry in enumerate(self.manifest()["blocks"])
        ]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Map one block; chunks keep the size of the conversion, ``chunk_bytes`` is ignored.

        Bodies are loaded and verified on access.
        """
        manifest = self.manifest()
        path = Path(self.path) / manifest["blocks"][block]["file"]
        try:
            chunks, summary = map_block(path)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror}; copy the folder again, or convert again"
            ) from None
        if any(chunk.id[:2] != (manifest["name"], block) for chunk in chunks):
            raise DataError(
                f"{path} is of another conversion than {CHUNKS_MANIFEST} beside it; convert again"
            )
        return self._narrowed(chunks, summary)

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source that reads test data with the columns of the training data.

        Raises
        ------
        DataError
            When columns have another meaning here than in the training data.
        """
        _, first = self.read(0, None, 1)
        own_words = {name: tuple(words) for name, words in first.vocabularies.items()}
        training_words = {name: tuple(words) for name, words in facts.vocabularies.items()}
        bases = {facts.index_base, first.index_base} - {None}
        if own_words != training_words or len(bases) > 1:
            what = "categories" if own_words != training_words else "a first column"
            raise DataError(
                f"{self.path} was converted with other {what} than the training data have; convert "
                "the test data with --like TRAIN, the converted training data"
            )
        return self.with_columns(facts.n_columns)

    def _narrowed(self, chunks: list[Chunk], summary: BlockSummary) -> Block:
        """Drop values beyond ``n_columns``, if there are any."""
        width = self.n_columns
        if width is None or summary.n_columns <= width or summary.layout.kind == "sequence":
            # A sequence has no columns to drop; the algorithm rejects another width.
            return chunks, summary
        narrow, counts = list[Chunk](), dict(summary.counts)
        for chunk in chunks:
            rows = fit_columns(rows_of_chunk(chunk), width, counts)
            name, block, ordinal = chunk.id
            size, dtype = chunk.nbytes + OVERHEAD_BYTES, chunk.layout.dtype
            narrow += cut(rows, name, block, size, dtype=dtype, first_ordinal=ordinal)
        return narrow, replace(
            summary,
            n_columns=width,
            layout=replace(summary.layout, n_columns=width),
            counts=counts,
            nbytes=sum(chunk.nbytes for chunk in narrow),
        )


@functools.lru_cache(maxsize=16)
def _read_manifest(path: Path, mtime_ns: int) -> Mapping[str, Any]:
    """Read a manifest, once per version of the file."""
    check_regular(str(path))
    with reading(str(path)):
        manifest: Mapping[str, Any] = json.loads(path.read_bytes())
        version = manifest["version"]
        if version == VERSION:
            str(manifest["name"])
            for block in manifest["blocks"]:
                if min(int(block["nbytes"]), int(block["rows"])) < 0:
                    raise ValueError("a block has a negative size")
                if Path(block["file"]).name != block["file"]:
                    raise ValueError("a file is not in the folder")
    if version != VERSION:
        raise DataError(
            f"{path} is of version {version}, wanted {VERSION}; convert again with this version of "
            "elasticml"
        )
    return manifest


read_chunks = reader(ChunkFolder)


def compute_stats(source: Source) -> DatasetStats:
    """Compute the statistics of a whole source, by reading (or mapping) every block."""
    return merge_summaries([source.read(b.index, None, 1)[1] for b in source.blocks()])


def convert(
    source: Source,
    place: Path,
    *,
    chunk_bytes: int = CHUNK_BYTES_MAX,
    like: DatasetStats | None = None,
    on_progress: Callable[[int, int, int, int], object] = lambda *counts: None,
) -> ChunkFolder:
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
        Called after each block of the source: with the number of blocks that were read, of all
        blocks, of written rows, and of bytes of their bodies.

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
            "the source is by columns, and converted data are by rows: leave out by='columns'"
        )
    place = place.expanduser().absolute()
    if os.path.lexists(place):
        raise ConfigError(f"{place} exists already; name another folder, or remove it")
    before = source.fingerprint()  # "ready" lists its files once
    ready = survey_all(source) if like is None else source.with_stats(like)
    origin = unlisted(ready.spec())
    settings = {key: value for key, value in origin.items() if key != "path"}
    name = fingerprint(
        {"of": ready.fingerprint(), "settings": settings, "chunk_bytes": chunk_bytes}
    )
    with _part_of(place) as part:
        writer = _Writer(part, name)
        infos = ready.blocks()
        for n_read, info in enumerate(infos, 1):
            chunks, summary = ready.read(info.index, chunk_bytes, 1)
            with failing(str(place), "written"):
                writer.add(chunks, summary)
                if n_read == len(infos):
                    writer.write()
            on_progress(n_read, len(infos), writer.rows, writer.nbytes)
        if source.fingerprint() != before:
            raise DataError("the data changed while being read; convert them again")
        merge_summaries(writer.summaries)  # raises for data that do not fit together
        manifest = {
            "version": VERSION,
            "name": name,
            "origin": origin,
            "chunk_bytes": chunk_bytes,
            "blocks": writer.blocks,
        }
        with failing(str(place), "written"):
            (part / CHUNKS_MANIFEST).write_text(json.dumps(manifest, indent=1))
            os.rename(part, place)
    return ChunkFolder(path=str(place))


@contextmanager
def _part_of(place: Path) -> Iterator[Path]:
    """Create a temporary folder, locked while this process lives, and remove it at the end.

    Sibling folders that are not locked belong to killed processes and are removed, too. One that is
    removed before its process has locked it fails there with a one-line error.
    """
    part = place.with_name(f".{place.name}.{secrets.token_hex(6)}{PART}")
    with failing(str(place), "written"):
        place.parent.mkdir(parents=True, exist_ok=True)
        for former in place.parent.glob(f".{glob.escape(place.name)}.*{PART}"):
            if not is_locked(former):
                shutil.rmtree(former, ignore_errors=True)
        part.mkdir()
    try:
        with locked(part):
            yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _Writer:
    """Collects chunks into blocks of about 8 MiB, and writes them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.rows = self.nbytes = 0
        #: Summaries of the source's blocks, without labels: the written blocks are counted again.
        self.summaries: list[BlockSummary] = []
        self._folder = folder
        self._name = name
        self._pending: list[Chunk] = []
        #: Notes of the source's blocks that are in no written block.
        self._counts = Counter[str]()

    def add(self, chunks: list[Chunk], summary: BlockSummary) -> None:
        """Add one block of the source."""
        self.summaries.append(replace(summary, labels={}, continuous=True))
        self._counts.update(summary.counts)
        pending_bytes = sum(chunk.nbytes for chunk in self._pending)
        for chunk in chunks:
            if self._pending and pending_bytes + chunk.nbytes > BLOCK_BYTES:
                self.write()
                pending_bytes = 0
            self._pending.append(chunk)
            pending_bytes += chunk.nbytes

    def write(self) -> None:
        """Write the pending chunks as a block; the last one if no further are added."""
        chunks, number, first = self._pending, len(self.blocks), self.summaries[0]
        for ordinal, chunk in enumerate(chunks):
            chunk.id = ChunkId(self._name, number, ordinal)
        layout = self.summaries[-1].layout
        if chunks:
            layout = replace(
                chunks[0].layout,
                kind=merge_layout_kinds([chunk.layout.kind for chunk in chunks]),
                n_columns=max(chunk.layout.n_columns for chunk in chunks),
            )
        summary = summarise(
            number, chunks, layout, counts=self._counts, index_base=first.index_base
        )
        if number == 0:  # where a source has its encoding, too
            summary = replace(summary, vocabularies=first.vocabularies, encoder=first.encoder)
        file = f"{number:06d}{SUFFIX}"
        write_block(self._folder / file, (chunks, summary))
        # Temporary files are private to their writer; the data have the folder's permissions.
        (self._folder / file).chmod(self._folder.stat().st_mode & 0o666)
        self.blocks.append({"file": file, "rows": summary.rows, "nbytes": summary.nbytes})
        self.rows, self.nbytes = self.rows + summary.rows, self.nbytes + summary.nbytes
        self._pending, self._counts = [], Counter()
