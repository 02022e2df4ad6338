"""Training data with validation and test rows: chunks that members score and never train on.

Data by columns have such examples as columns of their chunks: each chunk of features has a twin
with the same features of the other examples.

Validation rows are a share of the training rows or another source; test rows are another source.
Their chunks are owned, moved, copied and read again as all chunks are; their ids tell them apart,
see :func:`elasticml.ids.role_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.body import Layout
from elasticml.data.chunks.by_columns import is_by_columns
from elasticml.data.chunks.chunk import Chunk, sequence_chunk
from elasticml.data.chunks.rows import chunk_of, matrix_of, rows_of_chunk, rows_of_matrix
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, summarise
from elasticml.data.readers.dask_partitions import PartitionGraph, has_partitions
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import (
    BlockInfo,
    HeldOut,
    Source,
    listed_once,
    resolve_chunk_bytes,
    source_from_spec,
)
from elasticml.errors import ConfigError, DataError, prefix_errors
from elasticml.ids import ROLE_ORDINALS, ChunkId, Role

#: The settings that name the rows of a role.
_SETTINGS: Final[Mapping[Role, str]] = {"validation": "validate.data", "test": "data.test"}
#: Spawn key of the random numbers that choose the held-out rows.
_HELD_OUT: Final = 4


def held_out_rows(seed: int, block: int, n_rows: int, share: float) -> NDArray[np.bool_]:
    """Return a mask of a block's held-out rows, (n_rows,), bool.

    It depends on the seed and the row's index in the block only: not on chunks or members.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_HELD_OUT, block)))
    return rng.random(n_rows) < share


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSource:
    """Training data, validation rows (a share of its rows, or another source) and test rows."""

    train: Source
    #: Share of the training rows that is held out for validation, in (0, 1).
    share: float | None = None
    seed: int = 0
    #: The sources of the other rows; their blocks follow those of the training data.
    validation: Source | None = None
    test: Source | None = None

    @property
    def needs_survey(self) -> bool:
        """Whether the training data need a survey; the other sources have no part in it."""
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

    @property
    def others(self) -> dict[Role, Source]:
        """The sources besides the training data, in the order of their blocks."""
        roles: dict[Role, Source | None] = {"validation": self.validation, "test": self.test}
        return {role: source for role, source in roles.items() if source is not None}

    def _changed(self, change: Callable[[Source], Source]) -> ScoredSource:
        others: dict[str, Any] = {role: change(source) for role, source in self.others.items()}
        return replace(self, train=change(self.train), **others)

    def listed_once(self) -> ScoredSource:
        """Return a source that lists the files of each source once."""
        return self._changed(listed_once)

    def spec(self) -> dict[str, Any]:
        """Return the spec of the training data with an entry ``scored``."""
        held = {} if self.share is None else {"share": self.share, "seed": self.seed}
        others = {role: source.spec() for role, source in self.others.items()}
        return {**self.train.spec(), "scored": {**held, **others}}

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with any source, the share or the seed."""
        parts: dict[str, Any] = {role: one.fingerprint() for role, one in self.others.items()}
        parts |= {"train": self.train.fingerprint(), "share": self.share, "seed": self.seed}
        return fingerprint(parts)

    def blocks(self) -> Sequence[BlockInfo]:
        """Return the blocks of the training data, then those of the validation and test data."""
        blocks = list(self.train.blocks())
        for role, source in self.others.items():
            first = len(blocks)
            with prefix_errors(_SETTINGS[role]):
                blocks += [replace(i, index=first + i.index) for i in source.blocks()]
        return blocks

    def _part(self, block: int) -> tuple[Role, Source, int]:
        """Return the role of a block, its source, and the number of the block before them."""
        first = len(self.train.blocks())
        if block >= first:
            for role, source in self.others.items():
                n = len(source.blocks())
                if block < first + n:
                    return role, source, first
                first += n
        return "train", self.train, 0

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        role, source, first = self._part(block)
        with prefix_errors(_SETTINGS[role]) if role in _SETTINGS else nullcontext():
            made = _encoded_as(source, self.train).read(block - first, size, n_members)
        return self._named(role, block, first, *made)

    def _named(
        self, role: Role, block: int, first: int, chunks: list[Chunk], summary: BlockSummary
    ) -> tuple[list[Chunk], BlockSummary]:
        """Name a block's chunks after this source and their role."""
        name = self.fingerprint()
        if role == "train" and self.share is not None:
            return self._held_out(chunks, summary, name)
        for chunk in chunks:
            chunk.id = ChunkId(name, block, ROLE_ORDINALS[role] + chunk.id.ordinal)
        if role == "train":
            return chunks, summary
        n, d = summary.rows, summary.n_columns
        if is_by_columns(self.train.spec()):  # all blocks have the same examples
            n, d = (d if block == first else 0), 0
        made = BlockSummary(
            block=block,
            rows=0,
            n_columns=d,
            layout=summary.layout,
            n_chunks=summary.n_chunks,
            nbytes=summary.nbytes,
            counts={f"{role} data: {text}": k for text, k in summary.counts.items()},
            scored_rows={role: n},
        )
        return chunks, made

    def _held_out(
        self, chunks: list[Chunk], summary: BlockSummary, name: str
    ) -> tuple[list[Chunk], BlockSummary]:
        """Cut each chunk into its training examples and its held-out examples."""
        assert self.share is not None
        block, by_columns = summary.block, is_by_columns(self.train.spec())
        n = summary.n_columns if by_columns else summary.rows
        # By columns all blocks have the same examples.
        held = held_out_rows(self.seed, 0 if by_columns else block, n, self.share)
        n_held, ends = int(np.count_nonzero(held)), np.cumsum([chunk.n_rows for chunk in chunks])
        if by_columns and n_held == n:
            raise DataError(
                f"validate.share is {self.share:g} and holds out all {n} examples, wanted one that "
                "leaves some to train on"
            )
        masks: dict[Role, NDArray[np.bool_]] = {"train": ~held, "validation": held}
        parts: dict[Role, list[Chunk]] = {role: [] for role in masks}
        for role, chosen in masks.items():
            own = [chosen] * len(chunks) if by_columns else np.split(chosen, ends[:-1])
            # Of a block without rows there is no chunk, and one empty part of the mask.
            for chunk, mask in zip(chunks, own, strict=False):
                if mask.any():
                    id = ChunkId(name, block, ROLE_ORDINALS[role] + chunk.id.ordinal)
                    parts[role].append(_taken(chunk, mask, id, by_columns))
        width = n - n_held if by_columns else summary.n_columns
        base = summarise(block, parts["train"], replace(summary.layout, n_columns=width))
        cut = [*parts["train"], *parts["validation"]]
        return cut, replace(
            summary,
            rows=base.rows,
            n_columns=width,
            layout=base.layout,
            labels=base.labels,
            continuous=summary.continuous or base.continuous,
            weight_sum=base.weight_sum,
            n_chunks=len(cut),
            nbytes=sum(chunk.nbytes for chunk in cut),
            scored_rows={} if by_columns and block else {"validation": n_held},
        )

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Survey the training rows of a block; one of the others has nothing to say."""
        share = self.share
        if self._part(block)[0] != "train":
            empty = Layout(kind="dense", n_columns=0)
            return BlockSummary(block=block, rows=0, n_columns=0, layout=empty)
        if share is not None:
            held = partial(held_out_rows, self.seed, block, share=share)
        return self.train.survey(block, held)

    def with_parts(self, parts: Sequence[Any]) -> ScoredSource:
        """Return the source where a partition of a Dask collection is."""
        return self._changed(lambda one: cast(Any, one).with_parts(parts))

    def partition_graph(self) -> PartitionGraph:
        """Return the tasks that make the partitions of all parts; in the client only.

        Raises
        ------
        ConfigError
            When a part was rebuilt from its spec, which does not contain them.
        """
        parts = (self.train, *self.others.values())
        graphs = [part.partition_graph() for part in parts if has_partitions(part)]
        return PartitionGraph(
            tasks={key: task for graph in graphs for key, task in graph.tasks.items()},
            inputs=tuple(keys for graph in graphs for keys in graph.inputs),
        )

    def with_stats(self, facts: DatasetStats) -> ScoredSource:
        """Return a source whose parts have the statistics of the training data."""
        made = self._changed(lambda one: one if _is_table(one) else one.with_stats(facts))
        return replace(made, train=self.train.with_stats(facts))

    def with_columns(self, n_columns: int) -> ScoredSource:
        """Return a source whose parts have ``n_columns`` columns."""
        return self._changed(lambda source: source.with_columns(n_columns))


def scored_source_of(spec: Mapping[str, Any]) -> ScoredSource:
    """Build the source of a spec with an entry ``scored``."""
    rest = {name: value for name, value in spec.items() if name != "scored"}
    return _scored(source_from_spec(rest), spec["scored"])


def with_scored_rows(
    train: Source,
    *,
    share: float | None = None,
    seed: int = 0,
    validation: Source | None = None,
    test: Source | None = None,
) -> Source:
    """Return training data with validation and test rows; as they are if there are none.

    Raises
    ------
    ConfigError
        When two sources cannot be read by the same members.
    """
    if share is None and validation is None and test is None:
        return train
    made = ScoredSource(train=train, share=share, seed=seed, validation=validation, test=test)
    for role, source in made.others.items():
        _check_beside(train, source, _SETTINGS[role])
    return made


def scored_as(
    data: Source,
    spec: Mapping[str, Any],
    *,
    validation: Source | None = None,
    test: Source | None = None,
) -> Source:
    """Return training data that were given again, with the rows of their first spec beside.

    Parameters
    ----------
    validation, test : Source, optional
        The validation and test data again, each if they were in memory.
    """
    data = training_source(data)
    scored = _scored(data, spec.get("scored") or {})
    return with_scored_rows(
        data,
        share=scored.share,
        seed=scored.seed,
        validation=scored.validation if validation is None else validation,
        test=scored.test if test is None else test,
    )


def test_source(data: Source) -> Source | None:
    """Return the test rows of a job's data; None if there are none."""
    return data.test if isinstance(data, ScoredSource) else None


