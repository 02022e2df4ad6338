"""Checks primal CoCoA on two classes against X and y themselves, and scikit-learn's optimum."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from tests.column_reference import check_rows, checked_world, split_columns, stepped_from
from tests.serial_world import ExchangeRecord, World

F64 = NDArray[np.float64]


@dataclass(kw_only=True)
class MarginReference:
    """One L1-logistic or elastic-net logistic problem, and every certificate for it."""

    X: Any
    #: Any two numbers.
    y: F64
    weights: F64 | None = None
    class_weight: dict[float, float] | None = None
    l1: float = 0.02
    l2: float = 0.0
    intercept: bool = True
    #: Errors of the residual in exchanges in which it should have been exact.
    errors: list[float] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "loss": "logistic",
            "l1": self.l1,
            "l2": self.l2,
            "intercept": self.intercept,
            "class_weight": self.class_weight,
        }

    @cached_property
    def targets(self) -> F64:
        return np.where(self.y == self.y.max(), 1.0, -1.0)

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
        loss = np.logaddexp(0.0, -self.targets * (self.X @ coef + intercept))
        penalty = self.l1 * np.abs(coef).sum() + 0.5 * self.l2 * coef @ coef
        return float(self.s @ loss + penalty)

    @cached_property
    def best(self) -> Any:
        """Return scikit-learn's model at its tightest tolerance."""
        strength = self.l1 + self.l2
        model = LogisticRegression(
            C=1.0 / strength,
            l1_ratio=self.l1 / strength,
            solver="saga",
            fit_intercept=self.intercept,
            tol=1e-13,
            max_iter=200_000,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # saga's steps need weights of about 1; its objective, their sum.
            n = len(self.y)
            model.C = 1.0 / (strength * n)
            return model.fit(self.X, self.targets, self.s * n)

    @cached_property
    def optimum(self) -> float:
        return self.objective(self.best.coef_[0], float(np.ravel(self.best.intercept_)[0]))

    def parts(self, members: int, chunk_columns: int = 2) -> list[list[Any]]:
        """Give the columns to members, this many to a chunk if they are dense."""
        return split_columns(self.X, self.y, self.weights, members, chunk_columns)

    def world(self, members: int, **settings: Any) -> World:
        """Make a world that the reference checks; ``settings`` are its and the algorithm's."""
        return checked_world(self, members, settings)

    def watch(self, world: World, record: ExchangeRecord) -> None:
        """Compare a residual with that of the chunks' coefficients."""
        coef = stepped_from(world, record, self.X.shape[1])
        if coef is None:
            return
        z = self.X @ coef
        if self.intercept:
            z = z + brentq(lambda b: self._steepness(z + b).sum(), -1e3, 1e3, xtol=1e-15)
        of_class = self.s / np.maximum(self.sampled, 1e-300)
        expected = np.sqrt(self.sampled) * of_class * self.targets * expit(-self.targets * z)
        # The trainer's gap is for the sum over examples.
        sent = record.exchange.model["residual"]
        total = float(sent @ expected) / float(expected @ expected)
        self.errors.append(float(np.abs(sent - total * expected).max()))

    def _steepness(self, z: F64) -> F64:
        return np.asarray(self.s * self.targets * expit(-self.targets * z))

    def check_rows(self, rows: Sequence[Any], slack: float = 1e-9) -> None:
        """Check every row's objective, and that its gap is not too small."""
        check_rows(self, rows, slack)
