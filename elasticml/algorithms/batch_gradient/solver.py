"""The member's half: sums of losses and derivatives over its chunks, with cached margins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms import column_statistics
from elasticml.algorithms.base import Arrays, Operation, Parallel, Work, operation_of
from elasticml.algorithms.batch_gradient import curvature_probes, gradient_exchanges
from elasticml.algorithms.batch_gradient.hessian_sums import HessianSums
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.targets import Targets, n_models, targets_for
from elasticml.arrays import F64, I64, address
from elasticml.compiled import kernel, vector_at
from elasticml.data.chunks import kernels
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import (
    Adjoint,
    Bodies,
    Forward,
    chunks_to_warm_up,
    make_adjoint,
    make_forward,
)
from elasticml.data.out_of_core.store import (
    kept,
    release,
    row_array,
    store_of,
    stream_chunks,
)
from elasticml.data.source import DatasetStats
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import MarginLoss, loss_named
from elasticml.objectives.multiclass import MultiLoss, multiclass_loss
from elasticml.specification.algorithms import BatchGradient, settings_from_section

#: Serial that belongs to no point or direction.
_NONE: Final = -1
#: Bytes of the chunks of a block. They are still in a processor's last cache when the transposed
#: product reads them after the product; a call for each MiB would cost more than that saves.
_BLOCK_BYTES: Final = 2**22
#: Rows of the table of a solver's chunks: numbers of rows, serials of the point and the direction
#: of the cached products, and addresses of the cached arrays, 0 for no weights.
_ROWS, _POINT, _DIRECTION, _TARGETS, _WEIGHTS, _MARGINS, _DIRECTIONS, _SLOPES = range(8)


@dataclass(slots=True)
class _Cache:
    """A chunk's cached arrays between exchanges, (n_rows,); with several classes (classes, n_rows).

    Targets and weights are (n_rows,) in both cases.
    """

    targets: F64
    #: Sample weight times class weight; None for ones.
    weights: F64 | None
    weight: float
    #: ``X w`` at a point, and ``X p`` for a direction; their serials are in the solver's table.
    margins: F64
    directions: F64
    #: The chunk's column in the solver's table.
    place: int = _NONE
    #: ``s_i loss''(z_i, y_i)`` at the point with serial ``curved``, or what a loss of several
    #: classes has instead; empty before the first.
    curvatures: F64 = field(default_factory=lambda: np.empty(0))
    curved: int = _NONE
    #: Work array: slopes, or margins of a ``scratch`` exchange; never read by a later exchange.
    slopes: F64 = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive chunks of one layout: one compiled call visits all of them."""

    chunks: Sequence[Chunk]
    #: (8, m), a view of the solver's table.
    table: I64
    #: Where the bodies are; None if they are not needed.
    bodies: Bodies | None


