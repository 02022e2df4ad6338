"""Probes of the objective's curvature for ``absent: auto``: surveys and Hessian sketches.

``survey``
    Up, if requested: ``loss`` (), ``gradient`` (n_sent,), ``weight`` () at an earlier model ``w``,
    leaving caches unchanged; ``majorant`` (n_sent,), a diagonal above ``X' S X``.
``sketch``
    The same, and with ``basis`` (k, n_sent) the Hessian H at the model ``at``: ``products``
    (k, n_sent), its products with each row of the basis; ``squares`` (d,), ``total`` (d,) and
    ``mass`` (), sums of ``h_i x_ij^2``, ``h_i x_ij`` and ``h_i`` over rows, h the losses' second
    derivatives.

A survey takes one to three passes over the rows, a sketch about sixty. They have different
operation names because a member that takes far longer than the median of the operation is treated
as stuck.

Lost examples cannot be asked for their share. It is the difference between a sum over all examples
and the same sum over the survivors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange, Parallel, Work
from elasticml.algorithms.batch_gradient.stand_ins import Curvature, nystrom
from elasticml.algorithms.cocoa.second_moment_bounds import add_diagonals
from elasticml.algorithms.column_statistics import add_moments
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Adjoint, make_adjoint, make_forward
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.data.source import DatasetStats
from elasticml.ids import ChunkId

SURVEY: Final = "survey"
SKETCH: Final = "sketch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The model and the basis of a Hessian sketch."""

    serial: int
    #: Shape (n_model,).
    w: F64
    #: Shape (k, n_model), orthonormal rows.
    basis: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Products of a Hessian over a set of examples, in the trained model's coordinates."""

    #: Shapes (k, n_model), (n_model,).
    products: F64
    diagonal: F64

    def minus(self, part: Sketch) -> Sketch:
        """Return the sketch of the examples in this sum and not in ``part``."""
        return Sketch(
            products=self.products - part.products, diagonal=self.diagonal - part.diagonal
        )

    def curvature(self, basis: F64) -> Curvature:
        """Return the approximation of the Hessian from these products."""
        return nystrom(basis, self.products, self.diagonal)


def survey_exchange(
    columns: Columns,
    *,
    w: F64 | None = None,
    point: int = -1,
    probes: Probes | None = None,
    majorant: bool = False,
    correct: bool = False,
) -> Exchange:
    """Return the exchange for a gradient at an earlier model, a Hessian sketch, or the majorant."""
    n, d = columns.n_sent, columns.n_columns
    model: dict[str, F64] = {}
    returns: dict[str, tuple[int, ...]] = {}
    parameters: dict[str, int | bool] = {"scratch": True, "point": point}
    if w is not None:
        model["w"] = columns.down(w)
        returns |= {"loss": (), "gradient": (n,), "weight": ()}
    if majorant:
        returns["majorant"] = (n,)
    if probes is not None:
        model["at"] = columns.down(probes.w)
        model["basis"] = np.array([columns.down(row) for row in probes.basis])
        parameters["sketch"] = probes.serial
        returns |= {"products": model["basis"].shape, "squares": (d,), "total": (d,), "mass": ()}
    return Exchange(
        operation=SURVEY if probes is None else SKETCH,
        model=model,
        returns=returns,
        parameters=parameters,
        phase="correct" if correct else "compute",
    )


def read_sketch(columns: Columns, arrays: Arrays) -> Sketch:
    """Convert received arrays to a sketch in the coordinates of the trained model."""
    mass = float(arrays["mass"])
    diagonal = np.empty(columns.n_model)
    each = diagonal[: columns.n_columns]
    each[:] = arrays["squares"]
    if columns.shift is not None:
        each += columns.shift * (columns.shift * mass - 2.0 * arrays["total"])
    if columns.factor is not None:
        each *= columns.factor**2
    if columns.intercept:
        diagonal[-1] = columns.constant**2 * mass
    products = np.array([columns.up(row) for row in np.asarray(arrays["products"])])
    return Sketch(products=products, diagonal=diagonal)


# --- a member's share ---------------------------------------------------------------------------


