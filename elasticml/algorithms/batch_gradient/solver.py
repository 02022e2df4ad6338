"""The member's half: sums of losses and derivatives over its chunks, with cached margins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from elasticml.algorithms import column_statistics
from elasticml.algorithms.base import Arrays, Operation, Parallel, Work, operation_of
from elasticml.algorithms.batch_gradient import curvature_probes, gradient_exchanges
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.targets import Targets, targets_for
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Adjoint, Forward, make_adjoint, make_forward
from elasticml.data.out_of_core.store import release, stream_chunks
from elasticml.data.source import DatasetStats
from elasticml.ids import ChunkId
from elasticml.objectives.losses import loss_named
from elasticml.specification.algorithms import BatchGradient, settings_from_section

#: Serial that belongs to no point or direction.
_NONE: Final = -1


@dataclass(slots=True)
class _Cache:
    """A chunk's cached arrays between exchanges, each of shape (n_rows,)."""

    targets: F64
    #: Sample weight times class weight; None for ones.
    weights: F64 | None
    weight: float
    #: ``X w`` at the point with serial ``point``.
    margins: F64
    #: ``X p`` for the direction with serial ``direction``.
    directions: F64
    point: int = _NONE
    direction: int = _NONE
    #: ``s_i loss''(z_i, y_i)`` at the point with serial ``curved``; empty before the first.
    curvatures: F64 = field(default_factory=lambda: np.empty(0))
    curved: int = _NONE
    #: Work array: slopes, or margins of a ``scratch`` exchange; never read by a later exchange.
    slopes: F64 = field(default_factory=lambda: np.empty(0))


