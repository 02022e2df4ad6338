"""The initial model of a job, as its record has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Arrays of a linear model, which are vectors.
_VECTORS = ("coef", "intercept")


def initial_model(section: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the arrays of the ``algorithm`` section's ``warm_start``; empty if it has none.

    The client has checked that they are finite numbers and those that the algorithm needs.
    """
    model = section.get("warm_start") or {}
    arrays = {str(name): np.asarray(values, np.float64) for name, values in model.items()}
    return {k: a.reshape(-1) if k in _VECTORS else a for k, a in arrays.items()}