class BatchGradientSolver:
    """Computes the operations of the exchanges. Its state is caches only.

    Apart from rounding, results do not depend on the caches.
    """

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        checked = settings_from_section(BatchGradient, settings)
        self._loss = MarginLoss(checked.loss, checked.terms)
        #: Number of models; the loss of several classes replaces that of one margin then.
        self._models = n_models(checked, facts)
        self._multi: MultiLoss | None = multiclass_loss(self._loss) if self._models > 1 else None
        self._facts = facts
        self._targets: Targets = targets_for(checked, facts)
        #: The chunks of the last exchange, their caches, table and weight.
        self._chunks: list[Chunk] = []
        self._caches: dict[ChunkId, _Cache] = {}
        self._table: I64 = np.empty((8, 0), np.int64)
        self._weight = 0.0
        #: Blocks of consecutive chunks in memory, by the first and the last one's place.
        self._known: dict[tuple[int, int], list[_Block]] = {}
        self._own = curvature_probes.OwnGradient()

    def warm_up(self, parallel: Parallel) -> None:
        """Compile the loops for the job's loss, or load their machine code from the cache."""
        self._loss.warm_up(with_dual=False)

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays named in ``work.returns``, summed over exactly these chunks.

        Chunks are split into as many runs of about equal numbers of rows as there are threads. The
        runs' sums are added in the order of the chunks: the result depends on the number of
        threads only.

        Raises
        ------
        LocalProtocolError
            When the operation is unknown.
        """
        if self._chunks != list(chunks):
            self._take(chunks)
        operations: dict[str, Operation] = {
            gradient_exchanges.GRADIENT: self._gradient,
            gradient_exchanges.PROBE: self._probe,
            gradient_exchanges.CURVATURE: self._probe,
            gradient_exchanges.PRODUCT: self._product,
            gradient_exchanges.HESSIAN: self._hessian,
            curvature_probes.SURVEY: self._survey,
            curvature_probes.SKETCH: self._survey,
            **column_statistics.operations(
                self._facts, lambda chunk: self._caches[chunk.id].weights
            ),
        }
        return operation_of(work, operations)(work, chunks, parallel)

    def _take(self, chunks: Sequence[Chunk]) -> None:
        """Make the table and the caches those of these chunks."""
        old, table = self._caches, np.full((8, len(chunks)), _NONE, np.int64)
        self._chunks, self._known = [], {}
        self._caches = {chunk.id: old[chunk.id] for chunk in chunks if chunk.id in old}
        del old
        for place, chunk in enumerate(chunks):
            cache = self._caches.get(chunk.id)
            if cache is None:
                cache = self._caches[chunk.id] = self._new_cache(chunk)
                release([chunk])  # reading its labels has loaded pages
            else:
                table[:, place] = self._table[:, cache.place]
            arrays = cache.targets, cache.weights, cache.margins, cache.directions, cache.slopes
            table[_ROWS, place] = chunk.n_rows
            table[_TARGETS:, place] = [0 if each is None else address(each) for each in arrays]
        for place, chunk in enumerate(chunks):
            self._caches[chunk.id].place = place
        self._table, self._chunks = table, list(chunks)
        self._weight = float(sum(self._caches[chunk.id].weight for chunk in chunks))

    def _blocks(self, part: Sequence[Chunk], *, bodies: bool = True) -> Iterator[_Block]:
        """Yield consecutive chunks: of one layout if they are in memory, else one at a time."""
        if store_of(part) is not None:
            self._known.clear()
            for chunk in stream_chunks(part, bodies=bodies):
                place = self._caches[chunk.id].place
                own = Bodies.of([chunk]) if bodies else None
                yield _Block([chunk], self._table[:, place : place + 1], own)
            return
        first = self._caches[part[0].id].place
        key = first, first + len(part)
        known = self._known.get(key)
        if known is None:
            known = []
            at = itertools.accumulate((chunk.nbytes for chunk in part), initial=0)
            keys = [(chunk.layout, i // _BLOCK_BYTES) for chunk, i in zip(part, at, strict=False)]
            for _, some in itertools.groupby(zip(keys, part, strict=True), lambda one: one[0]):
                chunks = [chunk for _, chunk in some]
                table = self._table[:, first : first + len(chunks)]
                known.append(_Block(chunks, table, Bodies.of(chunks)))
                first += len(chunks)
            self._known[key] = known
        yield from known

    def _at(self, point: int) -> list[Chunk]:
        """Return the chunks with cached margins at a point."""
        return list(itertools.compress(self._chunks, (self._table[_POINT] == point).tolist()))

    def _new_cache(self, chunk: Chunk) -> _Cache:
        labels = np.asarray(chunk.labels, np.float64)
        weights = self._targets.weights(labels, chunk.weights)
        return _Cache(
            targets=kept(chunk, np.ascontiguousarray(self._targets.of(labels), np.float64)),
            weights=None if weights is None else kept(chunk, np.ascontiguousarray(weights)),
            weight=float(chunk.n_rows) if weights is None else float(weights.sum()),
            margins=self._per_row(chunk),
            directions=self._per_row(chunk),
            slopes=self._per_row(chunk),
        )

    def _per_row(self, chunk: Chunk) -> F64:
        """Return an array for a number of each row and model, in a file if the chunk is there."""
        if self._multi is None:
            return row_array(chunk)
        return row_array(chunk, n=self._models).reshape(self._models, chunk.n_rows)

    # --- loss and gradient ------------------------------------------------------------------

    def _gradient(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        sent = np.ascontiguousarray(work.model["w"], np.float64)
        is_there, is_next = _progress(self._table, work.parameters)
        is_stale = ~(is_there | is_next)
        forward = _Forwards.of(self._facts, sent, self._models) if is_stale.any() else None

        def run(part: Sequence[Chunk]) -> tuple[float, _Adjoints]:
            adjoints = _Adjoints.of(self._facts, sent.size, self._models)
            loss = np.zeros(1)
            for block in self._blocks(part):
                assert block.bodies is not None
                self._write_slopes(block, self._margins(block, work.parameters, forward), loss)
                adjoints.add_all(block.bodies, block.table[_SLOPES])
            return float(loss[0]), adjoints

        loss = 0.0
        gradient = np.zeros(sent.size)
        for part_loss, adjoints in parallel.map(run, runs(chunks, parallel.n_threads)):
            loss += part_loss
            adjoints.result(gradient)
        weight = self._weight
        out = {"loss": np.array(loss), "gradient": gradient, "weight": np.array(weight)}
        if not work.parameters.get("scratch", False):
            ids = tuple(chunk.id for chunk in chunks)
            if "scatter" in work.returns:
                earlier = int(work.parameters["earlier"])
                out["scatter"] = self._own.compared(earlier, ids, gradient, weight)
            self._own.keep(int(work.parameters["point"]), ids, gradient)
        return out

    def _survey(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Compute the parts of a survey that the exchange names."""

        def weights_of(chunk: Chunk) -> F64:
            weights = self._caches[chunk.id].weights
            return np.ones(chunk.n_rows) if weights is None else weights

        out: dict[str, F64] = {}
        if "gradient" in work.returns:
            out |= self._gradient(work, chunks, parallel)
        if "majorant" in work.returns:
            (n_sent,) = work.returns["majorant"]
            # The Hessian of all classes is at most the smoothness times this for each of them.
            one = curvature_probes.majorant_of(
                chunks, weights_of, n_sent // self._models, self._facts, parallel
            )
            d = self._facts.n_columns
            out["majorant"] = np.concatenate(
                [np.tile(one[:d], self._models), np.tile(one[d:], self._models)]
            )
        if "products" in work.returns:
            out |= self._sketch(work, chunks, parallel)
        return out

    def _sketch(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Multiply the Hessian at ``work.model["at"]`` by every row of the basis.

        Arrays of the basis's size: one of sums per thread, their total and, for sequences, the
        basis folded into tables.
        """
        at = np.ascontiguousarray(work.model["at"], np.float64)
        basis = np.ascontiguousarray(work.model["basis"], np.float64)
        d, k = self._facts.n_columns, self._models
        there, *forwards = (_Forwards.of(self._facts, row, k) for row in (at, *basis))

        def run(part: Sequence[Chunk]) -> tuple[list[_Adjoints], F64, F64]:
            adjoints = [_Adjoints.of(self._facts, at.size, k) for _ in basis]
            mass = np.zeros(k)
            diagonals: list[F64] = []
            for chunk in stream_chunks(part):
                cache = self._caches[chunk.id]
                margins, curvatures = np.empty_like(cache.margins), np.empty_like(cache.margins)
                there(chunk, margins)
                self._write_curvatures(cache, margins, curvatures)
                diagonal = (
                    curvatures
                    if self._multi is None
                    else self._multi.diagonal(curvatures, cache.weights)
                )
                diagonals.append(diagonal)
                mass += [float(row.sum()) for row in diagonal.reshape(k, -1)]
                for forward, adjoint in zip(forwards, adjoints, strict=True):
                    forward(chunk, margins)
                    adjoint.add(chunk, self._times(cache, curvatures, margins))
            sums = np.zeros((2, k * d))
            for j in range(k):
                own = slice(j * d, (j + 1) * d)
                each = [diagonal.reshape(k, -1)[j] for diagonal in diagonals]
                total, squares = sums[0, own], sums[1, own]
                column_statistics.add_moments(part, each, self._facts, np.zeros(d), total, squares)
            return adjoints, sums, mass

        products, moments, mass = np.zeros(basis.shape), np.zeros((2, k * d)), np.zeros(k)
        for adjoints, sums, part_mass in parallel.map(run, runs(chunks, parallel.n_threads)):
            for j, adjoint in enumerate(adjoints):
                adjoint.result(products[j])
            moments += sums
            mass += part_mass
        total, squares = moments
        return {"products": products, "squares": squares, "total": total, "mass": mass}

    def _margins(
        self, block: _Block, parameters: Mapping[str, Any], forward: _Forwards | None
    ) -> I64:
        """Make the chunks' margins those at the point; return their addresses, (m,)."""
        table, bodies = block.table, block.bodies
        is_there, is_next = _progress(table, parameters)
        is_stale = ~(is_there | is_next)
        scratch = bool(parameters.get("scratch", False))
        margins: I64 = np.where(is_there, table[_MARGINS], table[_SLOPES if scratch else _MARGINS])
        if is_next.any():
            rows, at, directions = table[[_ROWS, _MARGINS, _DIRECTIONS]][:, is_next]
            _advance(rows * self._models, at, directions, float(parameters["step"]))
        if is_stale.any():
            assert forward is not None and bodies is not None
            forward.write_all(bodies.where(is_stale), margins[is_stale])
        if not scratch:
            table[_POINT] = parameters["point"]
        return margins

    def _write_slopes(self, block: _Block, margins: I64, loss: F64) -> None:
        """Add the losses of the rows to ``loss`` (1,), chunk after chunk; write their slopes."""
        table = block.table
        if self._multi is None:
            places = margins, table[_TARGETS], table[_WEIGHTS], table[_SLOPES]
            self._loss.values_and_slopes(table[_ROWS], *places, loss)
            return
        for chunk, is_cached in zip(block.chunks, margins == table[_MARGINS], strict=True):
            cache = self._caches[chunk.id]
            loss += self._multi.value_and_slope(
                cache.margins if is_cached else cache.slopes,
                cache.targets,
                cache.weights,
                cache.slopes,
            )

    # --- along a direction ------------------------------------------------------------------

    def _probe(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        sent = work.model.get("direction")
        point, direction = work.parameters["point"], work.parameters["direction"]
        forward = None if sent is None else _Forwards.of(self._facts, sent, self._models)
        asked = work.model.get("steps")
        steps = None if asked is None else np.array(asked, np.float64)

        def is_used(table: I64) -> NDArray[np.bool_]:
            at_point: NDArray[np.bool_] = table[_POINT] == point
            return at_point if forward else at_point & (table[_DIRECTION] == direction)

        def run(part: Sequence[Chunk]) -> F64:
            # Row 0: values, or the curvature; row 1: slopes.
            out = np.zeros((2, 1 if steps is None else steps.size))
            # With cached directions the chunks' bodies are not needed.
            for block in self._blocks(part, bodies=forward is not None):
                used = is_used(block.table)
                fresh = used & (block.table[_DIRECTION] != direction)
                if fresh.any():
                    assert forward is not None and block.bodies is not None
                    forward.write_all(block.bodies.where(fresh), block.table[_DIRECTIONS, fresh])
                    block.table[_DIRECTION, fresh] = direction
                self._add_along(block, used, steps, out)
            return out

        total = np.zeros((2, 1 if steps is None else steps.size))
        for part in parallel.map(run, runs(chunks, parallel.n_threads)):
            total += part
        uncached = np.array(float(self._table[_ROWS, ~is_used(self._table)].sum()))
        if steps is None:
            return {"curvature": total[0].reshape(()), "uncached": uncached}
        return {"values": total[0], "slopes": total[1], "uncached": uncached}

    def _add_along(
        self, block: _Block, used: NDArray[np.bool_], steps: F64 | None, out: F64
    ) -> None:
        """Add values and slopes along the directions, or the curvature, of some chunks; (2, J)."""
        if steps is not None and self._multi is None:
            fields = [_ROWS, _MARGINS, _DIRECTIONS, _TARGETS, _WEIGHTS]
            rows, *places = block.table[fields][:, used]
            self._loss.along_chunks(rows, *places, steps=steps, sums_out=out)
            return
        loss = self._multi or self._loss
        for chunk in itertools.compress(block.chunks, used.tolist()):
            cache = self._caches[chunk.id]
            rows = (cache.margins, cache.directions, cache.targets, cache.weights)
            if steps is None:
                out[0] += loss.curvature_along(*rows)
            else:
                loss.along(*rows, steps, out[0], out[1])

    # --- products with the Hessian ------------------------------------------------------------

    def _product(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Sum ``X' D (X v)`` in one pass over the rows: margins and D are cached."""
        sent = np.ascontiguousarray(work.model["v"], np.float64)
        point = int(work.parameters["point"])
        here = self._at(point)
        forward = _Forwards.of(self._facts, sent, self._models)

        def run(part: Sequence[Chunk]) -> _Adjoints:
            adjoints = _Adjoints.of(self._facts, sent.size, self._models)
            for chunk in stream_chunks(part):
                cache = self._caches[chunk.id]
                curvatures = self._curvatures(cache, chunk, point)
                if self._multi is None:
                    adjoints.add_product(chunk, forward, curvatures, cache.slopes)
                else:
                    forward(chunk, cache.slopes)
                    adjoints.add(chunk, self._times(cache, curvatures, cache.slopes))
            return adjoints

        hv = np.zeros(sent.size)
        for adjoints in parallel.map(run, runs(here, parallel.n_threads)):
            adjoints.result(hv)
        uncached = sum(chunk.n_rows for chunk in chunks) - sum(chunk.n_rows for chunk in here)
        return {"hv": hv, "uncached": np.array(float(uncached))}

    def _hessian(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Sum ``X~' D X~`` over the chunks with cached margins, or over a share of their rows."""
        point, share = int(work.parameters["point"]), float(work.parameters["share"])
        here = self._at(point)
        shift = work.model.get("shift")
        pairs = [(int(k), int(j)) for k, j in work.model["pairs"]]

        def run(part: Sequence[Chunk]) -> HessianSums:
            sums = HessianSums(len(pairs), self._facts.n_columns, shift)
            for chunk in stream_chunks(part):
                cache = self._caches[chunk.id]
                curvatures = self._curvatures(cache, chunk, point)
                if self._multi is None:
                    entries = curvatures[None]
                else:
                    each = [self._multi.entry(curvatures, cache.weights, *pair) for pair in pairs]
                    entries = np.array(each)
                sums.add(chunk, entries[:, : math.ceil(share * chunk.n_rows)])
            return sums

        total = {name: np.zeros(shape) for name, shape in work.returns.items()}
        for sums in parallel.map(run, runs(here, parallel.n_threads)):
            for name, array in sums.result().items():
                total[name] += array
        uncached = sum(chunk.n_rows for chunk in chunks) - sum(chunk.n_rows for chunk in here)
        return {**total, "uncached": np.array(float(uncached))}

    def _curvatures(self, cache: _Cache, chunk: Chunk, point: int) -> F64:
        if cache.curved != point:
            if cache.curvatures.size != cache.margins.size:
                cache.curvatures = self._per_row(chunk)
            self._write_curvatures(cache, cache.margins, cache.curvatures)
            cache.curved = point
        return cache.curvatures

    def _write_curvatures(self, cache: _Cache, margins: F64, out: F64) -> None:
        (self._multi or self._loss).curvature(margins, cache.targets, cache.weights, out)

    def _times(self, cache: _Cache, curvatures: F64, directions: F64) -> F64:
        """Replace the margins of a direction by the losses' Hessians times them."""
        if self._multi is None:
            directions *= curvatures
        else:
            self._multi.times(curvatures, cache.weights, directions)
        return directions


@dataclass(frozen=True, slots=True)
class _Forwards:
    """Products of chunks with the models of a vector as :class:`scaling.Columns` lays it out."""

    each: tuple[Forward, ...]
    offsets: tuple[float, ...]

    @staticmethod
    def of(facts: DatasetStats, sent: F64, models: int) -> _Forwards:
        """Prepare the products with a vector (n_sent,)."""
        sent, d = np.ascontiguousarray(sent, np.float64), facts.n_columns
        offsets = sent[models * d :].tolist() or [0.0] * models
        each = (make_forward(facts.layout, sent[k * d : (k + 1) * d]) for k in range(models))
        return _Forwards(tuple(each), tuple(offsets))

    def write_all(self, bodies: Bodies, at_out: I64) -> None:
        """Write the margins of the rows of chunks to the arrays at these addresses, (m,)."""
        for k, (forward, offset) in enumerate(zip(self.each, self.offsets, strict=True)):
            forward.write_all(bodies, offset, at_out + 8 * k * bodies.places[0])

    def __call__(self, chunk: Chunk, out: F64) -> None:
        """Write the margins of a chunk's rows, (n_rows,) or (models, n_rows)."""
        rows = (out,) if out.ndim == 1 else out
        for forward, offset, row in zip(self.each, self.offsets, rows, strict=True):
            forward(chunk, row)
            if offset != 0.0:
                row += offset


@dataclass(slots=True)
class _Adjoints:
    """Sums of the rows of chunks, each times its slope, for every model."""

    each: list[Adjoint]
    #: Sums of the slopes, (models,), if the vector has offsets.
    lasts: F64 | None

    @staticmethod
    def of(facts: DatasetStats, n_sent: int, models: int) -> _Adjoints:
        """Return empty sums for a vector (n_sent,)."""
        d = facts.n_columns
        each = [make_adjoint(facts.layout, d) for _ in range(models)]
        return _Adjoints(each, np.zeros(models) if n_sent > models * d else None)

    def add(self, chunk: Chunk, slopes: F64) -> None:
        """Add a chunk; slopes (n_rows,) or (models, n_rows)."""
        rows = (slopes,) if slopes.ndim == 1 else slopes
        for k, (adjoint, row) in enumerate(zip(self.each, rows, strict=True)):
            adjoint.add(chunk, row)
            if self.lasts is not None:
                self.lasts[k] += float(row.sum())

    def add_all(self, bodies: Bodies, at_slopes: I64) -> None:
        """Add chunks with their slopes at these addresses, (m,)."""
        rows = bodies.places[0]
        for k, adjoint in enumerate(self.each):
            at = at_slopes + 8 * k * rows
            adjoint.add_all(bodies, at)
            if self.lasts is not None:
                kernels.add_sums(rows, at, self.lasts[k : k + 1])

    def add_product(self, chunk: Chunk, forward: _Forwards, curvatures: F64, scratch: F64) -> None:
        """Add ``X' D X v`` of a chunk in one pass over its rows, for a single model."""
        self.each[0].add_product(chunk, forward.each[0], forward.offsets[0], curvatures, scratch)
        if self.lasts is not None:
            self.lasts[0] += float(scratch.sum())

    def result(self, out: F64) -> None:
        """Add the sums to a vector (n_sent,)."""
        d = (out.size - (0 if self.lasts is None else self.lasts.size)) // len(self.each)
        for k, adjoint in enumerate(self.each):
            adjoint.result(out[k * d : (k + 1) * d])
        if self.lasts is not None:
            out[len(self.each) * d :] += self.lasts


def _progress(
    table: I64, parameters: Mapping[str, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whose margins at the point are cached, and whose are one step from it; (m,) each."""
    is_there = table[_POINT] == parameters["point"]
    if "base" not in parameters or parameters.get("scratch", False):
        return is_there, np.zeros_like(is_there)
    is_next = (table[_POINT] == parameters["base"]) & (table[_DIRECTION] == parameters["direction"])
    return is_there, is_next & ~is_there


@kernel
def _advance(rows: I64, at_margins: I64, at_directions: I64, step: float) -> None:
    """Add ``step`` times its directions to the margins of each chunk; all arrays (m,)."""
    like = np.empty(0)
    for c in range(rows.size):
        margins = vector_at(at_margins[c], rows[c], like)
        directions = vector_at(at_directions[c], rows[c], like)
        for i in range(margins.size):
            margins[i] += step * directions[i]


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the kernels of line searches and second derivatives, or load their machine code."""
    one, out, none = np.ones(1), np.zeros(1), np.zeros(0, np.int64)
    loss_named("logistic").warm_up(with_dual=False)
    kernels.add_sums(none, none, out)
    _advance(none, none, none, 1.0)
    for chunk in chunks_to_warm_up(kind, dtype):
        w = np.ones(chunk.layout.n_columns)
        adjoint, forward = make_adjoint(chunk.layout, w.size), make_forward(chunk.layout, w)
        adjoint.add_product(chunk, forward, 0.0, one, out)
        if chunk.layout.kind != "sequence":
            for d in (1, 8):  # as dense blocks, and as pairs of entries
                HessianSums(1, d, None).add(chunk, np.ones((1, 1)))
