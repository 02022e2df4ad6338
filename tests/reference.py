"""Linear problems with all rows in one place: objectives, minima, and what dual variables imply.

Nothing here is computed by the package: numpy, scipy, and LIBLINEAR for the hinge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, xlogy
from sklearn.svm import LinearSVC

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.readers.arrays import from_arrays
from tests.log_cosh import LOG_COSH
from tests.serial_world import ExchangeRecord, World

F64 = NDArray[np.float64]


def split_columns(
    X: Any, y: F64, weights: F64 | None, members: int, chunk_columns: int = 2
) -> list[list[Chunk]]:
    """Give columns to members, this many to a chunk if they are dense."""
    source = from_arrays(X, y, weights, by="columns")
    size = chunk_columns * 8 * (len(y) + 1) + 576
    chunks = [c for b in source.blocks() for c in source.read(b.index, size, members)[0]]
    return [chunks[k::members] for k in range(members)]


def _room(z: F64, y: F64) -> F64:
    return np.maximum(1.0 - y * z, 0.0)


def _tilted(z: F64, y: F64) -> F64:
    return np.clip((y - z) / 0.3, -0.2, 0.8)


#: Settings of losses that need some.
SETTINGS: Final[Mapping[str, Mapping[str, float]]] = {
    "quantile": {"quantile": 0.8, "smoothing": 0.3},
    "tweedie": {"power": 1.5},
}
#: Value and slope of each loss, for margins z and targets y.
LOSSES: Final[Mapping[str, tuple[Callable[[F64, F64], F64], Callable[[F64, F64], F64]]]] = {
    "squared": (lambda z, y: 0.5 * (z - y) ** 2, lambda z, y: z - y),
    "huber": (
        lambda z, y: np.where(abs(z - y) < 1.0, 0.5 * (z - y) ** 2, abs(z - y) - 0.5),
        lambda z, y: np.clip(z - y, -1.0, 1.0),
    ),
    LOG_COSH: (
        lambda z, y: np.logaddexp(z - y, y - z) - np.log(2.0),
        lambda z, y: np.tanh(z - y),
    ),
    "poisson": (lambda z, y: np.exp(z) - y * z + xlogy(y, y) - y, lambda z, y: np.exp(z) - y),
    "gamma": (
        lambda z, y: y * np.exp(-z) + z - np.log(y) - 1.0,
        lambda z, y: 1.0 - y * np.exp(-z),
    ),
    "tweedie": (
        lambda z, y: 2.0 * (np.sqrt(y) - np.exp(0.5 * z)) ** 2 * np.exp(-0.5 * z),
        lambda z, y: np.exp(0.5 * z) - y * np.exp(-0.5 * z),
    ),
    "quantile": (
        lambda z, y: _tilted(z, y) * (y - z) - 0.15 * _tilted(z, y) ** 2,
        lambda z, y: -_tilted(z, y),
    ),
    "logistic": (lambda z, y: np.logaddexp(0.0, -y * z), lambda z, y: -y * expit(-y * z)),
    "hinge": (_room, lambda z, y: -y * (_room(z, y) > 0.0)),
    "squared_hinge": (lambda z, y: _room(z, y) ** 2, lambda z, y: -2.0 * y * _room(z, y)),
    "smoothed_hinge": (
        lambda z, y: np.where(y * z > 0.0, 0.5 * _room(z, y) ** 2, 0.5 - y * z),
        lambda z, y: -y * np.minimum(_room(z, y), 1.0),
    ),
}


@dataclass(kw_only=True)
class Reference:
    """``sum_i s_i loss_i / sum_i s_i + l1 |w|_1 + l2/2 |w|^2`` over all rows."""

    X: Any
    #: Targets; of classes -1 and 1.
    y: F64
    loss: str
    weights: F64 | None = None
    l1: float = 0.0
    l2: float = 0.0
    positive: bool = False
    #: A smooth penalty and its slope of coefficients (d,), or of positive ones.
    penalty: tuple[Callable[[F64], F64], Callable[[F64], F64]] | None = None
    #: Added to all margins.
    offset: F64 | float = 0.0
    has_intercept: bool = False
    #: The intercept is the coefficient of a column of this value, and penalised; None: it is free.
    constant: float | None = None

    @cached_property
    def s(self) -> F64:
        """Weights that sum to 1."""
        s = np.ones(len(self.y)) if self.weights is None else self.weights
        return np.asarray(s / s.sum())

    def objective(self, coef: F64, intercept: float = 0.0) -> float:
        """Return the objective of a model."""
        each = LOSSES[self.loss][0](self.X @ coef + intercept + self.offset, self.y)
        own = 0.0 if self.constant is None else (intercept / self.constant) ** 2
        squares = float(coef @ coef) + own
        more = 0.0 if self.penalty is None else float(self.penalty[0](coef).sum())
        return float(self.s @ each) + self.l1 * abs(coef).sum() + 0.5 * self.l2 * squares + more

    def of_arrays(self, arrays: Mapping[str, Any]) -> float:
        """Return the objective of a model's arrays."""
        return self.objective(arrays["coef"][0], float(np.ravel(arrays["intercept"])[0]))

    @cached_property
    def best(self) -> tuple[F64, float]:
        """Coefficients and intercept of the least objective, or of very little more."""
        return self._of_liblinear() if self.loss == "hinge" else self._of_scipy()

    @cached_property
    def least(self) -> float:
        """The least objective, or very little more."""
        return self.objective(*self.best)

    def _of_liblinear(self) -> tuple[F64, float]:
        constant = self.constant or 1.0
        model = LinearSVC(
            C=1.0 / self.l2,
            loss="hinge",
            fit_intercept=self.has_intercept,
            intercept_scaling=constant,
            tol=1e-10,
            max_iter=10**7,
        ).fit(self.X, self.y, self.s)
        return model.coef_[0], float(np.ravel(model.intercept_)[0])

    def _of_scipy(self) -> tuple[F64, float]:
        """Minimise over the coefficients, or their positive and negative parts."""
        d, is_limited = self.X.shape[1], self.positive or self.l1 > 0.0
        signs = [1.0, -1.0] if is_limited and not self.positive else [1.0]
        parts = np.hstack([sign * np.eye(d) for sign in signs])
        n = parts.shape[1]
        own = 0.0 if self.constant is None else self.l2 / self.constant**2

        def value(v: F64) -> tuple[float, F64]:
            coef, b = parts @ v[:n], float(v[n:].sum())
            slopes = self.s * LOSSES[self.loss][1](self.X @ coef + b + self.offset, self.y)
            more = 0.0 if self.penalty is None else self.penalty[1](coef)
            gradient = parts.T @ (self.X.T @ slopes + self.l2 * coef + more) + self.l1
            # Both parts are 0 at a minimum if one of them could be.
            twice = self.l1 * (v[:n].sum() - abs(coef).sum()) if is_limited else 0.0
            total = self.objective(coef, b) + twice
            return total, np.append(gradient, [slopes.sum() + own * b] * (v.size - n))

        limits = [(0.0 if is_limited else None, None)] * n
        v = np.zeros(n + self.has_intercept)
        for _ in range(3):  # a new start forgets the old curvatures
            v = minimize(
                value,
                v,
                jac=True,
                method="L-BFGS-B",
                bounds=[*limits, *[(None, None)] * self.has_intercept],
                options={"ftol": 0.0, "gtol": 1e-14, "maxiter": 20_000, "maxfun": 100_000},
            ).x
        return parts @ v[:n], float(v[n:].sum())


