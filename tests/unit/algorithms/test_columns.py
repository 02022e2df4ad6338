"""Coordinate descent on columns: what the estimators' tests do not reach."""

from __future__ import annotations

import warnings

import numpy as np

from elasticml.algorithms.columns.products import Penalty, descend


def test_a_step_on_dependent_columns_leaves_the_warnings_filters_alone(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("the filters belong to all threads")

    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    X = np.column_stack([X, X + 1e-9 * rng.standard_normal((50, 4))])
    y = X.sum(axis=1)
    linear, w = X.T @ y, np.zeros(8)
    monkeypatch.setattr(warnings, "catch_warnings", fail)
    q = linear.copy()
    gap = descend(X.T @ X, linear, float(y @ y), Penalty(a1=0.1, a2=0.0), 1e-12, 200, w, q)[1]
    assert gap <= 1e-9