@dataclass(slots=True)
class OwnGradient:
    """A member's last gradient, for comparison with its next: see :mod:`likeness`."""

    _point: int = -1
    _chunks: tuple[ChunkId, ...] = ()
    _gradient: F64 = field(default_factory=lambda: np.empty(0))

    def keep(self, point: int, chunks: tuple[ChunkId, ...], gradient: F64) -> None:
        """Store a gradient (n_sent,) over these chunks at the point with this serial."""
        self._point, self._chunks, self._gradient = point, chunks, gradient.copy()

    def compared(
        self, point: int, chunks: tuple[ChunkId, ...], gradient: F64, weight: float
    ) -> F64:
        """Return ``|y|^2 / weight`` and the weight, (2,), for the change y since an earlier point.

        Zeros if the stored gradient belongs to another point or to other chunks.
        """
        if (self._point, self._chunks) != (point, chunks) or weight <= 0.0:
            return np.zeros(2)
        change = gradient - self._gradient
        return np.array([float(change @ change) / weight, weight])


def majorant_of(
    chunks: Sequence[Chunk],
    weights_of: Callable[[Chunk], F64],
    n_sent: int,
    facts: DatasetStats,
    parallel: Parallel,
) -> F64:
    """Sum ``s_i |x_ij| |x_i|_1`` over rows, (n_sent,); the offset counts as a column of ones."""
    has_offset = n_sent > facts.n_columns

    def run(part: Sequence[Chunk]) -> F64:
        sums, ones = np.zeros((1, n_sent)), np.ones(n_sent)
        for chunk in stream_chunks(part):
            one_bin = np.zeros(chunk.n_rows, np.int64)
            add_diagonals(chunk, one_bin, weights_of(chunk), ones, has_offset, sums)
        return sums.reshape(n_sent)

    out = np.zeros(n_sent)
    for part in parallel.map(run, runs(chunks, parallel.n_threads)):
        out += part
    return out


def sketch_of(
    work: Work,
    chunks: Sequence[Chunk],
    second_derivatives: Callable[[Chunk, F64], F64],
    facts: DatasetStats,
    parallel: Parallel,
) -> Arrays:
    """Multiply the Hessian at ``work.model["at"]`` by every row of the basis.

    Arrays of the basis's size: one of sums per thread, their total and, for sequences, the basis
    folded into tables.

    Parameters
    ----------
    second_derivatives : callable
        (chunk, margins) -> ndarray (n_rows,), weights included, new.
    """
    at = np.ascontiguousarray(work.model["at"], np.float64)
    basis = np.ascontiguousarray(work.model["basis"], np.float64)
    d, n_sent = facts.n_columns, at.size
    forwards = [make_forward(facts.layout, row[:d]) for row in (at, *basis)]
    offsets = [float(row[d]) if n_sent > d else 0.0 for row in (at, *basis)]

    def run(part: Sequence[Chunk]) -> tuple[list[Adjoint], F64, F64, float]:
        adjoints = [make_adjoint(facts.layout, d) for _ in basis]
        lasts, sums = np.zeros(len(basis)), np.zeros((2, d))
        mass = 0.0
        curvatures = []
        for chunk in stream_chunks(part):
            margins = np.empty(chunk.n_rows)
            forwards[0](chunk, margins)
            h = second_derivatives(chunk, margins + offsets[0])
            mass += float(h.sum())
            curvatures.append(h)
            for j, adjoint in enumerate(adjoints):
                forwards[j + 1](chunk, margins)
                weighted = h * (margins + offsets[j + 1])
                adjoint.add(chunk, weighted)
                if n_sent > d:
                    lasts[j] += float(weighted.sum())
        add_moments(part, curvatures, facts, sums[0], sums[1])
        return adjoints, lasts, sums, mass

    products, moments, mass = np.zeros(basis.shape), np.zeros((2, d)), 0.0
    for adjoints, lasts, sums, part_mass in parallel.map(run, runs(chunks, parallel.n_threads)):
        for j, adjoint in enumerate(adjoints):
            adjoint.result(products[j, :d])
        if n_sent > d:
            products[:, d] += lasts
        moments += sums
        mass += part_mass
    total, squares = moments
    return {"products": products, "squares": squares, "total": total, "mass": np.array(mass)}
