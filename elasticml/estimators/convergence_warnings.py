"""Warnings of estimators, attributed to the user's line that called into the package."""

from __future__ import annotations

import sys
import warnings

from sklearn.exceptions import ConvergenceWarning

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Issue a warning, attributed to the nearest caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def warn_of_gap(gap: float, tolerance: float, rounds: int) -> None:
    """Warn if the iterations ended before the gap reached the tolerance; ``gap`` may be NaN."""
    if not gap <= tolerance:
        warn(
            f"the duality gap is {gap:.3g} after {rounds} iterations, wanted {tolerance:.3g}: "
            "raise max_iter or tol, or scale the columns"
        )


def warn_without_minimum(steps: int) -> None:
    """Warn that steps still reduce an unpenalised objective, which may have no minimiser."""
    warn(
        f"without a penalty (C=inf) there is no certificate, and the objective still decreases "
        f"after {steps} steps: if the classes are linearly separable there is no finite minimiser, "
        "so use a finite C; else raise max_iter"
    )


def warn_without_penalty(gap: float, tolerance: float) -> None:
    """Warn that the gap of an unpenalised model is not a measure of its quality."""
    if not gap <= tolerance:
        warn(
            f"alpha=0 means no penalty, and then the gap ({gap:.3g}) is the whole objective, "
            "however good the model: use em.Ridge(alpha=0), which solves least squares"
        )


def warn_fitted_here(what: str) -> None:
    """Warn that the given client is not used for this model."""
    warn(
        f"{what} is fitted in this process, not as a job of client: leave client out, unless it "
        "is needed to compute Dask collections",
        UserWarning,
    )