def training_source(data: Source) -> Source:
    """Return the training data of a job's data."""
    return data.train if isinstance(data, ScoredSource) else data


def _scored(train: Source, part: Mapping[str, Any]) -> ScoredSource:
    others = {role: source_from_spec(part[role]) for role in ("validation", "test") if role in part}
    return ScoredSource(
        train=train,
        share=part.get("share"),
        seed=int(part.get("seed") or 0),
        validation=others.get("validation"),
        test=others.get("test"),
    )


def _check_beside(train: Source, other: Source, path: str) -> None:
    """Check that the same members can read the training data and other data beside them."""
    _check_partitions(train, other, path)
    _check_columns(train, other, path)
    if getattr(other, "is_in_memory", False) and not getattr(train, "is_in_memory", False):
        raise ConfigError(
            f"{path}: rows in memory cannot be scored by members that read their data from "
            "files; write them to a file"
        )
    if other.needs_survey and not _is_table(train):
        raise ConfigError(
            f"{path}: format {other.spec().get('format')} needs the encoder of a table, and data "
            f"have format {train.spec().get('format')}; give both in one format"
        )


def _check_partitions(train: Source, other: Source, path: str) -> None:
    """Check that both or none of the two sources are Dask collections, and of the same kind."""
    if has_partitions(train) != has_partitions(other):
        here, there = ("data", path) if has_partitions(train) else (path, "data")
        raise ConfigError(
            f"{path}: {here} are Dask collections and {there} are not; give both as "
            "em.from_dask(...)"
        )
    formats = [source.spec()["format"] for source in (train, other)]
    if has_partitions(train) and formats[0] != formats[1]:
        kinds = ["arrays" if name == "dask" else "a table" for name in formats]
        raise ConfigError(f"{path}: got {kinds[1]}, wanted {kinds[0]} as the training data")


