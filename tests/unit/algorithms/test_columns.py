"""Coordinate descent on columns: what the estimators' tests do not reach."""

from __future__ import annotations

import warnings

import numpy as np

from elasticml.algorithms.columns.products import Penalty, descend


def test_a_step_on_dependent_columns_leaves_the_warnings_filters_alone(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    X = np.column_stack([X, X + 1e-9 * rng.standard_normal((50, 4))])
    y = X.sum(axis=1)
    G, linear, yy = X.T @ X, X.T @ y, float(y @ y)

    def run():
        return descend(
            G, linear, yy, Penalty(a1=0.1, a2=0.0), 1e-12, 200, np.zeros(8), 1.0 * linear
        )

    run()  # The compiler sets filters of its own.
    entered, enter = [], warnings.catch_warnings.__enter__
    with monkeypatch.context() as patch:
        patch.setattr(
            warnings.catch_warnings, "__enter__", lambda own: entered.append(1) or enter(own)
        )
        gap = run()[1]
    assert not entered
    assert gap <= 1e-9
