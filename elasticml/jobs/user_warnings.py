"""Warnings to users, attributed to their line that called into the package."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] | None = None) -> None:
    """Issue a warning, attributed to the nearest caller outside of this package.

    Parameters
    ----------
    category : type, optional
        By default scikit-learn's ``ConvergenceWarning``.
    """
    if category is None:
        # Imported here: it loads scikit-learn, which jobs do not need.
        from sklearn.exceptions import ConvergenceWarning

        category = ConvergenceWarning
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE
