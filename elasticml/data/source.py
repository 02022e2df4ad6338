"""Data sources: the reader protocol, the registry of formats, and reading blocks and chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary as BlockSummary
from elasticml.data.dataset_stats import DatasetStats as DatasetStats
from elasticml.data.dataset_stats import merge_summaries as merge_summaries
from elasticml.data.dataset_stats import summarise as summarise
from elasticml.data.storage.block_files import Block, cached, pin
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from elasticml.specification.settings_model import unknown_choice
from elasticml.specification.user_objects import imported, load_object
from elasticml.user_cache import CacheSetting, cache_bytes_max, is_off

#: Size of a text reader's byte ranges, and of a block of in-memory rows.
BLOCK_BYTES: Final = 8 * 2**20
CHUNK_BYTES_MAX: Final = 2**20
CHUNK_BYTES_MIN: Final = 16 * 2**10
CHUNKS_PER_MEMBER: Final = 64

#: The classes of the formats that a job file can name. Imported when needed.
_FORMATS: Final[dict[str, str]] = {
    "chunks": "elasticml.data.readers.chunk_folder:ChunkFolder",
    "csv": "elasticml.data.readers.tabular:CsvSource",
    "images": "elasticml.data.readers.images:ImageSource",
    "npz": "elasticml.data.readers.npz:NpzSource",
    "parquet": "elasticml.data.readers.tabular:ParquetSource",
    "svmlight": "elasticml.data.readers.svmlight:SvmlightSource",
    "synthetic_splice": "elasticml.data.synthetic.splice_sites:SpliceSource",
}
FILE_FORMATS: Final = tuple(_FORMATS)
#: The key of a spec in which the listing of its files travels.
FILES: Final = "files"
#: The format of data of which only the costs are known, see :mod:`elasticml.sim`.
COSTS: Final = "costs"
#: What builds data without a file from their spec: classes, or functions. ``scored`` is in a spec
#: beside another source's format.
_BUILDERS: Final[dict[str, str]] = {
    "arrays": "elasticml.data.readers.arrays:ArraySource",
    "dask": "elasticml.data.readers.dask_partitions:DaskArraySource",
    "dask_table": "elasticml.data.readers.dask_collections:DaskTableSource",
    "frame": "elasticml.data.readers.frames:FrameSource",
    COSTS: "elasticml.sim.cost_only_job:source_of",
    "scored": "elasticml.data.scored_rows:scored_source_of",
}


#: What says which rows of a block are held out: from their number, a mask of bool, (n_rows,).
HeldOut = Callable[[int], NDArray[np.bool_]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """A part of a source that one member reads at once; what is known before it is read."""

    index: int
    #: Estimated bytes in memory.
    nbytes: int
    rows: int | None = None
    #: Columns of dense rows in the data, including columns that are dropped for a model.
    columns: int | None = None


class Source(Protocol):
    """Data in blocks that can be listed without reading them, and read one by one on any member."""

    @property
    def needs_survey(self) -> bool:
        """Whether all blocks must be surveyed, and the statistics passed back, before reading."""

    @property
    def is_costly(self) -> bool:
        """Whether a block is so slow to read again that its chunks are worth caching."""

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict with a ``format``, from which the source can be rebuilt."""

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the data or the reading options."""

    def blocks(self) -> Sequence[BlockInfo]:
        """Return the blocks, without reading them.

        Raises
        ------
        ConfigError, DataError
            When a file is missing or empty.
        """

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block into chunks of at most ``chunk_bytes``, but at least one row.

        The same arguments give the same chunks, byte for byte, on any member.
        If ``chunk_bytes`` is None, :func:`chunk_size` determines it.

        Raises
        ------
        DataError
            When the data are invalid; names file, line and column if they are known.
        """

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Return the statistics of one block; all blocks' are needed before any is read.

        Rows that are held out have no part in an encoding.
        """

    def with_stats(self, facts: DatasetStats) -> Source:
        """Return a source with the statistics of a survey, or of the training data (test data).

        A survey of a table may find that it needs another one: of columns that hold words.
        """

    def with_columns(self, n_columns: int) -> Source:
        """Return a source with ``n_columns`` columns; values beyond are dropped and counted."""


def source_from_spec(spec: Mapping[str, Any], path: str = "data") -> Source:
    """Build a source from its spec; nothing is read. It lists its files once, at first use.

    Messages name the setting after ``path``, the spec's place in a job file.

    Raises
    ------
    ConfigError
        When the format or a key is unknown, or a setting is out of range.
    """
    name = "scored" if spec.get("scored") is not None else spec.get("format")
    if name in _BUILDERS:
        builder = load_object(_BUILDERS[name])
        built: Source = getattr(builder, "of_spec", builder)(spec)
        return built
    kind = format_named(name, path)
    return listed_once(kind.of_spec(spec, path))


def how_to_give_again(format: object) -> str:
    """Return the call that gives data again that only the client has; "" for other formats."""
    builder = _BUILDERS.get(format) if isinstance(format, str) else None
    return getattr(load_object(builder), "given_again", "") if builder else ""


def unlisted(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec without the listings of its files, and of those of the rows beside them."""
    kept = {key: value for key, value in spec.items() if key != FILES}
    if kept.get("scored") is not None:
        kept["scored"] = {
            key: unlisted(part) if isinstance(part, Mapping) else part
            for key, part in kept["scored"].items()
        }
    return kept