def _check_columns(train: Source, other: Source, path: str) -> None:
    """Check that both or none of the two sources are by columns, with as many rows of X.T."""
    are_columns = is_by_columns(train.spec()), is_by_columns(other.spec())
    if are_columns == (False, False):
        return
    if are_columns != (True, True):
        by = ["columns" if is_columns else "rows" for is_columns in are_columns]
        raise ConfigError(
            f"{path}: the data are by {by[1]}, the training data by {by[0]}; give both by {by[0]}"
        )
    here, there = (sum(block.rows or 0 for block in one.blocks()) for one in (train, other))
    if here != there:
        raise ConfigError(
            f"{path}: the data have {there} rows of features, targets and weights, the training "
            f"data {here}; give both the same features, and weights to both or "
            "to none"
        )


def _is_table(source: Source) -> bool:
    return hasattr(source, "fitted_encoder")


def _encoded_as(other: Source, train: Source) -> Source:
    """Return a table with the encoding of the training table: columns are known by their names."""
    if other is train or not _is_table(other) or not _is_table(train):
        return other
    table, training = cast(Any, other), cast(Any, train)
    encoded: Source = table.with_encoder(training.fitted_encoder())
    return encoded


def _taken(chunk: Chunk, mask: NDArray[np.bool_], id: ChunkId, by_columns: bool) -> Chunk:
    """Return the examples of a mask as a chunk: rows, or columns of a chunk of features."""
    labels, weights, layout = chunk.labels, chunk.weights, chunk.layout
    if not by_columns:
        labels, weights = labels[mask], None if weights is None else weights[mask]
    if layout.kind == "sequence":
        return sequence_chunk(id, labels, chunk.codes[mask], layout, weights)
    X = matrix_of(rows_of_chunk(chunk))
    X = X[:, mask] if by_columns else X[mask]
    rows = rows_of_matrix(X, labels, weights)
    return chunk_of(rows, id, replace(layout, n_columns=X.shape[1]))