class BatchGradientSolver:
    """Computes the operations of :mod:`messages`. Its state is caches only.

    Apart from rounding, results do not depend on the caches.
    """

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        checked = settings_from_section(BatchGradient, settings)
        self._loss = loss_named(checked.loss, checked.loss_parameters)
        self._facts = facts
        self._targets: Targets = targets_for(checked, facts)
        self._caches: dict[ChunkId, _Cache] = {}
        self._own = curvature_probes.OwnGradient()
        #: Rows multiplied by a model or a direction so far: the work that the caches save.
        self.multiplied_rows = 0

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
        owned = {chunk.id for chunk in chunks}
        for id in [id for id in self._caches if id not in owned]:
            del self._caches[id]
        for chunk in chunks:
            if chunk.id not in self._caches:
                self._caches[chunk.id] = self._new_cache(chunk)
                release([chunk])  # reading its labels has loaded pages
        operations: dict[str, Operation] = {
            gradient_exchanges.GRADIENT: self._gradient,
            gradient_exchanges.PROBE: self._probe,
            gradient_exchanges.CURVATURE: self._probe,
            gradient_exchanges.PRODUCT: self._product,
            curvature_probes.SURVEY: self._survey,
            curvature_probes.SKETCH: self._survey,
            column_statistics.COLUMN_MAXABS: self._maxabs,
            column_statistics.COLUMN_MOMENTS: self._moments,
        }
        return operation_of(work, operations)(work, chunks, parallel)

    def _new_cache(self, chunk: Chunk) -> _Cache:
        labels = np.asarray(chunk.labels, np.float64)
        weights = self._targets.weights(labels, chunk.weights)
        return _Cache(
            targets=self._targets.of(labels),
            weights=weights,
            weight=float(chunk.n_rows) if weights is None else float(weights.sum()),
            margins=np.empty(chunk.n_rows),
            directions=np.empty(chunk.n_rows),
            slopes=np.empty(chunk.n_rows),
        )

    # --- loss and gradient ------------------------------------------------------------------

    def _gradient(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        sent = np.ascontiguousarray(work.model["w"], np.float64)
        d = self._facts.n_columns
        offset = float(sent[d]) if sent.size > d else 0.0
        stale = [chunk for chunk in chunks if not self._is_current(chunk, work.parameters)]
        forward = make_forward(self._facts.layout, sent[:d]) if stale else None
        self.multiplied_rows += sum(chunk.n_rows for chunk in stale)

        def run(part: Sequence[Chunk]) -> tuple[float, float, Adjoint]:
            adjoint = make_adjoint(self._facts.layout, d)
            loss, slope_sum = 0.0, 0.0
            for chunk in stream_chunks(part):
                cache = self._caches[chunk.id]
                margins = self._margins(chunk, work.parameters, forward, offset)
                loss += self._loss.value_and_slope(
                    margins, cache.targets, cache.weights, cache.slopes
                )
                adjoint.add(chunk, cache.slopes)
                if sent.size > d:
                    slope_sum += float(cache.slopes.sum())
            return loss, slope_sum, adjoint

        loss = 0.0
        gradient = np.zeros(sent.size)
        for part_loss, slope_sum, adjoint in parallel.map(run, runs(chunks, parallel.n_threads)):
            loss += part_loss
            adjoint.result(gradient[:d])
            if sent.size > d:
                gradient[d] += slope_sum
        weight = float(sum(self._caches[chunk.id].weight for chunk in chunks))
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

        def second_derivatives(chunk: Chunk, margins: F64) -> F64:
            cache, out = self._caches[chunk.id], np.empty(chunk.n_rows)
            self._loss.curvature(margins, cache.targets, cache.weights, out)
            return out

        out: dict[str, F64] = {}
        if "gradient" in work.returns:
            out |= self._gradient(work, chunks, parallel)
        if "majorant" in work.returns:
            (n_sent,) = work.returns["majorant"]
            out["majorant"] = curvature_probes.majorant_of(
                chunks, weights_of, n_sent, self._facts, parallel
            )
        if "products" in work.returns:
            out |= curvature_probes.sketch_of(
                work, chunks, second_derivatives, self._facts, parallel
            )
        return out

    def _is_current(self, chunk: Chunk, parameters: Mapping[str, Any]) -> bool:
        """Whether the chunk's margins at the point are cached, or one step from it."""
        cache = self._caches[chunk.id]
        return cache.point == parameters["point"] or _can_advance(cache, parameters)

    def _margins(
        self, chunk: Chunk, parameters: Mapping[str, Any], forward: Forward | None, offset: float
    ) -> F64:
        cache = self._caches[chunk.id]
        if cache.point == parameters["point"]:
            return cache.margins
        scratch = bool(parameters.get("scratch", False))
        margins = cache.slopes if scratch else cache.margins
        if not scratch and _can_advance(cache, parameters):
            margins += parameters["step"] * cache.directions
        else:
            assert forward is not None
            forward(chunk, margins)
            if offset != 0.0:
                margins += offset
        if not scratch:
            cache.point = parameters["point"]
        return margins

    # --- along a direction ------------------------------------------------------------------

    def _probe(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        d = self._facts.n_columns
        sent = work.model.get("direction")
        point, direction = work.parameters["point"], work.parameters["direction"]
        here = [chunk for chunk in chunks if self._caches[chunk.id].point == point]
        forward, offset = None, 0.0
        if sent is None:
            here = [chunk for chunk in here if self._caches[chunk.id].direction == direction]
        else:
            sent = np.ascontiguousarray(sent, np.float64)
            forward = make_forward(self._facts.layout, sent[:d])
            offset = float(sent[d]) if sent.size > d else 0.0
            fresh = [c for c in here if self._caches[c.id].direction != direction]
            self.multiplied_rows += sum(chunk.n_rows for chunk in fresh)
        asked = work.model.get("steps")
        steps = None if asked is None else np.array(asked, np.float64)

        def run(part: Sequence[Chunk]) -> F64:
            # Row 0: values, or the curvature; row 1: slopes.
            out = np.zeros((2, 1 if steps is None else steps.size))
            # With cached directions the chunks' bodies are not needed.
            for chunk in part if forward is None else stream_chunks(part):
                cache = self._caches[chunk.id]
                if cache.direction != direction:
                    assert forward is not None
                    forward(chunk, cache.directions)
                    if offset != 0.0:
                        cache.directions += offset
                    cache.direction = int(direction)
                rows = (cache.margins, cache.directions, cache.targets, cache.weights)
                if steps is None:
                    out[0] += self._loss.curvature_along(*rows)
                else:
                    self._loss.along(*rows, steps, out[0], out[1])
            return out

        total = np.zeros((2, 1 if steps is None else steps.size))
        for part in parallel.map(run, runs(here, parallel.n_threads)):
            total += part
        uncached = sum(chunk.n_rows for chunk in chunks) - sum(chunk.n_rows for chunk in here)
        if steps is None:
            return {"curvature": total[0].reshape(()), "uncached": np.array(float(uncached))}
        return {"values": total[0], "slopes": total[1], "uncached": np.array(float(uncached))}

    # --- products with the Hessian ------------------------------------------------------------

    def _product(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Sum ``X' D (X v)`` in one pass over the rows: margins and D are cached."""
        d = self._facts.n_columns
        sent = np.ascontiguousarray(work.model["v"], np.float64)
        offset = float(sent[d]) if sent.size > d else 0.0
        point = work.parameters["point"]
        here = [chunk for chunk in chunks if self._caches[chunk.id].point == point]
        forward = make_forward(self._facts.layout, sent[:d])
        self.multiplied_rows += sum(chunk.n_rows for chunk in here)

        def run(part: Sequence[Chunk]) -> tuple[float, Adjoint]:
            adjoint = make_adjoint(self._facts.layout, d)
            last = 0.0
            for chunk in stream_chunks(part):
                cache = self._caches[chunk.id]
                curvatures = self._curvatures(cache)
                adjoint.add_product(chunk, forward, offset, curvatures, cache.slopes)
                if sent.size > d:
                    last += float(cache.slopes.sum())
            return last, adjoint

        hv = np.zeros(sent.size)
        for last, adjoint in parallel.map(run, runs(here, parallel.n_threads)):
            adjoint.result(hv[:d])
            if sent.size > d:
                hv[d] += last
        uncached = sum(chunk.n_rows for chunk in chunks) - sum(chunk.n_rows for chunk in here)
        return {"hv": hv, "uncached": np.array(float(uncached))}

    def _curvatures(self, cache: _Cache) -> F64:
        if cache.curved != cache.point:
            if cache.curvatures.size != cache.margins.size:
                cache.curvatures = np.empty_like(cache.margins)
            self._loss.curvature(cache.margins, cache.targets, cache.weights, cache.curvatures)
            cache.curved = cache.point
        return cache.curvatures

    # --- columns ----------------------------------------------------------------------------

    def _maxabs(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        return column_statistics.largest_values(chunks, self._facts, parallel)

    def _moments(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        weighted = bool(work.parameters["weighted"])

        def coefficients(chunk: Chunk) -> F64:
            weights = self._caches[chunk.id].weights
            return weights if weighted and weights is not None else np.ones(chunk.n_rows)

        return column_statistics.moments(chunks, self._facts, parallel, coefficients)


def _can_advance(cache: _Cache, parameters: Mapping[str, Any]) -> bool:
    return (
        "base" in parameters
        and cache.point == parameters["base"]
        and cache.direction == parameters["direction"]
    )
