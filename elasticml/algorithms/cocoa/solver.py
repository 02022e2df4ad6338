"""The member's half of CoCoA: steps of its dual variables, and its part of certificates.

The dual variables are in a chunk's state, with their pending step; they travel with the chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from elasticml.algorithms.cocoa.chunk_pointers import ChunkCaches, Piece, stored_of
from elasticml.algorithms.cocoa.coordinates import Coordinates, Settling
from elasticml.algorithms.cocoa.device_selection import Device, check_driver, device_of
from elasticml.algorithms.cocoa.dual_blocks import (
    DualBlock,
    HeldChunk,
    divided,
    write_coefficients,
)
from elasticml.algorithms.cocoa.frozen_loss_bound import MOMENTS, BoundPlan, plan_statistics
from elasticml.algorithms.cocoa.line_search import products
from elasticml.algorithms.cocoa.local_pass import DualSolver, LocalSolver, PassOptions, PassRequest
from elasticml.algorithms.cocoa.rows import section_of_class
from elasticml.algorithms.cocoa.scaled_chunks import scaled_chunk
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.algorithms.one_against_rest import ClassesSolver
from elasticml.algorithms.parallel import map_chunks, runs
from elasticml.algorithms.scaling import Columns
from elasticml.algorithms.targets import Targets, n_models, offset_column, targets_for
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.kernels import add_sums
from elasticml.data.chunks.products import Adjoint, Forward, make_adjoint, make_forward
from elasticml.data.out_of_core.store import kept, release, row_array, store_of, stream_chunks
from elasticml.data.source import DatasetStats
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import CoCoA, settings_from_section


@dataclass(slots=True)
class _CertificateSums:
    """Sums of a certificate over a thread's chunks."""

    adjoint: Adjoint
    binned: dict[str, F64]
    #: Primal, dual, weight, unset rows.
    values: F64 = field(default_factory=lambda: np.zeros(4))
    #: The sum of the coefficients, (1,).
    constant: F64 = field(default_factory=lambda: np.zeros(1))


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
    """

    def __init__(
        self, settings: Mapping[str, Any], facts: DatasetStats, number: int | None = None
    ) -> None:
        self._settings = settings_from_section(CoCoA, settings)
        self._facts = facts
        self._targets: Targets = targets_for(self._settings, facts, number)
        self._offset = offset_column(self._settings, facts)
        self._duals = Coordinates("alpha", "" if number is None else f"{number}/")
        #: The solvers of all classes, which share scaled copies of chunks.
        self.siblings: Sequence[CocoaSolver] = ()
        self._loss = MarginLoss(self._settings.loss, self._settings.terms)
        self._constant = self._settings.intercept_scaling if self._settings.intercept else 0.0
        #: The chunks of the last exchange, and what is held of them.
        self._chunks: list[Chunk] = []
        self._n_rows = 0
        self._held: dict[ChunkId, HeldChunk] = {}
        #: All of them in blocks, or those that were up to date in the last pass; and its pieces.
        self._blocks: list[DualBlock] = []
        self._pieces: tuple[Piece, ...] = ()
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
        caches: ChunkCaches | None = None
        if self._device == "cuda":
            from elasticml.algorithms.cocoa.cuda_solver import cuda_solvers

            # Rows stay on their device.
            solvers = cuda_solvers(n, loss=self._loss, dtype=dtype, intercept_scaling=scaling)
        else:
            n = n or n_nodes
            # The papers have no groups between which chunks could move.
            caches = None if self._settings.is_paper or n == 1 else {}
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
                    caches=caches,
                )
                for _ in range(n)
            ]
        if len(solvers) == 1:
            return solvers[0]
        searches = self._settings.searches_line
        return GroupedSolver(solvers, loss=self._loss, searches=searches, caches=caches)

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
        if self._chunks != list(chunks):
            self._take(chunks)
        operations: dict[str, Operation] = {
            cocoa_exchanges.PASS: self._pass,
            cocoa_exchanges.CERTIFY: self._certify,
            cocoa_exchanges.LARGEST_ROW: self._largest_row,
            **column_statistics.operations(self._facts, lambda chunk: self._held[chunk.id].weights),
        }
        return operation_of(work, operations)(work, chunks, parallel)

    def _take(self, chunks: Sequence[Chunk]) -> None:
        """Hold these chunks and no others."""
        held, self._chunks, self._pieces, self._blocks = {}, [], (), []
        for chunk in chunks:
            entry = self._held.get(chunk.id)
            if entry is None or entry.chunk is not chunk:
                entry = self._hold(chunk)
                release([chunk])  # its labels were read
            held[chunk.id] = entry
        self._held, self._chunks = held, list(chunks)
        self._n_rows = sum(chunk.n_rows for chunk in chunks)

    def _hold(self, chunk: Chunk) -> HeldChunk:
        labels = np.asarray(chunk.labels, np.float64)
        weights = self._targets.weights(labels, chunk.weights)
        return HeldChunk(
            chunk=chunk,
            targets=kept(chunk, self._targets.of(labels)),
            weights=None if weights is None else kept(chunk, weights),
            weight=float(chunk.n_rows) if weights is None else float(weights.sum()),
        )

    def _moved(self, chunk: Chunk, alpha: F64, step: F64, gamma: float) -> F64:
        targets = self._held[chunk.id].targets
        return dual_blocks.moved(self._loss, targets, chunk, alpha, step, gamma)

    def _make_blocks(self, chunks: Sequence[Chunk], parallel: Parallel) -> None:
        """Put these chunks into blocks, so that threads have as much to do."""
        if sum(len(block.chunks) for block in self._blocks) != len(chunks):
            self._pieces, self._blocks = (), []
            for part in runs(chunks, parallel.n_threads):
                held = [self._held[chunk.id] for chunk in part]
                self._blocks += [DualBlock(self._duals, some) for some in divided(held)]

    def _settled(self, work: Work, parallel: Parallel) -> list[F64] | None:
        """Return the blocks' settled dual variables; None if a chunk is in no block."""
        if sum(len(block.chunks) for block in self._blocks) < len(self._chunks):
            return None
        exchange = Settling.of(work)

        def settled(block: DualBlock) -> F64 | None:
            return block.settled(self._loss, exchange)

        each = map_chunks(settled, self._blocks, self._n_rows, parallel)
        known = [alpha for alpha in each if alpha is not None]
        return known if len(known) == len(each) else None

    # --- steps ----------------------------------------------------------------------------------

    def _pass(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        v = np.ascontiguousarray(work.model["v"], np.float64)
        before = self._settled(work, parallel)
        if before is None:
            before = self._joined(work, chunks, parallel)
        if not self._pieces:
            for block in self._blocks:
                block.take([self._piece(chunk, work) for chunk in block.chunks])
            self._pieces = tuple(itertools.chain(*(block.pieces for block in self._blocks)))
        for block, alpha in zip(self._blocks, before, strict=True):
            block.begin(alpha)
        pieces = self._pieces
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
        ends = [
            block.end(alpha, self._loss, asked.serial)
            for block, alpha in zip(self._blocks, before, strict=True)
        ]
        # Added one after another, as if there were no blocks.
        sums = np.cumsum(np.concatenate([np.zeros((1, 2)), *ends]), axis=0)[-1]
        unset = self._n_rows - sum(block.n_rows for block in self._blocks)
        exact = bool(work.parameters["exact"])
        return {
            "dv": self._change(v.size, weight) if exact else update.dv,
            "dual": np.array(sums[0]),
            "curvature": np.array(sums[1]),
            "visited": np.array(float(update.visited)),
            "partitions": np.array(float(update.partitions)),
            "gap": np.array(update.gap),
            "groups": np.array(float(update.groups)),
            "dampings": np.array(update.dampings),
            "discarded": np.array(float(update.discarded)),
            "unset": np.array(float(unset)),
            ON_CUDA: np.array(float(update.visited if self._device == "cuda" else 0)),
        }

    def _joined(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> list[F64]:
        """Settle each chunk by itself, and make blocks of those that are up to date."""
        exchange = Settling.of(work)
        settled = map_chunks(
            lambda chunk: self._duals.settle(chunk, exchange, self._moved),
            chunks,
            self._n_rows,
            parallel,
        )
        if not all(settled):
            self._pieces, self._blocks = (), []
        self._make_blocks(list(itertools.compress(chunks, settled)), parallel)
        return [block.gathered() for block in self._blocks]

    def _change(self, size: int, weight: float) -> F64:
        """Return ``1/(l2 S) sum s_i step_i x_i`` in float64; rows with a zero step cost nothing."""
        d = self._facts.n_columns
        adjoint, out = make_adjoint(self._facts.layout, d), np.zeros(size)
        chunks = itertools.chain.from_iterable(block.chunks for block in self._blocks)
        bodies = stream_chunks([piece.chunk for piece in self._pieces])
        for piece, chunk, _ in zip(self._pieces, chunks, bodies, strict=True):
            step = self._duals.step(chunk).copy()
            if piece.weights is not None:
                step *= piece.weights
            if self._loss.is_classification:
                step *= piece.targets
            adjoint.add(piece.chunk, step)
            if size > d:
                out[d] += self._constant * float(step.sum())
        adjoint.result(out[:d])
        out /= self._settings.l2 * weight
        return out

    def _piece(self, chunk: Chunk, work: Work) -> Piece:
        held = self._held[chunk.id]
        if held.piece is None:
            rows, offsets = self._scaled_by_sibling(chunk), self._offsets(chunk)
            if rows is None:
                rows = scaled_chunk(chunk, work.model.get("factor"), work.model.get("shift"))
                if chunk.out_of_core is not None and rows is not chunk:
                    rows = chunk.out_of_core.add_form(rows)
                    release([chunk])
            held.piece = Piece(rows, held.targets, held.weights, row_array(chunk), offsets)
        return held.piece

    def _offsets(self, chunk: Chunk) -> F64 | None:
        """Return the rows' offsets, (n_rows,); the rows that a pass visits have zeros there."""
        if self._offset is None:
            return None
        unit, out = np.zeros(self._facts.n_columns), row_array(chunk)
        unit[self._offset] = 1.0
        make_forward(self._facts.layout, unit)(chunk, out)
        return out

    def _scaled_by_sibling(self, chunk: Chunk) -> Chunk | None:
        """Return the rows that the solver of another class visits for a chunk, or None."""
        for sibling in self.siblings:
            held = sibling._held.get(chunk.id)
            if held is not None and held.chunk is chunk and held.piece is not None:
                return held.piece.chunk
        return None

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
        is_settled = self._settle_blocks(work, chunks, parallel)
        #: Each chunk's contribution to the duality gap: DuHL's importance.
        importance: dict[ChunkId, float] = {}

        def run(part: Sequence[DualBlock]) -> _CertificateSums:
            adjoint = make_adjoint(self._facts.layout, d)
            sums = _CertificateSums(adjoint, {} if plan is None else plan.zeros())
            for rows in part if is_blank else _loaded(part):
                margins = self._margins(rows, forward, float(sent[d]) if sent.size > d else 0.0)
                if not is_settled:
                    sums.values[3] += self._give_duals(work, rows, margins)
                before = sums.values[0] - sums.values[1]
                coefficients = self._add_objectives(rows, margins, sums, reads=not is_blank)
                if plan is not None:
                    self._add_statistics(work, plan, rows, margins, sums.binned)
                if rows.chunks[0].out_of_core is not None:
                    growth = sums.values[0] - sums.values[1] - before
                    gap = growth + products(margins, coefficients)[0]
                    importance[rows.chunks[0].id] = gap
            return sums

        total, image = np.zeros(4), np.zeros(sent.size)
        binned = {} if plan is None else plan.zeros()
        for sums in parallel.map(run, runs(self._blocks, parallel.n_threads)):
            total += sums.values
            sums.adjoint.result(image[:d])
            if sent.size > d:
                image[d] += sums.constant[0]
            for name, values in sums.binned.items():
                binned[name] += values
        out_of_core = store_of(chunks)
        if out_of_core is not None:
            out_of_core.set_importance(importance)
        names = ("primal", "dual", "weight", "unset")
        parts = {name: np.array(value) for name, value in zip(names, total, strict=True)}
        return {**parts, "image": image, **binned}

    def _margins(self, rows: DualBlock, forward: Forward | None, offset: float) -> F64:
        if forward is None:
            return np.full(rows.n_rows, offset)
        margins = np.empty(rows.n_rows)
        forward.write_all(rows.bodies, offset, rows.places_in(margins))
        return margins

    def _settle_blocks(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> bool:
        """Settle all chunks at once; where they are out of core, each one when it is loaded."""
        settled = None if store_of(chunks) is not None else self._settled(work, parallel)
        if settled is None:
            return False
        for block, alpha in zip(self._blocks, settled, strict=True):
            block.write(alpha, alpha.copy(), int(work.parameters["serial"]))
        return True

    def _give_duals(self, work: Work, rows: DualBlock, margins: F64) -> int:
        """Settle the chunks, or fill in their dual variables; return the rows not up to date."""
        unset, exchange = 0, Settling.of(work)
        for chunk, place in zip(rows.chunks, rows.slices, strict=True):

            def made(chunk: Chunk = chunk, place: slice = place) -> F64:
                alpha = row_array(chunk)
                alpha[:] = 0.0
                if work.parameters["fill"] == "map":
                    targets = self._held[chunk.id].targets
                    self._loss.alpha_from_margin(margins[place], targets, alpha)
                return alpha

            if not self._duals.give(chunk, exchange, self._moved, made):
                unset += chunk.n_rows
        return unset

    def _add_objectives(
        self, rows: DualBlock, margins: F64, sums: _CertificateSums, *, reads: bool
    ) -> F64:
        """Add the chunks' losses, conjugates, weights and images; return the rows' coefficients."""
        alpha, coefficients = np.empty(rows.n_rows), np.empty(rows.n_rows)
        np.concatenate([self._duals.values(chunk) for chunk in rows.chunks], out=alpha)
        n, places = rows.rows, (rows.table[0], rows.table[1])
        at_alpha, at = rows.places_in(alpha), rows.places_in(coefficients)
        self._loss.values_and_slopes(n, rows.places_in(margins), *places, at, sums.values[0:1])
        self._loss.minus_conjugates(n, at_alpha, *places, sums.values[1:2])
        # One after another, as if there were no blocks.
        sums.values[2] = np.cumsum([sums.values[2], *rows.weights])[-1]
        write_coefficients(self._loss.is_classification, n, at_alpha, *places, at)
        if reads:
            sums.adjoint.add_all(rows.bodies, at)
        add_sums(n, at, sums.constant)
        return coefficients

    # --- statistics -----------------------------------------------------------------------------

    def _add_statistics(
        self, work: Work, plan: BoundPlan, rows: DualBlock, margins: F64, binned: dict[str, F64]
    ) -> None:
        columns, sent = self._columns(work), np.array(work.model["sent"], np.float64)
        for chunk, place in zip(rows.chunks, rows.slices, strict=True):
            held, own = self._held[chunk.id], margins[place]
            own = own * held.targets if self._loss.is_classification else own
            bound_statistics.add_statistics(
                plan, columns, sent, chunk, held.targets, held.weights, own, binned
            )

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
        targets = [float(np.abs(self._held[c.id].targets).max(initial=0.0)) for c in chunks]
        return {
            "rows": np.max([np.zeros(2), *maxima], axis=0),
            "target": np.array(max(targets, default=0.0)),
        }


def make_solver(settings: Mapping[str, Any], facts: DatasetStats) -> Solver:
    """Return the solver of a job: with more than two classes, one for each against the rest."""
    n = n_models(settings_from_section(CoCoA, settings), facts)
    if n == 1:
        return CocoaSolver(settings, facts)
    solvers = [CocoaSolver(section_of_class(settings, n, k), facts, k) for k in range(n)]
    for solver in solvers:
        solver.siblings = solvers
    return ClassesSolver(solvers)


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
