"""Data in Dask collections: chunks are made from partitions on the workers that hold them.

The client describes the partitions and sends their graph with the job, never a row. A member asks
for a partition (``elasticml/runtime/partitions.py``), and this module makes its chunks there. By
columns, a worker that holds a partition cuts it into the columns of each block, and the member that
takes a block joins these pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from elasticml.arrays import F64, is_lazy
from elasticml.data.chunks.by_columns import ROOTS, TARGETS
from elasticml.data.chunks.rows import Rows, rows_of_arrays, rows_of_matrix
from elasticml.data.formats import Format
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import BLOCK_BYTES, BlockInfo
from elasticml.errors import ConfigError, DataError
from elasticml.specification.settings_model import Dtype, Index

#: A key of Dask.
Key = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGraph:
    """The tasks that make the partitions, as the client sends them to the scheduler."""

    #: Tasks by key, without those that only the scheduler has, such as the tasks of persisted data.
    tasks: Mapping[Key, Any]
    #: The keys of each block's parts: rows, labels, weights.
    inputs: tuple[tuple[Key, ...], ...]
    #: Blocks are joined of pieces of partitions; a piece is cut where its partition is.
    joins: bool = False


def has_partitions(source: object) -> TypeGuard[Any]:
    """Whether the blocks of a source are partitions of Dask collections, which members have."""
    return bool(getattr(source, "has_partitions", False))


class DaskSource(Format):
    """Partitions of Dask collections; a block is a partition. Made by :func:`from_dask`.

    The graph of the collections is not part of the spec: the client sends it with the job.
    """

    has_partitions: ClassVar[bool] = True

    #: Digest of the partitions' keys.
    digest: str
    #: In the client only.
    _graph: PartitionGraph | None = PrivateAttr(default=None)
    #: The user's collections: persisted partitions are kept as long as the source is.
    _collections: tuple[Any, ...] = PrivateAttr(default=())
    #: On the worker that holds a partition.
    _parts: Sequence[Any] | None = PrivateAttr(default=None)

    def of(self, graph: PartitionGraph, collections: Sequence[Any]) -> Self:
        """Return the source in the client, which has the graph."""
        made = self.model_copy()
        made._graph, made._collections = graph, tuple(collections)
        return made

    def with_parts(self, parts: Sequence[Any]) -> Self:
        """Return the source where a partition is: it reads and surveys the block of ``parts``.

        Parameters
        ----------
        parts : sequence
            The values of the block's keys. The same partition gives the same chunks anywhere.
        """
        made = self.model_copy()
        made._parts = parts
        return made

    @property
    def parts(self) -> Sequence[Any]:
        """The values of a block's keys."""
        if self._parts is None:
            raise ConfigError(
                "Dask collections are read only by the members of a job, where the partitions are; "
                "to evaluate a model use its predict and score, which are lazy for collections"
            )
        return self._parts

    def fingerprint(self) -> str:
        """Return 16 hex digits over the partitions' keys and the options."""
        return fingerprint(self.spec())

    def partition_graph(self) -> PartitionGraph:
        """Return the tasks that make the partitions.

        Raises
        ------
        ConfigError
            When this source was rebuilt from its spec, which does not contain them.
        """
        if self._graph is None:
            raise ConfigError(
                "data: a spec of Dask collections has no graph; give em.from_dask(X, y) again"
            )
        return self._graph


class DaskArraySource(DaskSource):
    """Partitions of a Dask array, its labels and weights."""

    format = "dask"
    given_again = "em.from_dask(X, y)"

    #: Rows of each partition; None: unknown until it is read.
    rows: tuple[Index | None, ...]
    #: Columns; None: unknown.
    columns: Index | None = None
    #: Whether the rows of chunks are examples ("rows") or features ("columns").
    by: Literal["rows", "columns"] = "rows"

    def blocks(self) -> list[BlockInfo]:
        """Return one block for each row chunk of the array."""
        columns = self.columns
        width = (4 if self.dtype == "float32" else 8) * (columns or 0) + 8
        return [
            BlockInfo(
                index=i,
                nbytes=BLOCK_BYTES if rows is None or not columns else rows * width,
                rows=rows,
                columns=columns,
            )
            for i, rows in enumerate(self.rows)
        ]

    def rows_of(self, block: int) -> Iterable[Rows]:
        """Return the rows of a partition of arrays."""
        yield _rows_of_arrays(self.parts, self.columns, block)


def partition_title(block: int) -> str:
    """Return the name of a partition in messages."""
    return f"partition {block} of the Dask collection"