def format_named(name: object, path: str = "data") -> Any:
    """Return the class of a format: a name in job files, or the import path of a user's class.

    Raises
    ------
    ConfigError
        When there is none; ``path`` is the section with the name.
    """
    if isinstance(name, str) and name in FILE_FORMATS:
        return load_object(_FORMATS[name])
    if not isinstance(name, str) or ":" not in name:
        raise unknown_choice(name, FILE_FORMATS, f"{path}.format")
    kind = imported(f"{path}.format", name)
    if not callable(getattr(kind, "of_spec", None)):
        raise ConfigError(
            f"{path}.format: {name} is no format, wanted a subclass of "
            "elasticml.data.formats.FileFormat"
        )
    return kind


def listed_once(source: Source) -> Source:
    """Return a source that lists its files once: to read n files it does not list n files n times.

    It is for one job. Another source of the same path finds the files as they are then.
    """
    once = getattr(source, "listed_once", None)
    listed: Source = source if once is None else once()
    return listed


def drawn_blocks(rows: int, block_rows: int, row_bytes: float) -> list[BlockInfo]:
    """Return blocks of ``block_rows`` generated rows; the last may be shorter."""
    sizes = [min(block_rows, rows - start) for start in range(0, rows, block_rows)]
    return [BlockInfo(index=i, nbytes=int(n * row_bytes), rows=n) for i, n in enumerate(sizes)]


def chunk_size(total_bytes: int, n_members: int) -> int:
    """Return the chunk size: ``min(1 MiB, total / (64 * n_members))``, at least 16 KiB."""
    share = total_bytes // (CHUNKS_PER_MEMBER * max(1, n_members))
    return max(CHUNK_BYTES_MIN, min(CHUNK_BYTES_MAX, share))


def resolve_chunk_bytes(source: Source, chunk_bytes: int | None, n_members: int) -> int:
    """Return ``chunk_bytes``, or by default the :func:`chunk_size` of this source."""
    if chunk_bytes is not None:
        return chunk_bytes
    return chunk_size(sum(block.nbytes for block in source.blocks()), n_members)


def survey_all(source: Source) -> Source:
    """Survey all blocks in this process if the source needs it; return the source to read."""
    source = listed_once(source)
    while source.needs_survey:
        summaries = [source.survey(block.index) for block in source.blocks()]
        source = source.with_stats(merge_summaries(summaries))
    return source


def load_all(source: Source) -> list[Chunk]:
    """Read a whole source in this process, for evaluators and tests.

    Raises
    ------
    ConfigError, DataError
        As the source's own methods.
    """
    ready = survey_all(source)
    chunk_bytes = resolve_chunk_bytes(ready, None, 1)
    return [
        chunk for block in ready.blocks() for chunk in ready.read(block.index, chunk_bytes, 1)[0]
    ]


