"""The two big generated sets as arrays on disk: block by block, float32 values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.rows import Rows
from examples.papers.support.shaped_rows import synthetic
from tests.bench.peers.criteo_shaped import criteo_shaped

#: Rows of each: 120 million stored values, and 78 million.
ROWS = {"rcv1_shaped": 1_601_000, "criteo_shaped": 2_000_000}


def write_big(
    folder: Path, name: str, rows: int | None = None, written_as: str | None = None
) -> None:
    """Write a set for :class:`problems.Data`; temporarily takes twice its size.

    Parameters
    ----------
    name : "rcv1_shaped" or "criteo_shaped"
    rows : int, optional
        Another number of rows.
    written_as : str, optional
        Prefix of the files' names; by default the set's name.
    """
    own = name if written_as is None else written_as
    rows = ROWS[name] if rows is None else rows
    width, sizes, labels = 0, [], []
    indices: list[NDArray[np.int32]] = []
    values: list[NDArray[np.float32]] = []
    for block in criteo_shaped(rows) if name == "criteo_shaped" else _texts(rows):
        assert block.indptr is not None
        assert block.indices is not None
        assert block.values is not None
        width = block.n_columns
        sizes.append(np.diff(block.indptr))
        labels.append(block.labels)
        indices.append(block.indices)
        values.append(block.values)
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int32)
    np.save(folder / f"{own}-indptr.npy", indptr)
    np.save(folder / f"{own}-labels.npy", np.concatenate(labels))
    np.save(folder / f"{own}-columns.npy", np.array(width))
    np.save(folder / f"{own}-indices.npy", np.concatenate(indices))
    indices.clear()
    np.save(folder / f"{own}-values.npy", np.concatenate(values))


def _texts(rows: int) -> Iterator[Rows]:
    source = synthetic("rcv1", rows, dtype="float32")
    for block in source.blocks():
        for chunk in source.read(block.index, None, 1)[0]:
            yield Rows(
                labels=chunk.labels,
                n_columns=chunk.layout.n_columns,
                indptr=chunk.indptr,
                indices=chunk.indices,
                values=chunk.values,
            )