def _rows_of_arrays(parts: Sequence[Any], columns: int | None, block: int) -> Rows:
    if len(parts) == 1:  # a delayed object
        parts = parts[0]
        if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
            raise DataError(
                f"{partition_title(block)} is a {type(parts).__name__}, wanted (X, y) or "
                "(X, y, weights); name the column of the labels if it is a table"
            )
    X, y, weights = matrix_of_part(parts[0]), *(*parts[1:], None)[:2]
    if X.ndim == 2 and columns is not None and X.shape[1] != columns:
        raise DataError(f"{partition_title(block)} has {X.shape[1]} columns, wanted {columns}")
    if X.ndim == 2 and X.shape[0] == 0 and len(y) == 0:
        return rows_of_matrix(X.astype(np.float64), np.empty(0))
    return rows_of_arrays(X, np.asarray(y), weights, name=partition_title(block))


def matrix_of_part(X: Any) -> Any:
    """Return a partition of numbers as an array or CSR array."""
    if hasattr(X, "tocsr"):
        import scipy.sparse

        return scipy.sparse.csr_array(X.tocsr())
    return X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)


def vector_of_part(values: Any) -> NDArray[Any]:
    """Return a partition of labels or weights as an array (n,)."""
    return np.ravel(values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values))


# In the client: describe collections, and collect their graph.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowParts:
    """Delayed partitions of rows, labels and weights, as many of each."""

    X: Sequence[Any]
    y: Sequence[Any]
    weights: Sequence[Any] | None = None
    #: Rows of each partition; None: unknown.
    rows: tuple[int | None, ...]
    columns: int


def row_parts(X: Any, y: Any, sample_weight: Any) -> RowParts:
    """Split an array or a dataframe of numbers, its labels and weights into the same partitions.

    Raises
    ------
    ConfigError
        When that is not possible.
    """
    if y is None:
        raise ConfigError("y: Dask collections of rows need labels, give em.from_dask(X, y)")
    if not hasattr(X, "rechunk"):
        parts = _delayed_blocks(X)
        vectors = [
            None if one is None else partitions_of(one, len(parts), name)
            for one, name in ((y, "label"), (sample_weight, "weight"))
        ]
        assert vectors[0] is not None
        rows = (None,) * len(parts)
        return RowParts(X=parts, y=vectors[0], weights=vectors[1], rows=rows, columns=X.shape[1])
    if X.ndim != 2 or np.isnan(X.shape[1]):
        raise ConfigError(f"X has shape {X.shape}, wanted two dimensions, and known columns")
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    weights = None if sample_weight is None else _vector(sample_weight, X, "sample_weight")
    return RowParts(
        X=_delayed_blocks(X),
        y=_delayed_blocks(_vector(y, X, "y")),
        weights=None if weights is None else _delayed_blocks(weights),
        rows=tuple(None if np.isnan(n) else int(n) for n in X.chunks[0]),
        columns=int(X.shape[1]),
    )


def array_source(parts: RowParts, dtype: Dtype, collections: Sequence[Any] = ()) -> DaskArraySource:
    """Return the source of partitions of numbers.

    Parameters
    ----------
    collections : sequence
        What keeps persisted partitions.
    """
    columns = [parts.X, parts.y, *([] if parts.weights is None else [parts.weights])]
    name, graph = partition_graph(columns)
    made = DaskArraySource(digest=name, rows=parts.rows, columns=parts.columns, dtype=dtype)
    return made.of(graph, collections)


def _vector(values: Any, X: Any, name: str) -> Any:
    """Return labels or weights as a Dask array with the row chunks of X."""
    import dask.array

    if not is_lazy(values):
        if any(np.isnan(n) for n in X.chunks[0]):
            raise ConfigError(
                f"{name} is in memory and the chunks of X have unknown sizes; give a Dask array, "
                "or call X.compute_chunk_sizes()"
            )
        values = dask.array.from_array(np.asarray(values), chunks=-1)
    if hasattr(values, "to_dask_array"):
        values = values.to_dask_array()
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ConfigError(f"{name} has {values.ndim} dimensions, wanted 1")
    here, there = values.chunks[0], X.chunks[0]
    if any(np.isnan(n) for n in (*here, *there)):
        if len(here) != len(there):
            raise ConfigError(
                f"{name} has {len(here)} partitions and X {len(there)}, of unknown sizes; take "
                "both from one collection, or call compute_chunk_sizes()"
            )
        return values
    if sum(here) != sum(there):
        raise ConfigError(f"{name} has {sum(here)} rows and X {sum(there)}, wanted equal")
    return values if here == there else values.rechunk((there,))


def partitions_of(vector: Any, count: int, name: str) -> list[Any]:
    """Return the delayed partitions of labels or weights.

    Raises
    ------
    ConfigError
        When there are not as many as those of the rows.
    """
    if not is_lazy(vector):
        raise ConfigError(f"the {name}s are in memory, wanted a Dask series or array")
    parts = _delayed_blocks(vector)
    if len(parts) != count:
        raise ConfigError(
            f"the {name}s have {len(parts)} partitions and X {count}, wanted equal; take both from "
            "one collection"
        )
    return parts


