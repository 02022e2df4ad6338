"""Warnings of estimators, on the line of whoever called into the package."""

from __future__ import annotations

import sys
import warnings

from sklearn.exceptions import ConvergenceWarning

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Warn of what the nearest caller outside of this package has asked for."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def warn_of_gap(gap: float, wanted: float, rounds: int) -> None:
    """Say that iterations ended before the gap was small enough; ``gap`` may be NaN."""
    if not gap <= wanted:
        warn(
            f"the duality gap is {gap:.3g} after {rounds} iterations, wanted {wanted:.3g}: "
            "raise max_iter or tol, or scale the columns"
        )


def warn_without_minimum(steps: int) -> None:
    """Say that steps still gain where nothing certifies a model, and there may be no best one."""
    warn(
        f"without a penalty (C=inf) there is no certificate, and steps still gain after {steps} of "
        "them: where a hyperplane parts the classes no finite model is the best, and C must be "
        "finite; else raise max_iter"
    )


def warn_without_penalty(gap: float, wanted: float) -> None:
    """Say that a gap without a penalty is no measure of the model."""
    if not gap <= wanted:
        warn(
            f"alpha=0 leaves no penalty, and without one the gap ({gap:.3g}) is the whole "
            "objective, however good the model: use em.Ridge(alpha=0), which solves least squares"
        )


def warn_fitted_here(what: str) -> None:
    """Say that a client which was given is of no use for this model."""
    warn(
        f"{what} is fitted in this process, not as a job of client: leave client out, unless it "
        "computes Dask collections",
        UserWarning,
    )
