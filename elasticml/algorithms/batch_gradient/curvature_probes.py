"""Probes of the objective's curvature for ``absent: auto``: surveys and Hessian sketches.

``survey``
    Up, if requested: ``loss`` (), ``gradient`` (n_sent,), ``weight`` () at an earlier model ``w``,
    leaving caches unchanged; ``majorant`` (n_sent,), a diagonal above ``X' S X``.
``sketch``
    The same, and with ``basis`` (k, n_sent) the Hessian H at the model ``at``: ``products``
    (k, n_sent), its products with each row of the basis; ``squares`` (d,), ``total`` (d,) and
    ``mass`` (1,), sums of ``h_i x_ij^2``, ``h_i x_ij`` and ``h_i`` over rows, h the losses' second
    derivatives; with several classes one after the other, (classes d,) and (classes,).

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

from elasticml.algorithms.base import Arrays, Exchange, Parallel
from elasticml.algorithms.batch_gradient.stand_ins import Curvature, nystrom
from elasticml.algorithms.cocoa.bound_statistics import add_diagonals, matrices
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
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
    n, d = columns.n_sent, columns.n_coefficients
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
        if columns.fixed is not None:
            model["basis"][:, columns.fixed] = 0.0
        parameters["sketch"] = probes.serial
        returns |= {
            "products": model["basis"].shape,
            "squares": (d,),
            "total": (d,),
            "mass": (columns.models,),
        }
    return Exchange(
        operation=SURVEY if probes is None else SKETCH,
        model=model,
        returns=returns,
        parameters=parameters,
        phase="correct" if correct else "compute",
    )


def read_sketch(columns: Columns, arrays: Arrays) -> Sketch:
    """Convert received arrays to a sketch in the coordinates of the trained model."""
    mass = np.asarray(arrays["mass"])
    diagonal = np.empty(columns.n_model)
    shape = (columns.models, columns.n_columns)
    each = diagonal[: columns.n_coefficients].reshape(shape)
    each[:] = np.asarray(arrays["squares"]).reshape(shape)
    if columns.shift is not None:
        total = np.asarray(arrays["total"]).reshape(shape)
        each += columns.shift * (columns.shift * mass[:, None] - 2.0 * total)
        np.maximum(each, 0.0, out=each)  # a difference, of columns far from zero
    if columns.factor is not None:
        each *= columns.factor**2
    if columns.intercept:
        diagonal[columns.n_coefficients :] = columns.constant**2 * mass
    if columns.fixed is not None:
        diagonal[columns.fixed] = 0.0
    products = np.array([columns.up(row) for row in np.asarray(arrays["products"])])
    return Sketch(products=products, diagonal=diagonal)


# --- a member's share ---------------------------------------------------------------------------


@dataclass(slots=True)
class OwnGradient:
    """A member's last gradient, for comparison with its next: see ``scatter``."""

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
        with np.errstate(over="ignore"):  # a model that diverges is reported by the trainer
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
            weights = weights_of(chunk)
            for rows, matrix in matrices(chunk):
                one_bin = np.zeros(matrix.shape[0], np.int64)
                add_diagonals(matrix, one_bin, weights[rows], ones, has_offset, sums)
        return sums.reshape(n_sent)

    out = np.zeros(n_sent)
    for part in parallel.map(run, runs(chunks, parallel.n_threads)):
        out += part
    return out
