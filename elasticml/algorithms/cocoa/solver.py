"""The member's half of CoCoA: steps of its dual variables, and its part of certificates.

The dual variables are in a chunk's state, with their pending step; they travel with the chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticml.algorithms import column_statistics
from elasticml.algorithms.base import (
    ON_CUDA,
    Arrays,
    Operation,
    Parallel,
    Solver,
    Work,
    operation_of,
)
from elasticml.algorithms.cocoa import bound_statistics, cocoa_exchanges, dual_blocks, local_pass
from elasticml.algorithms.cocoa.chunk_pointers import ChunkCache, Piece, stored_of
from elasticml.algorithms.cocoa.coordinates import Coordinates, Settling, array_for
from elasticml.algorithms.cocoa.device_selection import Device, check_driver, device_of
from elasticml.algorithms.cocoa.dual_blocks import DualBlock, divided
from elasticml.algorithms.cocoa.frozen_loss_bound import MOMENTS, BoundPlan, plan_statistics
from elasticml.algorithms.cocoa.line_search import products
from elasticml.algorithms.cocoa.local_pass import DualSolver, LocalSolver, PassOptions, PassRequest
from elasticml.algorithms.cocoa.rows import section_of_class
from elasticml.algorithms.cocoa.scaled_chunks import scaled_chunk
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.algorithms.one_against_rest import ClassesSolver
from elasticml.algorithms.parallel import map_chunks, runs, sums_of
from elasticml.algorithms.scaling import Columns
from elasticml.algorithms.targets import Targets, n_models, offset_column, targets_for
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Forward, make_adjoint, make_forward
from elasticml.data.out_of_core.store import release, store_of, stream_chunks
from elasticml.data.source import DatasetStats
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import CoCoA, settings_from_section


class CocoaSolver:
    """Computes the exchanges that :mod:`elasticml.algorithms.cocoa.cocoa_exchanges` describes.

    Dual variables are in the chunks' state; everything kept here can be rebuilt from the chunks.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section.
    facts : DatasetStats
    number : int, optional
        The number of the class that is trained against the rest, of more than two.
    visited : dict, optional
        Chunks, and the scaled ones that passes visit in their place, by their id: the solvers of
        all classes share them.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        facts: DatasetStats,
        number: int | None = None,
        visited: dict[ChunkId, tuple[Chunk, Chunk]] | None = None,
    ) -> None:
        self._settings = settings_from_section(CoCoA, settings)
        self._facts = facts
        self._targets: Targets = targets_for(self._settings, facts, number)
        self._offset = offset_column(self._settings, facts)
        self._duals = Coordinates("alpha", "" if number is None else f"{number}/")
        self._visited = {} if visited is None else visited
        self._loss = MarginLoss(self._settings.loss, self._settings.terms)
        self._constant = self._settings.intercept_scaling if self._settings.intercept else 0.0
        #: The chunks of the last exchange, or those that were up to date in the last pass.
        self._blocks: list[DualBlock] = []
        #: By the rows that passes visit, those of the last one.
        self._caches: dict[Chunk, ChunkCache] = {}
        check_driver(self._settings.device)
        #: Created by the first pass: in its thread, compiling for a GPU delays nothing else.
        self._device: Device = "cpu"
        self._local: DualSolver | None = None

    def _local_solver(self, pieces: Sequence[Piece], parallel: Parallel) -> DualSolver:
        """Return the local solver; the first call chooses device and groups by its rows."""
        if self._local is None:
            stored = sum(stored_of(piece.chunk) for piece in pieces)
            has_no_kernel = self._offset is not None or self._settings.has_own_loss
            device = "cpu" if has_no_kernel else self._settings.device
            self._device = device_of(device, stored)
            self._local = self._made_local(self._facts.layout.dtype, parallel.n_nodes)
        return self._local

    def _made_local(self, dtype: str, n_nodes: int) -> DualSolver:
        scaling, n = self._constant or None, self._settings.given_groups
        solvers: Sequence[DualSolver]
        if self._device == "cuda":
            from elasticml.algorithms.cocoa.cuda_solver import cuda_solvers

            solvers = cuda_solvers(n, loss=self._loss, dtype=dtype, intercept_scaling=scaling)
        else:
            options = PassOptions(
                bucket=self._settings.given_bucket,
                shrink=self._settings.shrinks,
                skip=self._settings.skips,
            )
            solvers = [
                LocalSolver(
                    loss=self._loss,
                    dtype=dtype,
                    intercept_scaling=scaling,
                    options=options,
                )
                for _ in range(n or n_nodes)
            ]
        if len(solvers) == 1:
            return solvers[0]
        # Rows stay on their GPU, and the papers have no groups between which they could move.
        return GroupedSolver(
            solvers,
            loss=self._loss,
            searches=self._settings.searches_line,
            redeals=self._device == "cpu" and not self._settings.is_paper,
        )

    def warm_up(self, parallel: Parallel) -> None:
        """Compile the loops for the job's loss, or load their machine code from the cache."""
        dual_blocks.warm_up(self._loss)
        local_pass.warm_up(self._loss, self._facts.layout.dtype)

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays named in ``work.returns``, over exactly these chunks.

        Raises
        ------
        LocalProtocolError
            When the operation is unknown.
        """
        for id in self._visited.keys() - {chunk.id for chunk in chunks}:
            del self._visited[id]
        operations: dict[str, Operation] = {
            cocoa_exchanges.PASS: self._pass,
            cocoa_exchanges.CERTIFY: self._certify,
            cocoa_exchanges.LARGEST_ROW: self._largest_row,
            **column_statistics.operations(self._facts, self._weights),
        }
        return operation_of(work, operations)(work, chunks, parallel)

    def _weights(self, chunk: Chunk) -> F64 | None:
        return self._targets.weights(np.asarray(chunk.labels, np.float64), chunk.weights)

    def _make_blocks(self, chunks: Sequence[Chunk], parallel: Parallel) -> None:
        """Put exactly these chunks into blocks, so that threads have as much to do."""
        if [chunk for block in self._blocks for chunk in block.chunks] == list(chunks):
            return
        known = {block.chunks: block for block in self._blocks}
        parts = itertools.chain.from_iterable(
            divided(part) for part in runs(chunks, parallel.n_threads)
        )
        self._blocks = [known.get(tuple(some)) or DualBlock(some, self._targets) for some in parts]

    # --- steps ----------------------------------------------------------------------------------

    def _pass(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        v = np.ascontiguousarray(work.model["v"], np.float64)
        exchange, n_rows = Settling.of(work), sum(chunk.n_rows for chunk in chunks)
        self._make_blocks(self._duals.ready(chunks, exchange), parallel)
        for block in self._blocks:
            if not block.pieces:
                offsets = self._offsets(block)
                rows = [self._scaled(chunk, work) for chunk in block.chunks]
                caches = [self._caches.get(own) or ChunkCache() for own in rows]
                block.begin_pass(rows, offsets, caches)

        def begin(block: DualBlock) -> F64:
            alpha, _ = self._duals.settled(block.chunks, exchange)
            self._loss.clip(alpha, block.targets)
            block.alpha[:] = alpha
            return alpha

        before = map_chunks(begin, self._blocks, n_rows, parallel)
        pieces = list(itertools.chain.from_iterable(block.pieces for block in self._blocks))
        self._caches = {piece.chunk: piece.cache for piece in pieces}
        weight = float(work.parameters["weight"])
        local = self._local_solver(pieces, parallel)
        local.bind(pieces)
        asked = PassRequest(
            l2_total=self._settings.l2 * weight,
            total_weight=weight,
            damping=float(work.parameters["damping"]),
            epochs=float(work.parameters["local_epochs"]),
            enough=0.0 if self._settings.is_paper else local_pass.ENOUGH,
            seed=int(work.parameters["seed"]),
            serial=int(work.parameters["serial"]),
            searches=self._settings.searches_line,
            sigma=_sigma(work),
        )
        update = local.run(v, asked, parallel)
        sums, steps = np.zeros(2), []
        for block, alpha in zip(self._blocks, before, strict=True):
            step, own = block.step_from(alpha, self._loss)
            self._duals.write(block.chunks, alpha, asked.serial, step)
            sums += own
            steps.append(step)
        unset = n_rows - sum(block.n_rows for block in self._blocks)
        exact = bool(work.parameters["exact"])
        return {
            "dv": self._change(steps, v.size, weight) if exact else update.dv,
            "dual": np.array(sums[0]),
            "curvature": np.array(sums[1]),
            "visited": np.array(float(update.visited)),
            "partitions": np.array(float(update.partitions)),
            "gap": np.array(update.gap),
            "discarded": np.array(float(update.discarded)),
            "unset": np.array(float(unset)),
            ON_CUDA: np.array(float(update.visited if self._device == "cuda" else 0)),
        }

    def _change(self, steps: Sequence[F64], size: int, weight: float) -> F64:
        """Return ``1/(l2 S) sum s_i step_i x_i`` in float64; rows with a zero step cost nothing."""
        d = self._facts.n_columns
        adjoint, out = make_adjoint(self._facts.layout, d), np.zeros(size)
        rows: list[Chunk] = []
        parts: list[F64] = []
        for block, step in zip(self._blocks, steps, strict=True):
            own = block.coefficients(step, self._loss)
            rows += [piece.chunk for piece in block.pieces]
            parts += [own[part] for part in block.slices]
            if size > d:
                out[d] += self._constant * float(own.sum())
        # One stream, so that chunks on disk are read ahead.
        for chunk, part in zip(stream_chunks(rows), parts, strict=True):
            adjoint.add(chunk, part)
        adjoint.result(out[:d])
        out /= self._settings.l2 * weight
        return out

    def _scaled(self, chunk: Chunk, work: Work) -> Chunk:
        """Return the rows that a pass visits for a chunk."""
        original, rows = self._visited.get(chunk.id, (None, chunk))
        if original is chunk:
            return rows
        rows = scaled_chunk(chunk, work.model.get("factor"), work.model.get("shift"))
        if chunk.out_of_core is not None and rows is not chunk:
            rows = chunk.out_of_core.add_form(rows)
            release([chunk])
        self._visited[chunk.id] = chunk, rows
        return rows

    def _offsets(self, block: DualBlock) -> F64 | None:
        """Return the rows' offsets, (n_rows,); the rows that a pass visits have zeros there."""
        if self._offset is None:
            return None
        unit, out = np.zeros(self._facts.n_columns), array_for(block.chunks)
        unit[self._offset] = 1.0
        make_forward(self._facts.layout, unit).write_all(block.bodies, 0.0, block.places_in(out))
        release(block.chunks)
        return out

    # --- certificates ---------------------------------------------------------------------------

    def _certify(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        sent = np.array(work.model["sent"], np.float64)
        d = self._facts.n_columns
        forward = make_forward(self._facts.layout, sent[:d]) if np.any(sent[:d]) else None
        plan = self._plan(work)
        # A job's first certificate: all results are zero, whatever the rows are.
        is_blank = forward is None and plan is None and work.parameters["fill"] == "zero"
        is_blank = is_blank and all(self._duals.serial(chunk) is None for chunk in chunks)
        self._make_blocks(chunks, parallel)
        #: Each chunk's contribution to the duality gap: DuHL's importance.
        importance: dict[ChunkId, float] = {}

        def run(part: Sequence[DualBlock]) -> dict[str, F64]:
            adjoint, sums = make_adjoint(self._facts.layout, d), np.zeros(5)
            image, binned = np.zeros(sent.size), {} if plan is None else plan.zeros()
            for rows in part if is_blank else _loaded(part):
                margins = self._margins(rows, forward, float(sent[d]) if sent.size > d else 0.0)
                own, coefficients = self._objectives(work, rows, margins)
                sums += own
                if not is_blank:
                    adjoint.add_all(rows.bodies, rows.places_in(coefficients))
                if plan is not None:
                    self._add_statistics(work, plan, rows, margins, binned)
                if rows.chunks[0].out_of_core is not None:
                    gap = own[0] - own[1] + products(margins, coefficients)[0]
                    importance[rows.chunks[0].id] = float(gap)
            adjoint.result(image[:d])
            image[d:] = sums[4]
            names = ("primal", "dual", "weight", "unset")
            return {**dict(zip(names, map(np.array, sums), strict=False)), "image": image, **binned}

        parts = parallel.map(run, runs(self._blocks, parallel.n_threads) or [[]])
        out_of_core = store_of(chunks)
        if out_of_core is not None:
            out_of_core.set_importance(importance)
        return sums_of(parts)

    def _margins(self, rows: DualBlock, forward: Forward | None, offset: float) -> F64:
        if forward is None:
            return np.full(rows.n_rows, offset)
        margins = np.empty(rows.n_rows)
        forward.write_all(rows.bodies, offset, rows.places_in(margins))
        return margins

    def _objectives(self, work: Work, rows: DualBlock, margins: F64) -> tuple[F64, F64]:
        """Settle or make dual variables; return their sums, and the rows' coefficients.

        The sums (5,) are primal and dual objective, weight, rows that were not up to date, and
        coefficients.
        """
        exchange, loss, targets = Settling.of(work), self._loss, rows.targets

        def made(part: slice) -> F64:
            alpha = np.zeros(part.stop - part.start)
            if work.parameters["fill"] == "map":
                loss.alpha_from_margin(margins[part], targets[part], alpha)
            return alpha

        alpha, unset = self._duals.settled(rows.chunks, exchange, made)
        loss.clip(alpha, targets)
        self._duals.write(rows.chunks, alpha, exchange.serial)
        coefficients = rows.coefficients(alpha, loss)
        primal = loss.value_and_slope(margins, targets, rows.weights, np.empty(rows.n_rows))
        dual = loss.minus_conjugate(alpha, targets, rows.weights)
        return np.array([primal, dual, rows.weight, unset, coefficients.sum()]), coefficients

    # --- statistics -----------------------------------------------------------------------------

    def _add_statistics(
        self, work: Work, plan: BoundPlan, rows: DualBlock, margins: F64, binned: dict[str, F64]
    ) -> None:
        columns, sent = self._columns(work), np.array(work.model["sent"], np.float64)
        folded = margins * rows.targets if self._loss.is_classification else margins
        for chunk, part in zip(rows.chunks, rows.slices, strict=True):
            weights = None if rows.weights is None else rows.weights[part]
            own = rows.targets[part], weights, folded[part]
            bound_statistics.add_statistics(plan, columns, sent, chunk, *own, binned)

    def _plan(self, work: Work) -> BoundPlan | None:
        if MOMENTS not in work.returns:
            return None
        return plan_statistics(self._loss, work.model["sent"].size)

    def _columns(self, work: Work) -> Columns:
        return Columns(
            n_columns=self._facts.n_columns,
            intercept=self._settings.intercept,
            factor=work.model.get("factor"),
            shift=work.model.get("shift"),
            constant=self._settings.intercept_scaling,
        )

    def _largest_row(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        columns = self._columns(work)

        def run(part: Sequence[Chunk]) -> F64:
            maxima = [bound_statistics.row_maxima(chunk, columns) for chunk in stream_chunks(part)]
            return np.asarray(np.max(maxima, axis=0))

        maxima = parallel.map(run, runs(chunks, parallel.n_threads))
        self._make_blocks(chunks, parallel)
        targets = [float(np.abs(block.targets).max(initial=0.0)) for block in self._blocks]
        return {
            "rows": np.max([np.zeros(2), *maxima], axis=0),
            "target": np.array(max(targets, default=0.0)),
        }


def make_solver(settings: Mapping[str, Any], facts: DatasetStats) -> Solver:
    """Return the solver of a job: with more than two classes, one for each against the rest."""
    n = n_models(settings_from_section(CoCoA, settings), facts)
    if n == 1:
        return CocoaSolver(settings, facts)
    visited: dict[ChunkId, tuple[Chunk, Chunk]] = {}
    return ClassesSolver(
        [CocoaSolver(section_of_class(settings, n, k), facts, k, visited) for k in range(n)]
    )


def _loaded(blocks: Sequence[DualBlock]) -> Iterator[DualBlock]:
    """Yield blocks whose bodies are loaded: those out of core have one chunk each."""
    if store_of([block.chunks[0] for block in blocks]) is None:
        yield from blocks
        return
    chunks = stream_chunks([block.chunks[0] for block in blocks])
    for block, _ in zip(blocks, chunks, strict=True):
        yield block


def _sigma(work: Work) -> float | None:
    """Return the requested fixed sigma'; None if it follows from shares and damping."""
    fixed = float(work.parameters["sigma"])
    per_member = float(work.parameters["sigma_per_member"])
    return fixed or per_member * work.members or None
