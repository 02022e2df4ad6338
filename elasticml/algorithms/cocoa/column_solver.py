"""The member's half of primal CoCoA: steps of its coefficients, and its part of certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays, Operation, Parallel, Work, operation_of
from elasticml.algorithms.cocoa import cocoa_exchanges, column_blocks
from elasticml.algorithms.cocoa.column_blocks import (
    COEFS,
    MEANS,
    NORMS,
    ColumnBlock,
    mean_penalty,
    no_columns,
)
from elasticml.algorithms.cocoa.coordinates import Settling
from elasticml.algorithms.cocoa.local_descent import LocalDescent, Part
from elasticml.algorithms.cocoa.sweep_kernels import WeightedColumns
from elasticml.algorithms.parallel import runs, sums_of
from elasticml.arrays import F64
from elasticml.data.chunks.by_columns import ROOTS, TARGETS
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_adjoint
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.data.source import DatasetStats
from elasticml.ids import ChunkId
from elasticml.objectives.penalty_kernels import Penalty
from elasticml.specification.algorithms import PrimalCoCoA, settings_from_section


class PrimalCocoaSolver:
    """Computes the exchanges that the module ``cocoa_exchanges`` describes.

    Coefficients and column constants are in the chunks' state; everything kept here can be rebuilt
    from the chunks.
    """

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        self._settings = settings_from_section(PrimalCoCoA, settings)
        self._facts = facts
        self._blocks: dict[ChunkId, ColumnBlock] = {}

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays named in ``work.returns``, over exactly these chunks.

        Raises
        ------
        LocalProtocolError
            When the operation is unknown.
        """
        blocks = {}
        for chunk in chunks:
            block = self._blocks.get(chunk.id)
            if block is None or block.chunk is not chunk:
                block = ColumnBlock.of(chunk)
            blocks[chunk.id] = block
        self._blocks = blocks
        operations: dict[str, Operation] = {
            cocoa_exchanges.TARGETS: self._targets,
            cocoa_exchanges.COLUMNS: self._columns,
            cocoa_exchanges.PASS: self._pass,
            cocoa_exchanges.CERTIFY: self._certify,
            cocoa_exchanges.GATHER: self._gather,
        }
        return operation_of(work, operations)(work, chunks, parallel)

    # --- constants ----------------------------------------------------------------------------

    def _targets(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        return targets_of(chunks, work.returns["target"][0])

    def _columns(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        (d,) = work.returns["norms"]
        norms, means = np.zeros(d), np.zeros(d)
        for chunk in stream_chunks(chunks):
            self._begin(work, chunk)
            block = self._blocks[chunk.id]
            norms[block.numbers] = chunk.state[NORMS][block.features]
            means[block.numbers] = chunk.state[MEANS][block.features]
        return {"norms": norms, "means": means}

    def _begin(self, work: Work, chunk: Chunk) -> None:
        centred = bool(work.parameters["centred"])
        column_blocks.begin(chunk, self._root(work), centred=centred)

    def _root(self, work: Work) -> F64:
        root = work.model.get("root")
        return np.ones(self._facts.n_columns) if root is None else np.array(root)

    # --- steps --------------------------------------------------------------------------------

    def _pass(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        residual, root = np.array(work.model["residual"]), self._root(work)
        exchange = Settling.of(work)
        sigma = max(1.0, float(work.parameters["damping"]) * work.members)
        h = work.model.get("curvature")
        none = no_columns(root, None if h is None else np.array(h))
        centred, parts = bool(work.parameters["centred"]), []
        for chunk in stream_chunks(COEFS.ready(chunks, exchange)):
            block, (w, _) = self._blocks[chunk.id], COEFS.settled([chunk], exchange)
            COEFS.write([chunk], w, exchange.serial)
            parts.append(Part(block, w.copy(), block.weighted(none, centred=centred)))
        u, penalty = residual / sigma, self._penalty(work, sigma)
        descent = LocalDescent(parts=parts, u=u, penalty=penalty)
        seeds = (int(work.parameters["seed"]), int(work.parameters["serial"]))
        descent.run(float(work.parameters["local_epochs"]), np.random.default_rng(seeds))
        sizes, inner = np.zeros(2), np.zeros(2)
        for part in parts:
            old, step = COEFS.values(part.block.chunk), part.w - COEFS.values(part.block.chunk)
            before, after = (penalty.sizes(w) for w in (old, part.w))
            sizes += (float(before.sum()), float((after - before).sum()))
            inner += (float(old @ step), float(step @ step))
            COEFS.write([part.block.chunk], old, exchange.serial, step)
        columns = sum(part.block.features.size for part in parts)
        unset = sum(block.features.size for block in self._blocks.values()) - columns
        return {
            "dv": self._moved(descent, residual / sigma, none),
            "sizes": sizes,
            "inner": inner,
            "visited": np.array(float(descent.visited)),
            "partitions": np.array(1.0 if columns else 0.0),
            "unset": np.array(float(unset)),
        }

    def _penalty(self, work: Work, parts: float = 1.0) -> Penalty:
        """Return the penalty of the sum over examples, divided into parts."""
        return mean_penalty(self._settings).times(float(work.parameters["weight"]), parts)

    def _moved(self, descent: LocalDescent, first: F64, none: WeightedColumns) -> F64:
        """Return the change of the predictions since the slope was ``first``, (n,)."""
        if not none.h.size:
            return first - descent.u - descent.shift * none.root
        adjoint, offset = make_adjoint(self._facts.layout, first.size), 0.0
        for part in descent.parts:
            step = COEFS.step(part.block.chunk)
            if step.any():
                adjoint.add(part.block.chunk, step)
                offset += float(part.columns.means @ step)
        moved = np.zeros(first.size)
        adjoint.result(moved)
        return moved - offset * none.root

    # --- certificates -------------------------------------------------------------------------

    def _certify(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        residual, root = np.array(work.model["residual"]), self._root(work)
        along_root = float(root @ residual)
        n, (d,) = residual.size, work.returns["coef"]
        sent_coef = np.array(work.model["coef"])
        has_parts = bool(work.parameters["parts"])

        def run(part: Sequence[Chunk]) -> dict[str, F64]:
            parts = {name: np.zeros(d) for name in ("coef", "slopes", "here")}
            image, former = (make_adjoint(self._facts.layout, n) for _ in range(2))
            offsets, unset = np.zeros(2), 0
            for chunk in stream_chunks(part):
                block = self._blocks[chunk.id]
                unset += self._settle(work, block, sent_coef)
                w, means = COEFS.values(chunk), chunk.state[MEANS]
                image.add(chunk, w)
                offsets[0] += float(means @ w)
                if has_parts:
                    old = block.own(sent_coef)
                    former.add(chunk, old)
                    offsets[1] += float(means @ old)
                parts["coef"][block.numbers] = w[block.features]
                parts["slopes"][block.numbers] = block.correlations(residual, along_root)
                parts["here"][block.numbers] = 1.0
            sums = {"image": np.zeros(n), "former": np.zeros(n)}
            for k, (name, adjoint) in enumerate((("image", image), ("former", former))):
                adjoint.result(sums[name])
                sums[name] -= offsets[k] * root
            return {**parts, **sums, "unset": np.array(float(unset))}

        parts = parallel.map(run, runs(chunks, parallel.n_threads) or [[]])
        return {name: a for name, a in sums_of(parts).items() if name in work.returns}

    def _settle(self, work: Work, block: ColumnBlock, sent_coef: F64) -> int:
        """Settle a chunk, or fill in its coefficients; return how many were not up to date."""
        if NORMS not in block.chunk.state:
            self._begin(work, block.chunk)
        exchange, taken = Settling.of(work), work.model.get("taken")
        if taken is not None:
            values, unset = block.own(np.asarray(taken)), 0
        else:
            values, unset = COEFS.settled([block.chunk], exchange, lambda _: block.own(sent_coef))
        COEFS.write([block.chunk], values, exchange.serial)
        return block.features.size if unset else 0

    # --- columns ------------------------------------------------------------------------------

    def _gather(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        features = np.asarray(work.model["wanted"]).astype(np.int64)
        arrays = {name: np.zeros(shape) for name, shape in work.returns.items()}
        sorter = np.argsort(features)
        for chunk in stream_chunks(chunks):
            block = self._blocks[chunk.id]
            own = np.flatnonzero(np.isin(block.numbers, features))
            places = sorter[np.searchsorted(features, block.numbers[own], sorter=sorter)]
            for row, place in zip(block.features[own], places, strict=True):
                _add_row(chunk, int(row), arrays["columns"][place])
                arrays["found"][place] = 1.0
        return arrays


def targets_of(chunks: Sequence[Chunk], n: int) -> dict[str, F64]:
    """Return ``target`` (n,), ``root`` (n,) and ``counts`` (3,) of the chunks of n examples.

    They are zeros where no chunk has them; see ``targets`` in ``cocoa_exchanges``.
    """
    vectors = {TARGETS: np.zeros(n), ROOTS: np.zeros(n)}
    counts = np.zeros(3)
    for chunk in stream_chunks(chunks):
        counts[0] += np.count_nonzero(chunk.labels >= 0.0)
        for place, label in enumerate((TARGETS, ROOTS), start=1):
            for row in np.flatnonzero(chunk.labels == label):
                counts[place] += 1
                _add_row(chunk, int(row), vectors[label])
    return {"target": vectors[TARGETS], "root": vectors[ROOTS], "counts": counts}


def _add_row(chunk: Chunk, row: int, out: F64) -> None:
    if chunk.layout.kind == "dense":
        out += chunk.values[row]
        return
    stored = slice(int(chunk.indptr[row]), int(chunk.indptr[row + 1]))
    out[chunk.indices[stored]] += 1.0 if chunk.values.size == 0 else chunk.values[stored]
