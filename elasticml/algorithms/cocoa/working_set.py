"""A working set of columns gathered at the driver, where a small model is solved to the end.

Similar columns on different members are corrected by each of them, which takes many rounds; in one
place they take one. The driver gathers the columns of the model and those nearest to it, and solves
for these alone with all others at zero. The next certificate over all columns, computed by the
members as always, shows whether the result is the optimum.

Source: Massias, Gramfort and Salmon (2018) for working sets by the distance from the constraint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import scipy.sparse

from elasticml.algorithms.cocoa.column_problem import Problem
from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.duality import Dual
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier
from elasticml.algorithms.linear.working_sets import FIRST, nearest
from elasticml.arrays import F64, I64

#: Maximum bytes of gathered columns.
BYTES_MAX: Final = 2**26
#: Gap of the working set's problem, as a share of the job's gap.
INNER: Final = 0.01
#: Maximum sweeps, or Newton steps, on a working set.
SWEEPS_MAX: Final = 2000
STEPS_MAX: Final = 50
#: Share of nonzero values below which columns are solved in sparse form.
SPARSE: Final = 0.1


@dataclass(slots=True, kw_only=True)
class WorkingSet:
    """The gathered columns, and the schedule of attempts to solve for them."""

    n: int
    #: Columns are centred: the intercept is free.
    centred: bool
    #: By number, (n,) as members store them: times the square roots of the weights.
    columns: dict[int, F64] = field(default_factory=dict)
    #: Certificates to wait before the next attempt; how many to wait after a failed one.
    waits: int = 0
    patience: int = 1

    def is_time(self) -> bool:
        """Count a certificate, and tell whether to make an attempt now."""
        self.waits -= 1
        return self.waits < 0

    def choose(self, problem: Problem, dual: Dual, lengths: F64, w: F64, slopes: F64) -> I64 | None:
        """Choose the working set; None if the model has too many columns.

        Parameters
        ----------
        lengths : ndarray (d,)
            Column norms, in the units in which the dual objective is 1-strongly concave.
        w, slopes : ndarray (d,)
            Coefficients, and products of the columns with the residual.
        """
        support = int(np.count_nonzero(w))
        size = min(max(FIRST, 2 * support), BYTES_MAX // (8 * self.n))
        if support > size:
            return None
        candidates = np.flatnonzero((w != 0.0) | (slopes != 0.0))
        correlations = abs(dual.share) * dual.correlations[candidates]
        distance = (problem.penalty.a1 - correlations) / np.maximum(lengths[candidates], 1e-300)
        return nearest(candidates, distance, w[candidates], size)

    def missing(self, features: I64) -> I64:
        """Return the columns still to gather; drop those no longer in the working set."""
        kept = {int(j): self.columns[j] for j in features.tolist() if j in self.columns}
        self.columns = kept
        return features[[int(j) not in kept for j in features]]

    def take(self, features: I64, columns: F64, present: F64) -> bool:
        """Store gathered columns; return whether all were found."""
        for k, j in enumerate(features.tolist()):
            if present[k] == 1.0:
                self.columns[j] = np.array(columns[k])
        return bool(np.all(present == 1.0))

    def ended(self, before: float, after: float) -> None:
        """Record an attempt's effect on the gap."""
        if after <= 0.5 * before:
            self.waits, self.patience = 0, 1
        else:
            self.waits, self.patience = self.patience, 2 * self.patience

    def lower(
        self, problem: Problem, features: I64, w: F64, means: F64, *, gap: float, than: float
    ) -> tuple[F64, F64] | None:
        """Return a better model (d,) of gathered columns and its margins (n,), or None.

        Parameters
        ----------
        w : ndarray (d,)
            First coefficients, 0 for all other columns.
        means : ndarray (d,)
            Means subtracted from the columns.
        gap : float
            The gap to reach on these columns.
        than : float
            The objective that the model must improve on.
        """
        rows = np.stack([self.columns[j] for j in features.tolist()])
        plain = rows.T if problem.inverse is None else (rows * problem.inverse).T
        if np.count_nonzero(rows) < SPARSE * rows.size:
            plain = scipy.sparse.csc_array(plain)
        if problem.is_squared:
            matrix = ColumnMatrix(plain, problem.targets, problem.weights, centred=self.centred)
            new = ElasticNetSolver(matrix, w[features]).solve(problem.penalty, gap, SWEEPS_MAX).w
        else:
            solver = SparseClassifier(
                plain,
                problem.targets,
                problem.weights,
                loss=problem.loss,
                intercept=problem.has_intercept,
            )
            solver.begin(w[features], 0.0)
            new = solver.solve(problem.penalty, gap, STEPS_MAX).w
        image, offset = rows.T @ new, float(means[features] @ new)
        root, coef = problem.roots.get("root"), np.zeros(w.size)
        image -= offset if root is None else offset * root
        coef[features], z = new, problem.with_intercept(image)[0]
        return (coef, z) if problem.primal(coef, z) < than else None
