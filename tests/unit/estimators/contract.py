"""Rows, and the objectives that scikit-learn documents."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine
from sklearn.metrics import log_loss

import elasticml as em


def wide(n=60, d=800, seed=0):
    """More columns than rows; ten of them make up the targets."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + rng.standard_normal(d)
    return X, 3.0 + X[:, :10] @ np.arange(1.0, 11.0) + 0.1 * rng.standard_normal(n)


def tall(n=300, d=12, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + 2.0
    return X, X[:, :3] @ [1.0, -2.0, 3.0] + rng.standard_normal(n)


def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def counts(seed=0):
    """Columns of unequal size, and counts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 4)) * [1.0, 3.0, 0.2, 1.0]
    return X, rng.poisson(np.exp(0.3 + X @ [0.5, -0.1, 1.0, 0.0])).astype(float)


def objective(model, X, y, weights=None):
    """Return what scikit-learn documents that a model with these settings minimises."""
    s, w = np.ones(len(y)) if weights is None else weights, model.coef_.ravel()
    ratio = getattr(model, "l1_ratio", 0.0)
    if isinstance(model, em.LogisticRegression):
        losses = model.C * log_loss(
            y, model.predict_proba(X), normalize=False, sample_weight=s, labels=model.classes_
        )
    elif isinstance(model, em.LinearSVC):
        # The intercept is penalised.
        w, ratio = np.append(w, model.intercept_), float(model.penalty == "l1")
        signs = np.where(y == model.classes_[1], 1.0, -1.0)
        slack = np.maximum(0.0, 1.0 - signs * model.decision_function(X))
        losses = model.C * float(s @ (slack if model.loss == "hinge" else slack**2))
    elif isinstance(model, em.PoissonRegressor):
        mean = model.predict(X)
        deviances = y * np.log(np.where(y > 0, y, 1.0) / mean) - y + mean
        return np.average(deviances, weights=s) + 0.5 * model.alpha * float(w @ w)
    else:
        losses = 0.5 * np.average((y - model.predict(X)) ** 2, weights=s) / model.alpha
    penalty = ratio * float(np.abs(w).sum()) + 0.5 * (1.0 - ratio) * float(w @ w)
    scale = 1.0 if hasattr(model, "C") else model.alpha
    return scale * (losses + penalty)
