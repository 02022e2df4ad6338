"""Training data with validation rows: chunks that members score and never train on.

Data by columns have validation examples, which are columns of their chunks: each chunk of features
has a twin with the same features of the held-out examples.

The rows are a share of the training rows or another source. Their chunks are owned, moved, copied
and read again as all chunks are; their ids tell them apart, see
:func:`elasticml.ids.is_validation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import I64
from elasticml.data.chunks.body import Layout
from elasticml.data.chunks.by_columns import is_by_columns
from elasticml.data.chunks.chunk import (
    Chunk,
    binary_csr_chunk,
    csr_chunk,
    dense_chunk,
    sequence_chunk,
)
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, summarise
from elasticml.data.readers.arrays import ChunkBodies
from elasticml.data.readers.dask_partitions import PartitionGraph, has_partitions
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import (
    BlockInfo,
    Source,
    listed_once,
    resolve_chunk_bytes,
    source_from_spec,
)
from elasticml.errors import ConfigError, DataError
from elasticml.ids import VALIDATION_ORDINAL, ChunkId

#: Spawn key of the random numbers that choose the held-out rows.
_HELD_OUT: Final = 4


def held_out_rows(seed: int, block: int, n_rows: int, share: float) -> NDArray[np.bool_]:
    """Return a mask of a block's held-out rows, (n_rows,), bool.

    It depends on the seed and the row's index in the block only: not on chunks or members.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_HELD_OUT, block)))
    return rng.random(n_rows) < share


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedSource:
    """Training data, and validation rows: a share of its rows, or the rows of another source."""

    train: Source
    #: Share of the training rows that is held out, in (0, 1).
    share: float | None = None
    seed: int = 0
    #: The source of the validation rows; its blocks follow those of the training data.
    validation: Source | None = None

    @property
    def needs_survey(self) -> bool:
        """Whether the training data need a survey.

        It reads all rows of a block, those of a held-out share too; not another validation source.
        """
        return self.train.needs_survey

    @property
    def is_costly(self) -> bool:
        """Whether blocks are worth caching."""
        return self.train.is_costly

    @property
    def is_in_memory(self) -> bool:
        """Whether the chunks must be sent with the job."""
        return bool(getattr(self.train, "is_in_memory", False))

    @property
    def has_partitions(self) -> bool:
        """Whether the blocks are partitions of Dask collections."""
        return has_partitions(self.train)

    @property
    def rows(self) -> Any:
        """The training rows of arrays in memory; None in a placeholder."""
        return getattr(self.train, "rows", None)

    def listed_once(self) -> ValidatedSource:
        """Return a source that lists the files of both sources once."""
        validation = None if self.validation is None else listed_once(self.validation)
        return replace(self, train=listed_once(self.train), validation=validation)

    def spec(self) -> dict[str, Any]:
        """Return the spec of the training data with an entry ``validated``."""
        if self.validation is None:
            part: dict[str, Any] = {"share": self.share, "seed": self.seed}
        else:
            part = {"data": self.validation.spec()}
        return {**self.train.spec(), "validated": part}

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with either source, the share or the seed."""
        other = None if self.validation is None else self.validation.fingerprint()
        parts = {"train": self.train.fingerprint(), "validation": other}
        return fingerprint({**parts, "share": self.share, "seed": self.seed})

    def blocks(self) -> list[BlockInfo]:
        """Return the blocks of the training data, then those of the validation data."""
        blocks = self.train.blocks()
        if self.validation is None:
            return blocks
        more = self.validation.blocks()
        return blocks + [replace(info, index=len(blocks) + info.index) for info in more]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        size, name = resolve_chunk_bytes(self, chunk_bytes, n_members), self.fingerprint()
        if self.validation is None:
            chunks, summary = self.train.read(block, size, n_members)
            return self._held_out(chunks, summary, name)
        n_before = len(self.train.blocks())
        if block < n_before:
            return self._trained(*self.train.read(block, size, n_members), name)
        validation = _encoded_as(self.validation, self.train)
        return self._validated(block, *validation.read(block - n_before, size, n_members), name)

    def chunks_of(
        self, block: int, parts: Sequence[Any], chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Make the chunks of a partition of a Dask collection, where it is."""
        size, name = resolve_chunk_bytes(self, chunk_bytes, n_members), self.fingerprint()
        train, n_before = self.train, len(self.train.blocks())
        assert has_partitions(train)
        if self.validation is None:
            chunks, summary = train.chunks_of(block, parts, size, n_members)
            return self._held_out(chunks, summary, name)
        if block < n_before:
            return self._trained(*train.chunks_of(block, parts, size, n_members), name)
        validation = _encoded_as(self.validation, self.train)
        assert has_partitions(validation)
        made = validation.chunks_of(block - n_before, parts, size, n_members)
        return self._validated(block, *made, name)

    def _trained(
        self, chunks: list[Chunk], summary: BlockSummary, name: str
    ) -> tuple[list[Chunk], BlockSummary]:
        for chunk in chunks:
            chunk.id = ChunkId(name, summary.block, chunk.id.ordinal)
        return chunks, summary

    def _validated(
        self, block: int, chunks: list[Chunk], summary: BlockSummary, name: str
    ) -> tuple[list[Chunk], BlockSummary]:
        for chunk in chunks:
            chunk.id = ChunkId(name, block, VALIDATION_ORDINAL + chunk.id.ordinal)
        rows = summary.rows
        if is_by_columns(self.train.spec()):  # all blocks have the same examples
            rows = summary.n_columns if block == len(self.train.blocks()) else 0
        return chunks, _without_training_rows(block, summary, rows)

    def _held_out(
        self, chunks: list[Chunk], summary: BlockSummary, name: str
    ) -> tuple[list[Chunk], BlockSummary]:
        """Cut each chunk into its training examples and its held-out examples."""
        assert self.share is not None
        if is_by_columns(self.train.spec()):
            return self._held_out_columns(chunks, summary, name)
        block = summary.block
        held = held_out_rows(self.seed, block, summary.rows, self.share)
        trained: list[Chunk] = []
        validation: list[Chunk] = []
        at = 0
        for chunk in chunks:
            mask = held[at : at + chunk.n_rows]
            at += chunk.n_rows
            for into, rows, first in (
                (trained, np.flatnonzero(~mask), 0),
                (validation, np.flatnonzero(mask), VALIDATION_ORDINAL),
            ):
                if rows.size:
                    id = ChunkId(name, block, first + chunk.id.ordinal)
                    into.append(_take_rows(chunk, rows, id))
        base = summarise(block, trained, summary.layout)
        cut = trained + validation
        return cut, replace(
            summary,
            rows=base.rows,
            labels=base.labels,
            continuous=summary.continuous or base.continuous,
            weight_sum=base.weight_sum,
            n_chunks=len(cut),
            nbytes=sum(chunk.nbytes for chunk in cut),
            validation_rows=summary.rows - base.rows,
        )

    def _held_out_columns(
        self, chunks: list[Chunk], summary: BlockSummary, name: str
    ) -> tuple[list[Chunk], BlockSummary]:
        """Cut each chunk of features, which has a column for each example."""
        assert self.share is not None
        block, n = summary.block, summary.n_columns
        held = held_out_rows(self.seed, 0, n, self.share)  # the same examples in all blocks
        n_held = int(np.count_nonzero(held))
        if n_held == n:
            raise DataError(
                f"validate.share is {self.share:g} and holds out all {n} examples, wanted one that "
                "leaves some to train on"
            )
        cut = [
            _take_columns(chunk, mask, ChunkId(name, block, first + chunk.id.ordinal))
            for mask, first in ((~held, 0), (held, VALIDATION_ORDINAL))
            for chunk in chunks
            if mask.any()
        ]
        return cut, replace(
            summary,
            n_columns=n - n_held,
            layout=replace(summary.layout, n_columns=n - n_held),
            n_chunks=len(cut),
            nbytes=sum(chunk.nbytes for chunk in cut),
            validation_rows=n_held if block == 0 else 0,
        )

    def chunk_bodies(self, chunk_bytes: int | None, n_members: int) -> ChunkBodies:
        """Read all blocks of data in memory, to be sent with a job."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        parts = [self.read(block.index, size, n_members) for block in self.blocks()]
        chunks = [chunk for part, _ in parts for chunk in part]
        return ChunkBodies(
            ids=tuple(str(chunk.id) for chunk in chunks),
            bodies=tuple(chunk.body for chunk in chunks),
            summaries=tuple(summary for _, summary in parts),
        )

    def survey(self, block: int) -> BlockSummary:
        """Survey a block of the training data; one of the validation data has nothing to say."""
        if self.validation is None or block < len(self.train.blocks()):
            return self.train.survey(block)
        return _nothing(block)

    def survey_of(self, block: int, parts: Sequence[Any]) -> BlockSummary:
        """Survey a partition of the training data, where it is."""
        train = self.train
        assert has_partitions(train)
        if self.validation is None or block < len(self.train.blocks()):
            return train.survey_of(block, parts)
        return _nothing(block)

    def partition_graph(self) -> PartitionGraph:
        """Return the tasks that make the partitions of both parts; in the client only.

        Raises
        ------
        ConfigError
            When a part was rebuilt from its spec, which does not contain them.
        """
        parts = (self.train, self.validation)
        graphs = [part.partition_graph() for part in parts if has_partitions(part)]
        return PartitionGraph(
            tasks={key: task for graph in graphs for key, task in graph.tasks.items()},
            inputs=tuple(keys for graph in graphs for keys in graph.inputs),
        )

    def with_stats(self, facts: DatasetStats) -> ValidatedSource:
        """Return a source whose two parts have the statistics of the training data."""
        other = self.validation
        if other is not None and not _is_table(other):
            other = other.with_stats(facts)
        return replace(self, train=self.train.with_stats(facts), validation=other)

    def with_columns(self, n_columns: int) -> ValidatedSource:
        """Return a source whose two parts have ``n_columns`` columns."""
        other = None if self.validation is None else self.validation.with_columns(n_columns)
        return replace(self, train=self.train.with_columns(n_columns), validation=other)


def validated_source_of(spec: Mapping[str, Any]) -> ValidatedSource:
    """Build the source of a spec with an entry ``validated``."""
    rest = {name: value for name, value in spec.items() if name != "validated"}
    part = spec["validated"]
    data = part.get("data")
    return ValidatedSource(
        train=source_from_spec(rest),
        share=part.get("share"),
        seed=int(part.get("seed") or 0),
        validation=None if data is None else source_from_spec(data),
    )


def with_validation(
    train: Source, *, share: float | None, seed: int, validation: Source | None
) -> ValidatedSource:
    """Return training data with validation rows.

    Raises
    ------
    ConfigError
        When the two sources cannot be read by the same members.
    """
    if validation is not None:
        _check_partitions(train, validation)
        _check_columns(train.spec(), validation.spec())
        if getattr(validation, "is_in_memory", False) and not getattr(train, "is_in_memory", False):
            raise ConfigError(
                "validate.data: arrays in memory cannot validate data that members read from "
                "files; write them to a file, or set validate.share",
                path="validate.data",
            )
        if validation.needs_survey and not _is_table(train):
            raise ConfigError(
                f"validate.data: format {validation.spec().get('format')} needs the encoder of a "
                f"table, and data have format {train.spec().get('format')}; give both in one "
                "format",
                path="validate.data",
            )
    return ValidatedSource(train=train, share=share, seed=seed, validation=validation)


def validated_as(data: Source, spec: Mapping[str, Any]) -> Source:
    """Return training data that were given again, with the validation rows of their first spec."""
    part = spec.get("validated")
    if part is None:
        return data
    other, seed = part.get("data"), int(part.get("seed") or 0)
    validation = None if other is None else source_from_spec(other)
    return with_validation(data, share=part.get("share"), seed=seed, validation=validation)


def _check_partitions(train: Source, validation: Source) -> None:
    """Check that both or none of the two sources are Dask collections, and of the same kind."""
    if has_partitions(train) != has_partitions(validation):
        here, there = (
            ("training", "validation")
            if has_partitions(train)
            else (
                "validation",
                "training",
            )
        )
        raise ConfigError(
            f"validate.data: the {here} data are Dask collections and the {there} data are not; "
            "give both as em.from_dask(...), or set validate.share",
            path="validate.data",
        )
    formats = [source.spec()["format"] for source in (train, validation)]
    if has_partitions(train) and formats[0] != formats[1]:
        kinds = ["arrays" if name == "dask" else "a table" for name in formats]
        raise ConfigError(
            f"validate.data: the validation data are {kinds[1]}, wanted {kinds[0]} as the training "
            "data",
            path="validate.data",
        )


def _check_columns(train: Mapping[str, Any], validation: Mapping[str, Any]) -> None:
    """Check that both or none of the two sources are by columns, with as many rows of X.T."""
    are_columns = is_by_columns(train), is_by_columns(validation)
    if are_columns == (False, False):
        return
    if are_columns != (True, True):
        by = ["columns" if is_columns else "rows" for is_columns in are_columns]
        raise ConfigError(
            f"validate.data: the validation data are by {by[1]}, the training data by {by[0]}; "
            f"give both by {by[0]}, or set validate.share",
            path="validate.data",
        )
    if train["rows"] != validation["rows"]:
        raise ConfigError(
            f"validate.data: the validation data have {validation['rows']} rows of features, "
            f"targets and weights, the training data {train['rows']}; give both the same features, "
            "and weights to both or to none",
            path="validate.data",
        )


def _is_table(source: Source) -> bool:
    return hasattr(source, "fitted_encoder")


def _encoded_as(validation: Source, train: Source) -> Source:
    """Return a table with the encoding of the training table: columns are known by their names."""
    if not _is_table(validation) or not _is_table(train):
        return validation
    table, training = cast(Any, validation), cast(Any, train)
    encoded: Source = replace(table, encoder=training.fitted_encoder())
    return encoded


def _nothing(block: int) -> BlockSummary:
    """Return the survey of a block that has no part in the encoding."""
    empty = Layout(kind="dense", n_columns=0)
    return BlockSummary(block=block, rows=0, n_columns=0, layout=empty)


def _without_training_rows(block: int, summary: BlockSummary, rows: int) -> BlockSummary:
    """Return the summary of a block with ``rows`` validation rows and no training row."""
    return BlockSummary(
        block=block,
        rows=0,
        n_columns=0,
        layout=summary.layout,
        n_chunks=summary.n_chunks,
        nbytes=summary.nbytes,
        counts={f"validation data: {text}": n for text, n in summary.counts.items()},
        validation_rows=rows,
    )


def _take_columns(chunk: Chunk, mask: NDArray[np.bool_], id: ChunkId) -> Chunk:
    """Return a new chunk with some columns of a chunk, (n_columns,) of bool."""
    labels, weights, layout = chunk.labels.copy(), chunk.weights, chunk.layout
    if layout.kind == "dense":
        return dense_chunk(id, labels, chunk.values[:, mask], weights, dtype=layout.dtype)
    is_kept = mask[chunk.indices]
    indptr = np.append(0, np.cumsum(is_kept))[chunk.indptr]
    indices = (np.cumsum(mask) - 1)[chunk.indices[is_kept]]
    d = int(np.count_nonzero(mask))
    if layout.kind == "binary_csr":
        return binary_csr_chunk(id, labels, indptr, indices, d, weights, dtype=layout.dtype)
    values = chunk.values[is_kept]
    return csr_chunk(id, labels, indptr, indices, values, d, weights, dtype=layout.dtype)


def _take_rows(chunk: Chunk, rows: I64, id: ChunkId) -> Chunk:
    """Return a new chunk with some rows of a chunk, ascending."""
    labels, layout = chunk.labels[rows], chunk.layout
    weights = None if chunk.weights is None else chunk.weights[rows]
    if layout.kind == "sequence":
        return sequence_chunk(id, labels, chunk.codes[rows], layout, weights)
    if layout.kind == "dense":
        return dense_chunk(id, labels, chunk.values[rows], weights, dtype=layout.dtype)
    starts = chunk.indptr[rows].astype(np.int64)
    counts = chunk.indptr[rows + 1].astype(np.int64) - starts
    indptr = np.append(0, np.cumsum(counts))
    taken = np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])
    indices, d = chunk.indices[taken], layout.n_columns
    if layout.kind == "binary_csr":
        return binary_csr_chunk(id, labels, indptr, indices, d, weights, dtype=layout.dtype)
    values = chunk.values[taken]
    return csr_chunk(id, labels, indptr, indices, values, d, weights, dtype=layout.dtype)
