"""Checks primal CoCoA against X and y: objective, certificates, another solver's model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit
from sklearn.linear_model import ElasticNet, LogisticRegression

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.readers.arrays import from_arrays
from tests.cocoa_reference import losses
from tests.log_cosh import LOG_COSH
from tests.serial_world import ExchangeRecord, World

F64 = NDArray[np.float64]


def split_columns(
    X: Any, y: F64, weights: F64 | None, members: int, chunk_columns: int
) -> list[list[Chunk]]:
    """Give columns to members, this many to a chunk if they are dense."""
    source = from_arrays(X, y, weights, by="columns")
    size = chunk_columns * 8 * (len(y) + 1) + 576
    chunks = [c for b in source.blocks() for c in source.read(b.index, size, members)[0]]
    return [chunks[k::members] for k in range(members)]


@dataclass(kw_only=True)
class ColumnReference:
    """One problem of the squared, logistic or a user's loss, and every certificate for it."""

    X: Any
    #: Targets, or for the logistic loss any two numbers.
    y: F64
    loss: str = "squared"
    weights: F64 | None = None
    class_weight: dict[float, float] | None = None
    l1: float = 0.1
    l2: float = 0.0
    intercept: bool = True
    positive: bool = False
    #: Errors of the residual in exchanges in which it should have been exact.
    errors: list[float] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        names = ("loss", "l1", "l2", "intercept", "positive", "class_weight")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def targets(self) -> F64:
        is_binary = self.loss == "logistic"
        return np.where(self.y == self.y.max(), 1.0, -1.0) if is_binary else self.y

    @cached_property
    def sampled(self) -> F64:
        return np.ones(len(self.y)) if self.weights is None else self.weights

    @cached_property
    def s(self) -> F64:
        """Weights that sum to 1."""
        of_class = self.class_weight or {}
        s = self.sampled * np.array([of_class.get(float(label), 1.0) for label in self.y])
        return s / s.sum()

    def objective(self, coef: F64, intercept: float) -> float:
        """Return a model's objective in the mean form."""
        each = losses(self.loss, self.X @ coef + intercept, self.targets)
        penalty = self.l1 * np.abs(coef).sum() + 0.5 * self.l2 * coef @ coef
        return float(self.s @ each + penalty)

    @cached_property
    def best(self) -> tuple[F64, float]:
        """Return another solver's coefficients and intercept at its tightest tolerance."""
        if self.loss == LOG_COSH:
            return self._best_of_log_cosh()
        strength = self.l1 + self.l2
        n = len(self.y)
        given = {"l1_ratio": self.l1 / strength, "fit_intercept": self.intercept}
        X = self.X.tocsc() if sp.issparse(self.X) else self.X
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.loss == "squared":
                model = ElasticNet(
                    alpha=strength, positive=self.positive, tol=1e-15, max_iter=200_000, **given
                ).fit(X, self.y, self.weights)
            else:
                # saga's steps need weights of about 1; its objective, their sum.
                model = LogisticRegression(
                    C=1.0 / (strength * n), solver="saga", tol=1e-13, max_iter=200_000, **given
                ).fit(X, self.targets, self.s * n)
        return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])

    def _best_of_log_cosh(self) -> tuple[F64, float]:
        """Return scipy's, of a smooth problem in the positive and the negative parts."""
        d = self.X.shape[1]

        def value(parts: F64) -> tuple[float, F64]:
            coef, b = parts[:d] - parts[d:-1], float(parts[-1])
            slopes = self.s * np.tanh(self.X @ coef + b - self.y)
            own = self.X.T @ slopes + self.l2 * coef
            of_b = [slopes.sum() if self.intercept else 0.0]
            # Both parts are 0 at a minimum if one of them could be.
            twice = self.l1 * (parts[:-1].sum() - np.abs(coef).sum())
            gradient = np.concatenate([own + self.l1, self.l1 - own, of_b])
            return self.objective(coef, b) + twice, gradient

        found = minimize(
            value,
            np.zeros(2 * d + 1),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (2 * d) + [(None, None)],
            options={"ftol": 1e-16, "gtol": 1e-13, "maxiter": 10_000, "maxfun": 100_000},
        ).x
        return found[:d] - found[d:-1], float(found[-1])

    @cached_property
    def optimum(self) -> float:
        return self.objective(*self.best)

    def parts(self, members: int, chunk_columns: int = 2) -> list[list[Chunk]]:
        """Give the columns to members, this many to a chunk if they are dense."""
        return split_columns(self.X, self.y, self.weights, members, chunk_columns)

    def world(self, members: int, **settings: Any) -> World:
        """Make a world that the reference checks; ``settings`` are its and the algorithm's."""
        names = ("absent", "schedule", "reloads", "between", "resume")
        options = {name: settings.pop(name) for name in names if name in settings}
        return World(
            settings={**self.settings, **settings},
            parts=self.parts(members),
            algorithm="primal_cocoa",
            watch=self.watch,
            **{"absent": "reload", **options},
        )

    def watch(self, world: World, record: ExchangeRecord) -> None:
        """Compare the residual of a pass with that of the chunks' coefficients.

        Columns that return in this exchange may bring a step that the residual lacks: the trainer
        learns of them with its outcome.
        """
        outcome = record.outcome
        same = len(world.exchanges) < 2 or world.exchanges[-2].outcome.absent_examples == 0
        is_whole = outcome.absent_examples == 0 and record.exchange.operation == "pass"
        if not (is_whole and same) or float(outcome.arrays["unset"]) > 0.0:
            return
        coef = np.zeros(self.X.shape[1])
        for member in record.contributors:
            for chunk in world.chunks[member]:
                here = chunk.labels >= 0
                coef[chunk.labels[here].astype(int)] = chunk.state["coef"][here]
        sent, expected = record.exchange.model["residual"], self._residual(self.X @ coef)
        if self.loss == "squared":
            scale = max(float(np.linalg.norm(np.sqrt(self.sampled) * self.y)), 1e-300)
            self.errors.append(float(np.linalg.norm(expected - sent)) / scale)
        else:
            # The trainer's gap is for the sum over examples.
            total = float(sent @ expected) / float(expected @ expected)
            self.errors.append(float(np.abs(sent - total * expected).max()))

    def _residual(self, z: F64) -> F64:
        """Return the residual at the best intercept for these margins."""
        root = np.sqrt(self.sampled)
        if self.loss == "squared":
            error = self.y - z
            return root * (error - self.s @ error if self.intercept else error)

        def steepness(b: float) -> F64:
            if self.loss == LOG_COSH:
                return np.asarray(-self.s * np.tanh(z + b - self.y))
            return np.asarray(self.s * self.targets * expit(-self.targets * (z + b)))

        b = 0.0
        if self.intercept:
            b = brentq(lambda b: steepness(b).sum(), -1e3, 1e3, xtol=1e-15)
        return root * steepness(b) / np.maximum(self.sampled, 1e-300)

    def check_rows(self, rows: Sequence[Any], slack: float = 1e-9) -> None:
        """Check every row's objective, and that its gap is not too small."""
        for row in rows:
            coef, intercept = row.model["coef"][0], float(row.model["intercept"][0])
            true = self.objective(coef, intercept)
            assert abs(row.objective - true) <= slack * true
            assert true - self.optimum <= row.gap + slack * true
            if row.extra["dual"] is not None:
                assert row.extra["dual"] <= self.optimum * (1.0 + slack)
