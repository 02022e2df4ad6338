"""A member's dual coordinate ascent over all its rows on one or several GPUs.

Dense rows are stored on the device as they are, all others with their column numbers; values that
are all ones are left out. Rows that do not all fit come in batches. Imported only where there is a
CUDA device, or numba's simulator.

Source: Snap ML, section 3.1, and section 3.2, "Asynchronous Data Streaming", without a swap buffer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import chunk_pointers, cuda_kernels, sdca_kernels
from elasticml.algorithms.cocoa.chunk_pointers import Piece, set_columns, stored_of
from elasticml.algorithms.cocoa.cuda_kernels import norms_of
from elasticml.algorithms.cocoa.damping import Damping
from elasticml.algorithms.cocoa.local_pass import PassRequest, PassResult
from elasticml.algorithms.cocoa.permutation import mix_hash
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.errors import DataError
from elasticml.objectives.loss_kernels import MarginLoss

#: Bytes of a row in addition to its values and columns: pointer, target, weight, norm, dual
#: variable, its copy from before the sub-epoch, and its position in the order.
ROW_BYTES: Final = 7 * 8
#: Share of the free memory available for rows; the rest is for the model and fragmentation.
SHARE: Final = 0.8

#: Size of each of the two buffers through which an array is sent.
PINNED_BYTES: Final = 8 << 20

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


class PinnedCopy:
    """Fills a device array through two pinned buffers: one is filled while the other is sent.

    Many small arrays leave in few copies, as each copy takes a tenth of a millisecond to start.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        n = min(target.size, PINNED_BYTES // target.dtype.itemsize)
        self._buffers = [cuda.pinned_array(n, target.dtype) for _ in range(2)]
        self._streams = [cuda.stream() for _ in range(2)]
        self._turn, self._used, self._sent = 0, 0, 0

    def add(self, source: NDArray[Any]) -> None:
        """Copy an array behind what has been added."""
        rest = source.reshape(-1)
        while rest.size:
            buffer = self._buffers[self._turn]
            some, rest = np.split(rest, [buffer.size - self._used])
            buffer[self._used : self._used + some.size] = some
            self._used += some.size
            if self._used == buffer.size:
                self._send()

    def end(self) -> None:
        """Send what is left, and wait until everything has arrived."""
        if self._used:
            self._send()
        for stream in self._streams:
            stream.synchronize()

    def _send(self) -> None:
        part = self._target[self._sent : self._sent + self._used]
        staged = self._buffers[self._turn][: self._used]
        part.copy_to_device(staged, stream=self._streams[self._turn])
        self._sent, self._used, self._turn = self._sent + self._used, 0, 1 - self._turn
        self._streams[self._turn].synchronize()


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
    layout = pieces[0].chunk.layout
    kind = layout.kind
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
    copies = {
        name: PinnedCopy(getattr(rows, name))
        for name in ("indices", "values", "targets", "weights")
        if getattr(rows, name).size
    }
    for piece, chunk in zip(pieces, stream_chunks([piece.chunk for piece in pieces]), strict=True):
        end, stop = row + chunk.n_rows, at + stored_of(chunk)
        if kind in ("csr", "binary_csr"):
            indptr[row + 1 : end + 1] = at + chunk.indptr[1:].astype(np.int64)
        else:
            each = (stop - at) // max(1, chunk.n_rows)
            indptr[row : end + 1] = at + each * np.arange(chunk.n_rows + 1)
        if "values" in copies:
            copies["values"].add(chunk.values)
        if "indices" in copies:
            columns = set_columns(chunk.codes, layout) if kind == "sequence" else chunk.indices
            copies["indices"].add(columns)
        copies["targets"].add(piece.targets)
        if is_weighted:
            ones = np.ones(chunk.n_rows) if piece.weights is None else piece.weights
            copies["weights"].add(ones)
        row, at = end, stop
    for copy in copies.values():
        copy.end()
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


#: Threads of a warp, which run in step.
WARP: Final = 32
#: Minimum values of a row per thread before a block gets more threads.
_VALUES_PER_THREAD: Final = 4
#: Active blocks of one warp for each multiprocessor of the device.
_BLOCKS_PER_PROCESSOR: Final = 16
#: Minimum rows of a sub-epoch per block: with as many blocks as rows, no block would see another's
#: steps.
_ROWS_PER_BLOCK: Final = 8


class CudaSolver:
    """Improves the dual variables of its rows, as :class:`LocalSolver` does.

    All blocks update one model by atomic additions. The order of additions, and with it the last
    bits of the sums, differs between runs. A *sub-epoch* is one visit to all rows that are on the
    device together. A sub-epoch that lowers the local dual objective is undone and the steps are
    halved; after several that gain they are doubled again.

    Parameters
    ----------
    loss : MarginLoss
        Steps are exact, except for the logistic loss: one Newton step.
    dtype : {"float32", "float64"}
        Of the chunks' values, and of the model on the device.
    intercept_scaling : float, optional
        Value of the constant column that belongs to the model's last coordinate; None for none.
    blocks, threads : int, optional
        Number of blocks, and threads of each, a power of two up to 256; by default chosen by the
        device and the rows. One block visits rows one after another, as a processor does.
    room_bytes : float, optional
        Device memory available for rows; by default four fifths of the free memory.
    device : int
        Index of the device among those visible to this process; any thread may call.

    Source: Snap ML, section 3.1.
    """

    def __init__(
        self,
        *,
        loss: MarginLoss,
        dtype: str,
        intercept_scaling: float | None,
        blocks: int | None = None,
        threads: int | None = None,
        room_bytes: float | None = None,
        device: int = 0,
    ) -> None:
        self._loss, self._device = loss, device
        self._dtype = np.dtype(dtype)
        self._intercept = 0.0 if intercept_scaling is None else intercept_scaling
        self._blocks_wanted, self._threads_wanted = blocks, threads
        self._room_bytes = room_bytes
        self._pieces: tuple[Piece, ...] = ()
        self._batches: list[tuple[Piece, ...]] = []
        #: All rows, if they fit on the device together.
        self._resident: DeviceRows | None = None
        self._blocks, self._threads = 1, WARP
        self._weight = 0.0
        self._damping = Damping()

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on, as :meth:`LocalSolver.bind` does.

        They are sent to the device by the first visit.
        """
        if chunk_pointers.is_same(self._pieces, pieces):
            return
        chunk_pointers.check(pieces, self._dtype)
        self._pieces = tuple(pieces)
        filled = [piece for piece in pieces if piece.chunk.n_rows]
        n_rows = sum(piece.chunk.n_rows for piece in filled)
        stored = sum(chunk_pointers.stored_of(piece.chunk) for piece in filled)
        self._threads = self._threads_wanted or threads_for(stored / max(1, n_rows))
        with cuda.gpus[self._device]:
            self._resident = None  # first: its memory counts as free below
            room = self._room_bytes
            if room is None:
                room = SHARE * cuda.current_context().get_memory_info().free
            self._batches = batches_of(filled, room)
            self._blocks = self._blocks_wanted or blocks_for(_processors(), self._threads)
        self._damping = Damping(1.0 / self._blocks)
        self._weight = chunk_pointers.total_weight(filled)

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in random order and update their dual variables in place.

        Parameters are those of :meth:`LocalSolver.run`. One thread of this process keeps the
        device busy, so ``parallel`` is not used.

        Returns
        -------
        PassResult
            Its counts include sub-epochs that were undone.
        """
        if self._weight <= 0.0:
            return PassResult(dv=np.zeros(v.size))
        whole = request.sigma_of(self._weight)
        unit, began = whole / request.l2_total, v.astype(self._dtype)
        total = PassResult(dv=np.zeros(0), partitions=1, gap=math.nan)
        with cuda.gpus[self._device]:
            model = _Model(cuda.to_device(began), cuda.to_device(began))
            for _, key, share in request.turns():
                for number, batch in self._turns(key):
                    own = (*key, number) if number else key
                    total = total.plus(self._visit(batch, share, own, model, unit))
            dv = (model.r.copy_to_host().astype(np.float64) - began) / whole
        return replace(total, dv=dv)

    def _turns(self, key: tuple[int, int, int]) -> list[tuple[int, tuple[Piece, ...]]]:
        """Return the batches in random order, with their numbers."""
        turns = np.arange(len(self._batches), dtype=np.int64)
        sdca_kernels.shuffle(turns, mix_hash(*key))
        return [(int(number), self._batches[number]) for number in turns]

    def _visit(
        self,
        batch: tuple[Piece, ...],
        share: float,
        key: Sequence[int],
        model: _Model,
        unit: float,
    ) -> PassResult:
        """Visit the rows of a batch, or of parts where the device lacks memory for all.

        The batch's memory is free when the call returns. ``unit`` is ``sigma' / (l2 S)``.
        """
        rows = self._rows(batch)
        if rows is None:
            parts = batches_of(batch, 0.5 * sum(device_bytes(piece.chunk) for piece in batch))
            at = self._batches.index(batch)
            self._batches[at : at + 1] = parts
            done = [
                self._visit(part, share, (*key, number), model, unit)
                for number, part in enumerate(parts)
            ]
            return functools.reduce(PassResult.plus, done)
        send_alpha(rows)
        order = _order(rows.n_rows, share, key)
        update = self._sub_epoch(rows, order, model, unit)
        fetch_alpha(rows)
        return update

    def _rows(self, batch: tuple[Piece, ...]) -> DeviceRows | None:
        """Return a batch on the device, None if memory is short; a single batch stays there.

        Raises
        ------
        DataError
            When one chunk alone does not fit.
        """
        if self._resident is not None:
            return self._resident
        try:
            rows = send_rows(batch, self._dtype, self._threads)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise no_room_for(batch[0].chunk) from None
            return None
        if len(self._batches) == 1:
            self._resident = rows
        return rows

    def _sub_epoch(
        self, rows: DeviceRows, order: NDArray[np.int64], model: _Model, unit: float
    ) -> PassResult:
        """Visit rows; undo the visit if the local dual objective has not grown."""
        grid = max(1, min(self._blocks, order.size // _ROWS_PER_BLOCK)), self._threads
        rows.before.copy_to_device(rows.alpha)
        model.before.copy_to_device(model.r)
        sums = cuda.to_device(cuda_kernels.empty_sums())
        record: Any = type(self._loss.terms)
        cuda_kernels.ascend_for(record)[grid](
            cuda.to_device(order),
            rows.indptr,
            rows.indices,
            rows.values,
            rows.targets,
            rows.weights,
            rows.norms,
            rows.alpha,
            self._loss.terms,
            self._loss.is_classification,
            self._loss.terms.minus_curvature(0.0, 0.0),
            unit,
            self._intercept,
            self._damping.share,
            model.r,
            sums,
        )
        cuda_kernels.compare[grid](model.r, model.before, sums)
        dual, curvature, visited, difference, size = sums.copy_to_host().tolist()
        # The local dual problem in terms of r: sum of -conj, minus l2 S |r|^2 / (2 sigma').
        half = 0.5 / unit
        # The rounding error of a coordinate grows by the root of the number of additions to it.
        precision = float(np.finfo(self._dtype).eps) * math.sqrt(order.size)
        work = PassResult(dv=np.zeros(0), visited=int(visited), partitions=1, gap=math.nan)
        if self._damping.accepts(dual - half * difference, abs(dual) + half * size, precision):
            return replace(work, dual=dual, curvature=curvature)
        model.r, model.before = model.before, model.r
        rows.alpha, rows.before = rows.before, rows.alpha
        return replace(work, discarded=1)


class _Model:
    """The model on the device, ``v + sigma' u``, and its copy from before a sub-epoch."""

    def __init__(self, r: Any, before: Any) -> None:
        self.r, self.before = r, before


def threads_for(values_per_row: float) -> int:
    """Return the threads of a block: a warp, or more for long rows."""
    threads = WARP
    while (
        2 * threads <= cuda_kernels.THREADS_MAX
        and values_per_row >= 2 * threads * _VALUES_PER_THREAD
    ):
        threads *= 2
    return threads


def blocks_for(processors: int, threads: int) -> int:
    """Return the number of blocks that keeps a device's multiprocessors busy."""
    return max(1, processors * _BLOCKS_PER_PROCESSOR * WARP // threads)


def _processors() -> int:
    """Count the device's multiprocessors; 1 for the simulator, which has none."""
    return int(getattr(cuda.current_context().device, "MULTIPROCESSOR_COUNT", 1))


def _order(n_rows: int, share: float, key: Sequence[int]) -> NDArray[np.int64]:
    """Draw the rows to visit: all in random order, or the first ``share`` of them."""
    order = np.arange(n_rows, dtype=np.int64)
    sdca_kernels.shuffle(order, mix_hash(*key))
    return order[: max(1, round(share * n_rows))]


def cuda_solvers(
    groups: int | None,
    *,
    loss: MarginLoss,
    dtype: str,
    intercept_scaling: float | None,
) -> list[CudaSolver]:
    """Return a solver for each group, assigned to the devices in turn; one per device by default.

    Other parameters are those of :class:`CudaSolver`.
    """
    n_devices = len(cuda.gpus)
    return [
        CudaSolver(
            loss=loss, dtype=dtype, intercept_scaling=intercept_scaling, device=k % n_devices
        )
        for k in range(n_devices if groups is None else groups)
    ]
