"""Columns gathered at the driver, where a small model is finished.

Columns that are alike and on different members are corrected by each of them, which takes many
rounds; together in one place they take one. The driver asks for the columns of the model and for
those nearest to it, and solves for these alone with all others at zero. Whether the result is the
optimum, the next certificate over all columns tells, which is made by the members as ever.

Source: Massias, Gramfort and Salmon (2018) for working sets by the distance from the constraint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.algorithms.columns.classifier import SparseClassifier
from elasticml.algorithms.columns.elastic_net import FIRST, ElasticNetSolver
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.products import Penalty
from elasticml.algorithms.columns.screening import nearest
from elasticml.algorithms.primal_cocoa.margin_problem import MarginProblem, inverses
from elasticml.algorithms.primal_cocoa.problem import Dual, Problem
from elasticml.algorithms.primal_cocoa.squared_problem import SquaredProblem

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Bytes of gathered columns at most.
BYTES_MAX: Final = 2**26
#: Share of the gap that a working set's own is brought to.
INNER: Final = 0.01
#: Sweeps, or Newton steps, on a working set at most.
SWEEPS_MAX: Final = 2000
STEPS_MAX: Final = 50
#: Share of stored values that are not 0 below which columns are solved for as sparse ones.
SPARSE: Final = 0.1


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Which columns are at hand, and whether it pays to work on them."""

    n: int
    #: Columns are centred: there is a free intercept.
    centred: bool
    #: By number, (n,) as members store them: times the roots of the weights.
    columns: dict[int, F64] = field(default_factory=dict)
    #: Certificates to let pass before the next attempt, and how many after one in vain.
    waits: int = 0
    patience: int = 1

    def wanted(self, problem: Problem, dual: Dual, lengths: F64, w: F64, slopes: F64) -> I64 | None:
        """Choose columns to work on; None where the model has too many.

        Parameters
        ----------
        lengths : ndarray (d,)
            In the units in which the dual objective is 1-concave.
        w, slopes : ndarray (d,)
            Coefficients, and products with the residual.
        """
        support = int(np.count_nonzero(w))
        size = min(max(FIRST, 2 * support), BYTES_MAX // (8 * self.n))
        if support > size:
            return None
        there = np.flatnonzero((w != 0.0) | (slopes != 0.0))
        leaning = dual.share * (slopes[there] - problem.a2 * w[there])
        if not problem.is_positive:
            leaning = np.abs(leaning)
        distance = (problem.a1 - leaning) / np.maximum(lengths[there], 1e-300)
        return nearest(there, distance, w[there], size)

    def missing(self, wanted: I64) -> I64:
        """Return the columns that are not at hand; what is not wanted any more is dropped."""
        kept = {int(j): self.columns[j] for j in wanted.tolist() if j in self.columns}
        self.columns = kept
        return wanted[[int(j) not in kept for j in wanted]]

    def take(self, wanted: I64, columns: F64, found: F64) -> bool:
        """Keep what came up; return whether that is all of it."""
        for k, j in enumerate(wanted.tolist()):
            if found[k] == 1.0:
                self.columns[j] = np.array(columns[k])
        return bool(np.all(found == 1.0))

    def ended(self, before: float, after: float) -> None:
        """Note what an attempt has made of the gap."""
        if after <= 0.5 * before:
            self.waits, self.patience = 0, 1
        else:
            self.waits, self.patience = self.patience, 2 * self.patience

    def solve(
        self, problem: Problem, features: I64, w: F64, means: F64, gap: float
    ) -> tuple[F64, F64]:
        """Return coefficients (m,) of some gathered columns, and what they predict (n,).

        Parameters
        ----------
        w : ndarray (d,)
            Coefficients to begin with, 0 for all other columns.
        means : ndarray (d,)
            What columns are centred by.
        gap : float
            To reach on these columns.
        """
        rows = np.stack([self.columns[j] for j in features.tolist()])
        if isinstance(problem, MarginProblem):
            new = _classified(problem, _plain(rows, problem.inverse), w[features], gap)
        else:
            assert isinstance(problem, SquaredProblem)
            new = _regressed(problem, rows, w[features], gap, centred=self.centred)
        image = rows.T @ new
        offset = float(means[features] @ new)
        root = problem.roots.get("root")
        return new, image - (offset if root is None else offset * root)


def _plain(rows: F64, inverse: F64 | None) -> Any:
    """Return columns without the roots of the weights, for solvers that take examples' rows."""
    plain = rows.T if inverse is None else (rows * inverse).T
    if np.count_nonzero(rows) < SPARSE * rows.size:
        return scipy.sparse.csc_array(plain)
    return plain


def _regressed(problem: SquaredProblem, rows: F64, w: F64, gap: float, *, centred: bool) -> F64:
    root = problem.root
    inverse = inverses(root)
    matrix = ColumnMatrix(
        _plain(rows, inverse),
        problem.y if inverse is None else problem.y * inverse,
        None if root is None else root * root,
        centred=centred,
    )
    penalty = Penalty(a1=problem.a1, a2=problem.a2, positive=problem.is_positive)
    return ElasticNetSolver(matrix, w).solve(penalty, gap, SWEEPS_MAX).w


def _classified(problem: MarginProblem, X: Any, w: F64, gap: float) -> F64:
    solver = SparseClassifier(
        X, problem.targets, problem.weights, loss=problem.loss.name, intercept=problem.has_intercept
    )
    solver.begin(w, 0.0)
    return solver.solve(Penalty(a1=problem.a1, a2=problem.a2), gap, STEPS_MAX).w
