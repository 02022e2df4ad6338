"""Rows of chunks in a GPU's memory, in batches where they do not all fit.

Dense rows are stored as they are, all others with their column numbers; values that are all ones
are left out.

Source: Snap ML, section 3.2, "Asynchronous Data Streaming", without a swap buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.cuda_kernels import norms_of
from elasticml.algorithms.cocoa.tables import Piece, stored_of
from elasticml.data.chunk import Chunk
from elasticml.data.ngrams import first_columns
from elasticml.data.shelf import flow
from elasticml.errors import DataError

#: Bytes of a row in addition to its values and columns: pointer, target, weight, norm, dual
#: variable, its copy from before the sub-epoch, and its position in the order.
ROW_BYTES: Final = 7 * 8
#: Share of the free memory available for rows; the rest is for the model and fragmentation.
SHARE: Final = 0.8

#: The driver's error code for out of memory.
OUT_OF_MEMORY: Final = 2


@dataclass(slots=True, eq=False)
class DeviceRows:
    """The rows of several pieces, concatenated in the device's memory."""

    pieces: tuple[Piece, ...]
    n_rows: int
    indptr: Any
    indices: Any
    values: Any
    targets: Any
    weights: Any
    norms: Any
    alpha: Any
    before: Any


def columns_of(chunk: Chunk) -> NDArray[np.int32]:
    """Return the set columns of each row of a sequence chunk, (n_rows, k), ascending."""
    layout, (lo, hi) = chunk.layout, chunk.layout.ngrams
    sigma = len(layout.alphabet)
    first = first_columns(sigma, layout.length, layout.ngrams)
    parts = []
    for n in range(lo, hi + 1):
        places = layout.length - n + 1
        # The first n letters of the hi-gram that begins at each position.
        grams = chunk.codes[:, :places].astype(np.int32) // sigma ** (hi - n)
        parts.append(grams + (first[n - lo] + sigma**n * np.arange(places)).astype(np.int32))
    return np.concatenate(parts, axis=1)


def device_bytes(chunk: Chunk) -> int:
    """Return the bytes that a chunk's rows take on the device."""
    kind, itemsize = chunk.layout.kind, np.dtype(chunk.layout.dtype).itemsize
    each = (itemsize if kind in ("dense", "csr") else 0) + (0 if kind == "dense" else 4)
    return stored_of(chunk) * each + chunk.n_rows * ROW_BYTES


def batches_of(pieces: Sequence[Piece], room_bytes: float) -> list[tuple[Piece, ...]]:
    """Cut pieces into consecutive batches that fit: a single batch if all fit together.

    Parameters
    ----------
    room_bytes : float
        Device memory available for rows.

    Returns
    -------
    list of tuple of Piece
        No batch is empty; a piece that is larger than the room is a batch by itself.
    """
    batches: list[list[Piece]] = []
    taken = 0
    for piece in pieces:
        size = device_bytes(piece.chunk)
        if not batches or taken + size > room_bytes:
            batches.append([])
            taken = 0
        batches[-1].append(piece)
        taken += size
    return [tuple(batch) for batch in batches]


def halves_of(batch: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """Cut a batch of several pieces into two nonempty batches of similar size."""
    sizes = np.cumsum([device_bytes(piece.chunk) for piece in batch])
    middle = int(np.searchsorted(sizes, sizes[-1] / 2)) + 1
    middle = min(middle, len(batch) - 1)
    return [tuple(batch[:middle]), tuple(batch[middle:])]


def is_out_of_memory(error: Exception) -> bool:
    """Whether the driver refused memory; numba reports this by the driver's error code."""
    if not isinstance(error, CudaAPIError):
        return False
    code = getattr(error, "code", None)
    return code is not None and int(code) == OUT_OF_MEMORY


def no_room_for(chunk: Chunk) -> DataError:
    """Return the error for a chunk that does not fit by itself."""
    free = cuda.current_context().get_memory_info().free
    return DataError(
        f"chunk {chunk.id} needs {_mib(device_bytes(chunk))} MiB of GPU memory, but only "
        f"{_mib(free)} MiB are free; use device: cpu, smaller chunks, or a GPU for each worker "
        "(CUDA_VISIBLE_DEVICES)"
    )


def _mib(nbytes: float) -> str:
    return f"{np.ceil(nbytes / 2**20):.0f}"  # the simulator reports infinity


def send_rows(pieces: Sequence[Piece], dtype: np.dtype[Any], threads: int) -> DeviceRows:
    """Copy the rows of pieces to the device, piece by piece, and compute their squared norms.

    Parameters
    ----------
    pieces : sequence of Piece
        With at least one row in total, and layouts of one kind.
    dtype : dtype
        Of the values.
    threads : int
        Threads per block.
    """
    kind = pieces[0].chunk.layout.kind
    n_rows = sum(piece.chunk.n_rows for piece in pieces)
    stored = sum(stored_of(piece.chunk) for piece in pieces)
    is_weighted = any(piece.weights is not None for piece in pieces)
    has_values = kind in ("dense", "csr")
    rows = DeviceRows(
        pieces=tuple(pieces),
        n_rows=n_rows,
        indptr=cuda.device_array(n_rows + 1, np.int64),
        indices=cuda.device_array(0 if kind == "dense" else stored, np.int32),
        values=cuda.device_array(stored if has_values else 0, dtype),
        targets=cuda.device_array(n_rows, np.float64),
        weights=cuda.device_array(n_rows if is_weighted else 0, np.float64),
        norms=cuda.device_array(n_rows, np.float64),
        alpha=cuda.device_array(n_rows, np.float64),
        before=cuda.device_array(n_rows, np.float64),
    )
    indptr, row, at = np.zeros(n_rows + 1, np.int64), 0, 0
    for piece, chunk in zip(pieces, flow([piece.chunk for piece in pieces]), strict=True):
        end, stop = row + chunk.n_rows, at + stored_of(chunk)
        if kind in ("csr", "binary_csr"):
            indptr[row + 1 : end + 1] = at + chunk.indptr[1:].astype(np.int64)
        else:
            each = (stop - at) // max(1, chunk.n_rows)
            indptr[row : end + 1] = at + each * np.arange(chunk.n_rows + 1)
        if has_values:
            _put(rows.values, at, stop, chunk.values.reshape(-1))
        if kind != "dense":
            columns = columns_of(chunk).reshape(-1) if kind == "sequence" else chunk.indices
            _put(rows.indices, at, stop, columns)
        _put(rows.targets, row, end, piece.targets)
        if is_weighted:
            ones = np.ones(chunk.n_rows) if piece.weights is None else piece.weights
            _put(rows.weights, row, end, ones)
        row, at = end, stop
    rows.indptr.copy_to_device(indptr)
    norms_of[min(n_rows, 1024), threads](rows.indptr, rows.values, rows.norms)
    return rows


def send_alpha(rows: DeviceRows) -> None:
    """Copy the pieces' dual variables to the device."""
    rows.alpha.copy_to_device(np.concatenate([piece.alpha for piece in rows.pieces]))


def fetch_alpha(rows: DeviceRows) -> None:
    """Copy the dual variables back into the pieces."""
    alpha, row = rows.alpha.copy_to_host(), 0
    for piece in rows.pieces:
        piece.alpha[:] = alpha[row : row + piece.chunk.n_rows]
        row += piece.chunk.n_rows


def _put(target: Any, begin: int, end: int, source: NDArray[Any]) -> None:
    """Copy an array into part of a device array."""
    if end > begin:
        target[begin:end].copy_to_device(np.ascontiguousarray(source))
