"""The logistic loss's exponential and logarithm stay within their error bounds."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.objectives import logistic_kernels

UNIT = 2.0**-53


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="has no wider floating point")
def test_errors_are_within_the_stated_units():
    rng = np.random.default_rng(0)
    e = np.concatenate([rng.random(20_000), np.exp(-40.0 * rng.random(20_000)), [1.0, 0.41421356]])
    x = np.concatenate([-700.0 * rng.random(20_000), -rng.random(20_000), [0.0]])
    for function, exact, at, units in (
        (logistic_kernels._logarithm, np.log1p, e, 2.5),
        (logistic_kernels._exponential, np.exp, x, 1.5),
    ):
        wide = exact(at.astype(np.longdouble))
        results = np.array([function(one) for one in at])
        assert float(np.abs((results - wide) / wide).max()) <= units * UNIT