def read_block(
    source: Source,
    block: int,
    chunk_bytes: int | None,
    n_members: int,
    cache: CacheSetting = None,
) -> tuple[list[Chunk], BlockSummary]:
    """Read a block as ``source.read`` does, through the cache if reading again is costly.

    A source that is larger than the cache bypasses it: each block would evict another one.

    Parameters
    ----------
    cache : path, bool or None
        Location of the cache; False for none; by default ``$ELASTICML_CACHE`` (``off`` for none),
        else ``~/.cache/elasticml``.

    Raises
    ------
    ConfigError, DataError
        As ``source.read``; an unusable cache is not an error.
    """
    if not source.is_costly or is_off(cache):
        return source.read(block, chunk_bytes, n_members)
    infos = source.blocks()
    total = sum(info.nbytes for info in infos)
    size = chunk_size(total, n_members) if chunk_bytes is None else chunk_bytes
    if total > cache_bytes_max():
        return source.read(block, size, n_members)
    name = source.fingerprint()
    block_bytes = next((info.nbytes for info in infos if info.index == block), total)

    def is_kept(parsed: Block) -> bool:
        # Parsed text may be several times as large. Extrapolate from this block to all:
        # parsed / block_bytes * total <= limit.
        scaled = sum(chunk.nbytes for chunk in parsed[0]) * total
        return scaled <= cache_bytes_max() * block_bytes and source.fingerprint() == name

    return cached(
        f"{_cache_name(source, name)}-{block}-{size}",
        lambda: source.read(block, size, n_members),
        cache,
        is_kept,
    )


def pin_blocks(source: Source, job: str, cache: CacheSetting = None) -> None:
    """Keep the source's blocks in the cache until ``unpin(job)``, if they are cached at all."""
    if source.is_costly:
        pin(source.fingerprint(), job, cache)


def _cache_name(source: Source, fingerprint: str) -> str:
    """Return a cache key that includes ``n_columns``.

    Fingerprints may not include it, so that chunks keep their ids. But a source checks the width
    when it reads, and a cached block is not read: it must not pass for another width.
    """
    columns = source.spec().get("n_columns")
    return fingerprint if columns is None else f"{fingerprint}-{columns}"


def read_again(
    source: Source,
    ids: Sequence[ChunkId],
    chunk_bytes: int | None,
    n_members: int,
    cache: CacheSetting = None,
) -> list[Chunk]:
    """Read individual chunks again, in the order of ``ids``.

    Parameters
    ----------
    chunk_bytes, n_members
        As when the chunks were first read: they determine the chunks' boundaries.
    cache : path, bool or None
        As in :func:`read_block`.

    Raises
    ------
    DataError
        When the source has changed since, or holds no such chunk.
    """
    current = source.fingerprint()
    for id in ids:
        if id.source != current:
            raise DataError(
                f"the data have changed since chunk {id} was read: fingerprint is now {current}; "
                "start a new job, or put the old file back"
            )
    by_id: dict[ChunkId, Chunk] = {}
    for block in sorted({id.block for id in ids}):
        chunks, _ = read_block(source, block, chunk_bytes, n_members, cache)
        by_id.update({chunk.id: chunk for chunk in chunks})
    for id in ids:
        if id not in by_id:
            raise DataError(f"the source has no chunk {id} at this chunk size")
    return [by_id[id] for id in ids]


_COMPRESSED: Final = (".gz", ".bz2", ".xz")
#: File that describes a folder of chunks; it is written last.
CHUNKS_MANIFEST: Final = "chunks.json"


def has_suffix(name: str, suffixes: Sequence[str]) -> bool:
    """Whether a file name or URL has one of the suffixes, before those of compression."""
    for end in _COMPRESSED:
        name = name.removesuffix(end)
    return os.path.splitext(name.rstrip("/"))[1].lower() in suffixes


def known_suffixes() -> dict[str, str]:
    """Return the name of the format of each known suffix of a file."""
    return {end: name for name in _FORMATS for end in format_named(name).suffixes}


def infer_format(name: str) -> str | None:
    """Return the format that a name implies: by its suffix, or for a local folder by its files.

    None if it implies none, or the files of a folder have different formats.
    """
    by_suffix = known_suffixes()

    def format_of(file: str) -> str | None:
        return next((by_suffix[end] for end in by_suffix if has_suffix(file, (end,))), None)

    format = format_of(name)
    if format is not None or "://" in name or not os.path.isdir(name):
        return format
    files = [file for file in os.listdir(name) if file[0] not in "_."]
    if CHUNKS_MANIFEST in files:
        return "chunks"
    formats = {format_of(file) for file in files} - {None}
    return formats.pop() if len(formats) == 1 else None
