"""Fit L1-penalised classifiers with two or more classes; both return the same record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns.classifier import SparseClassifier
from elasticml.algorithms.columns.products import Penalty
from elasticml.algorithms.columns.softmax import SparseSoftmax

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model with its duality gap, in units of the sum of losses plus penalty."""

    #: (n_models, d)
    W: F64
    #: (n_models,)
    b: F64
    gap: float
    steps: int
    converged: bool


def fit_binary(
    X: Any,
    targets: F64,
    weights: F64 | None,
    start: tuple[F64, float] | None,
    *,
    loss: str,
    intercept: bool,
    penalty: Penalty,
    gap: float,
    steps: int,
) -> Found:
    """Fit two classes.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None if all are one.
    start : tuple of ndarray (d,) and float, optional
        Initial coefficients and intercept.
    """
    solver = SparseClassifier(X, targets, weights, loss=loss, intercept=intercept)
    if start is not None:
        solver.begin(*start)
    fit = solver.solve(penalty, gap, steps)
    return Found(
        W=fit.w[None],
        b=np.array([fit.b]),
        gap=fit.gap,
        steps=fit.steps,
        converged=fit.converged,
    )


def fit_softmax(
    X: Any,
    codes: NDArray[np.int64],
    weights: F64 | None,
    start: tuple[F64, F64] | None,
    *,
    classes: int,
    intercept: bool,
    penalty: Penalty,
    gap: float,
    steps: int,
) -> Found:
    """Fit a multinomial model; other parameters as in :func:`fit_binary`.

    Parameters
    ----------
    codes : ndarray (n,), int
        The class index of each row.
    start : tuple of ndarray (classes, d) and (classes,), optional
    """
    solver = SparseSoftmax(X, codes, weights, classes=classes, intercept=intercept)
    if start is not None:
        solver.begin(*start)
    fit = solver.solve(penalty, gap, steps)
    return Found(W=fit.W, b=fit.b, gap=fit.gap, steps=fit.turns, converged=fit.converged)
