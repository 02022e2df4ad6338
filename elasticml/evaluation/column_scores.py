"""Scores of rows whose columns are spread over members (primal CoCoA).

No member has a whole row: each adds its columns' share of the margins, and the driver computes the
metrics of their sum. What is reduced, for n rows, is one vector of: the number of rows
of X.T in the sum; the margins (n) times the square roots of the sample weights, as all columns are
stored; and only the first time the number of rows of weights, the targets (n) and the roots (n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from elasticml.algorithms.base import Arrays, Parallel
from elasticml.algorithms.parallel import runs
from elasticml.arrays import F64
from elasticml.data.chunks.body import Layout
from elasticml.data.chunks.by_columns import own_coefs
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Adjoint, make_adjoint
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.evaluation.metrics import Metrics, Scored, class_numbers
from elasticml.ids import Role


def column_shares(
    n_rows: int, model: Arrays, chunks: Sequence[Chunk], parallel: Parallel, size: int
) -> F64:
    """Return a member's share of the vector above, (size,).

    Parameters
    ----------
    n_rows : int
        n, the number of rows to score.
    model : mapping
        ``coef`` (1, d) is read.
    size : int
        ``1 + n`` or, with targets and weights, ``2 + 3 n``.
    """
    coef = np.ravel(model["coef"])
    out = np.zeros(size)

    def run(part: Sequence[Chunk]) -> F64:
        adjoints: dict[Layout, Adjoint] = {}
        for chunk in stream_chunks(part):
            if chunk.layout not in adjoints:
                adjoints[chunk.layout] = make_adjoint(chunk.layout, n_rows)
            adjoints[chunk.layout].add(chunk, own_coefs(chunk, coef))
        margins, one = np.zeros(n_rows), np.zeros(n_rows)
        for adjoint in adjoints.values():
            adjoint.result(one)
            margins += one
        return margins

    out[0] = sum(chunk.n_rows for chunk in chunks)
    for margins in parallel.map(run, runs(chunks, parallel.n_threads)):
        out[1 : 1 + n_rows] += margins
    if size > 1 + n_rows:
        from elasticml.algorithms.cocoa.column_solver import targets_of

        constants = targets_of(chunks, n_rows)
        parts = (constants["counts"][2:], constants["target"], constants["root"])
        out[1 + n_rows :] = np.concatenate(parts)
    return out


@dataclass(slots=True, kw_only=True)
class ColumnScores:
    """The driver's half: makes the metrics' sums of reduced margins."""

    metrics: Metrics
    role: Role
    #: Rows of X.T in a whole sum: columns, targets and, if examples have weights, their roots.
    n_parts: int
    #: Number of rows to score.
    n_rows: int
    #: (n,) labels and square roots of the sample weights; None before the first whole sum.
    _targets: F64 | None = None
    _roots: F64 | None = None

    @property
    def size(self) -> int:
        """Size of the next reduced vector."""
        return 1 + self.n_rows if self._targets is not None else 2 + 3 * self.n_rows

    def sums(self, model: Arrays, reduced: F64) -> F64 | None:
        """Return the sums of the metrics over all rows, (n_sums,); None if columns are missing.

        Parameters
        ----------
        model : mapping
            ``coef``, ``intercept`` and, to classify, ``classes``.
        reduced : ndarray (size,)

        Raises
        ------
        DataError
            When a row has a label that the training rows do not have.
        """
        n = self.n_rows
        if round(float(reduced[0])) != self.n_parts:
            return None
        if reduced.size > 1 + n:
            self._targets = reduced[2 + n : 2 + 2 * n].copy()
            self._roots = reduced[2 + 2 * n :].copy() if reduced[1 + n] else np.ones(n)
        targets, roots = self._targets, self._roots
        assert targets is not None and roots is not None
        margins = np.divide(reduced[1 : 1 + n], roots, out=np.zeros(n), where=roots > 0.0)
        intercept = float(np.ravel(model["intercept"])[0])
        margins += intercept
        kind = self.metrics.kind
        classes = tuple(np.ravel(model["classes"]).tolist()) if kind.n_classes else ()
        return Metrics(self.metrics.names, replace(kind, classes=classes)).sums(
            Scored(
                targets=class_numbers(targets, classes, self.role) if classes else targets,
                predictions=margins,
                weights=roots * roots,
                common=intercept if classes else 0.0,
            )
        )