def _delayed_blocks(collection: Any) -> list[Any]:
    return list(np.ravel(np.array(collection.to_delayed(), dtype=object)))


def partition_graph(
    parts: Sequence[Sequence[Any]], *, joins: bool = False
) -> tuple[str, PartitionGraph]:
    """Return a digest of the partitions' keys, and their tasks."""
    from dask._task_spec import convert_legacy_graph
    from dask.utils import ensure_dict

    inputs = tuple(zip(*([part.key for part in column] for column in parts), strict=True))
    name = hashlib.blake2b("\n".join(map(repr, inputs)).encode(), digest_size=8).hexdigest()
    graphs = {id(part.dask): part.dask for column in parts for part in column}
    tasks: dict[Key, Any] = {}
    for graph in graphs.values():  # the partitions of a collection share one
        tasks.update(ensure_dict(graph))
    return name, PartitionGraph(tasks=convert_legacy_graph(tasks), inputs=inputs, joins=joins)


def column_source(
    parts: RowParts, n_blocks: int, constant: float | None, collections: tuple[Any, ...]
) -> DaskArraySource:
    """Return the source by columns of partitions of rows, as ``rows_by_columns`` has them.

    Parameters
    ----------
    n_blocks : int
        Blocks of columns, at most as many as there are columns.
    constant : float, optional
        The value of one more column.
    collections : tuple
        What keeps persisted partitions.
    """
    import dask  # a job of files needs none

    d = parts.columns
    bounds = [d * k // n_blocks for k in range(n_blocks + 1)]
    weights = parts.weights or [None] * len(parts.y)
    rows = list(zip(parts.X, parts.y, weights, strict=True))
    cut, also, join = (dask.delayed(f, pure=True) for f in (_cut, _extra_rows, _joined))
    blocks, sizes = [], []
    for k, (low, high) in enumerate(pairwise(bounds)):
        labels = np.arange(low, high, dtype=np.float64)
        pieces = [cut(X, s, low, high) for X, _, s in rows]
        extra = None
        if k == n_blocks - 1:
            extra = [also(y, s, constant) for _, y, s in rows]
            own = [] if constant is None else [float(d)]
            roots = [] if parts.weights is None else [ROOTS]
            labels = np.concatenate([labels, [*own, TARGETS, *roots]])
        blocks.append(join(pieces, extra, labels))
        sizes.append(labels.size)
    name, graph = partition_graph([blocks], joins=True)
    columns = _total(parts)
    made = DaskArraySource(digest=name, rows=tuple(sizes), columns=columns, by="columns")
    return made.of(graph, collections)


def _total(parts: RowParts) -> int | None:
    """Return the number of rows, if it is known."""
    known = [n for n in parts.rows if n is not None]
    return sum(known) if len(known) == len(parts.rows) else None


def _cut(X: Any, weights: Any, low: int, high: int) -> Any:
    """Return some columns of a partition as rows, times the square roots of the weights."""
    import scipy.sparse  # here: processes that start workers need it not

    matrix = matrix_of_part(X)[:, low:high]
    roots = None if weights is None else np.sqrt(vector_of_part(weights).astype(np.float64))
    if not scipy.sparse.issparse(matrix):
        columns = np.array(matrix.T, np.float64, order="C")
        return columns if roots is None else columns * roots
    columns = matrix.T.astype(np.float64)
    return scipy.sparse.csr_array(
        columns if roots is None else columns @ scipy.sparse.diags_array(roots)
    )


def _extra_rows(y: Any, weights: Any, constant: float | None) -> F64:
    """Return the rows besides the features: the constant column, the targets, and the roots."""
    targets = vector_of_part(y).astype(np.float64)
    roots = None if weights is None else np.sqrt(vector_of_part(weights).astype(np.float64))
    ones = np.ones(targets.size) if roots is None else roots
    rows = [*([] if constant is None else [constant * ones]), targets]
    return np.stack(rows if roots is None else [*rows, roots])


def _joined(pieces: list[Any], extra: list[F64] | None, labels: F64) -> tuple[Any, F64]:
    """Join the pieces of a block; return its rows and their labels, as a source's partition."""
    import scipy.sparse

    below = [] if extra is None else [np.concatenate(extra, axis=1)]
    if not any(scipy.sparse.issparse(piece) for piece in pieces):
        return np.concatenate([np.concatenate(pieces, axis=1), *below]), labels
    matrix = scipy.sparse.hstack(pieces, format="csr")
    tail = [scipy.sparse.csr_array(rows) for rows in below]
    return scipy.sparse.csr_array(scipy.sparse.vstack([matrix, *tail], format="csr")), labels