# --- what a trainer sends to a pass, and what follows from the states of the chunks --------------


def error_by_rows(reference: Reference, world: World, record: ExchangeRecord) -> float | None:
    """Compare the model of a pass with ``v = A alpha`` of the dual variables.

    Returns
    -------
    float or None
        Its relative error; None if members are absent, or chunks lack their variables.
    """
    if not _is_whole_pass(world, record):
        return None
    chunks = [chunk for member in record.contributors for chunk in world.chunks[member]]
    alpha = np.concatenate([c.state["alpha"] for c in sorted(chunks, key=lambda c: c.id)])
    fold = reference.y if set(np.unique(reference.y)) == {-1.0, 1.0} else 1.0
    a = fold * reference.s * alpha / reference.l2
    v = reference.X.T @ a
    if reference.constant is not None:
        v = np.append(v, reference.constant * a.sum())
    sent = record.exchange.model["v"]
    return float(np.linalg.norm(v - sent) / max(1e-300, np.linalg.norm(sent)))


def error_by_columns(reference: Reference, world: World, record: ExchangeRecord) -> float | None:
    """Compare the residual of a pass with the slopes at the coefficients: it is a multiple of them.

    Returns
    -------
    float or None
        Its relative error; None if members are absent, or chunks lack their coefficients.
    """
    if not _is_whole_pass(world, record):
        return None
    coef, slope = np.zeros(reference.X.shape[1]), LOSSES[reference.loss][1]
    for chunk in (chunk for member in record.contributors for chunk in world.chunks[member]):
        here = chunk.labels >= 0
        coef[chunk.labels[here].astype(int)] = chunk.state["coef"][here]
    z, b = reference.X @ coef, 0.0
    if reference.has_intercept:
        b = brentq(lambda b: reference.s @ slope(z + b, reference.y), -1e3, 1e3, xtol=1e-15)
    sent = record.exchange.model["residual"]
    expected = -np.sqrt(reference.s) * slope(z + b, reference.y)
    multiple = max(0.0, float(sent @ expected)) / max(1e-300, float(expected @ expected))
    return float(np.linalg.norm(sent - multiple * expected) / max(1e-300, np.linalg.norm(sent)))


def _is_whole_pass(world: World, record: ExchangeRecord) -> bool:
    """Whether all took part; those that returned a moment ago may bring more than the model has."""
    absent = [one.outcome.absent_examples for one in world.exchanges[-2:]]
    is_pass = record.exchange.operation == "pass"
    return is_pass and not any(absent) and float(record.outcome.arrays["unset"]) == 0.0
