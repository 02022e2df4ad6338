"""Quantile regression by programs of near rows: the whole linear program's optimum, certified."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import QuantileRegressor

from elasticml.estimators.quantile_rows import QuantileRule, RowsHere, fit_quantile


@dataclass
class Parts:
    """Rows in several parts, and the number of rows that passes have returned."""

    parts: list[RowsHere]
    most: int = 0

    @property
    def n_columns(self) -> int:
        return self.parts[0].n_columns

    def collected(self, of_part: Callable[..., Any], *parameters: Any) -> list[Any]:
        results = [one for part in self.parts for one in part.collected(of_part, *parameters)]
        if hasattr(results[0], "X"):
            self.most = max(self.most, sum(one.y.size for one in results))
        return results


def parts_of(X: Any, y: Any, s: Any, n: int) -> Parts:
    ends = np.linspace(0, len(y), n + 1).astype(int)
    cuts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    return Parts([RowsHere(X[c], y[c], None if s is None else s[c]) for c in cuts])


def objective(w: Any, b: float, data: Any, quantile: float, alpha: float) -> float:
    X, y, s = data
    r = y - X @ w - b
    losses = np.maximum(quantile * r, (quantile - 1.0) * r)
    return float(np.average(losses, weights=s) + alpha * np.abs(w).sum())


@given(
    quantile=st.sampled_from([0.05, 0.5, 0.8]),
    alpha=st.sampled_from([0.0, 1e-3, 0.05, 1.0]),
    intercept=st.booleans(),
    kind=st.sampled_from(["dense", "sparse", "integers"]),
    n_parts=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None)
def test_it_is_the_optimum_of_the_whole_program(
    quantile: float, alpha: float, intercept: bool, kind: str, n_parts: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(600, 1500))
    X = rng.normal(size=(n, 3)) * [1.0, 10.0, 0.1]
    y = X @ [0.5, -0.05, 3.0] + rng.standard_t(1.5, n) + 20.0
    s = rng.integers(0, 3, n).astype(float) if seed % 2 else None
    if kind == "integers":  # many rows with the same residual
        X, y = np.round(X), np.round(y)
    rows = sp.csr_array(X * (rng.random((n, 3)) < 0.5)) if kind == "sparse" else X
    rule = QuantileRule(quantile=quantile, alpha=alpha, intercept=intercept, tol=1e-10, steps=200)
    passes = parts_of(rows, y, s, n_parts)
    fit, target = fit_quantile(passes, rule)
    data = (rows, y, s)
    own = objective(fit.w, fit.intercept, data, quantile, alpha)
    theirs = QuantileRegressor(quantile=quantile, alpha=alpha, fit_intercept=intercept)
    theirs.fit(rows, y, sample_weight=s)
    best = objective(theirs.coef_, theirs.intercept_, data, quantile, alpha)
    assert own <= best * (1.0 + 1e-8)
    assert own - fit.gap <= best * (1.0 + 1e-12)
    assert 0.0 <= fit.gap <= target


def test_passes_return_few_rows_of_large_data() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100_000, 4))
    y = X @ np.arange(4.0) + rng.normal(size=100_000)
    rule = QuantileRule(quantile=0.9, alpha=1e-3, intercept=True, tol=1e-9, steps=200)
    passes = parts_of(X, y, None, 5)
    fit, target = fit_quantile(passes, rule)
    assert fit.gap <= target
    assert passes.most < 0.15 * len(y)


def test_targets_that_are_fitted_exactly() -> None:
    X = np.random.default_rng(0).normal(size=(2000, 3))
    rule = QuantileRule(quantile=0.3, alpha=0.0, intercept=True, tol=1e-9, steps=200)
    for y in (X @ [1.0, 2.0, 3.0] + 4.0, np.zeros(2000), np.full(2000, 7.0)):
        fit, target = fit_quantile(RowsHere(X, y, None), rule)
        np.testing.assert_allclose(X @ fit.w + fit.intercept, y, atol=1e-7)
        assert fit.gap <= target
    with pytest.raises(ValueError, match="weights of all rows are 0"):
        fit_quantile(RowsHere(X, y, np.zeros(2000)), rule)
