"""Penalties of a user, one for each kind of conjugate: finite, with two ends, with one, none."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np


class Net(NamedTuple):
    """The elastic net by hand."""

    l1: float
    l2: float

    def cost(self, w):
        return self.l1 * abs(w) + 0.5 * self.l2 * w * w

    def prox(self, v, c):
        size = max(abs(v) - c * self.l1, 0.0) / (1.0 + c * self.l2)
        return size if v > 0.0 else -size

    def conjugate(self, u):
        return max(abs(u) - self.l1, 0.0) ** 2 / (2.0 * self.l2)


class Rounded(NamedTuple):
    """The absolute value, a parabola up to a width."""

    strength: float = 0.1
    width: float = 0.2

    def cost(self, w):
        size = abs(w)
        inside = 0.5 * w * w / self.width
        return self.strength * (inside if size <= self.width else size - 0.5 * self.width)

    def prox(self, v, c):
        most, k = self.width, c * self.strength
        w = v / (1.0 + k / most)
        if abs(w) <= most:
            return w
        return v - k if v > 0.0 else v + k

    def conjugate(self, u):
        if abs(u) > self.strength:
            return math.inf
        return 0.5 * self.width * u * u / self.strength


class Positive(NamedTuple):
    """The absolute value of coefficients that must not be negative."""

    strength: float = 0.05

    def cost(self, w):
        return self.strength * w if w >= 0.0 else math.inf

    def prox(self, v, c):
        return max(v - c * self.strength, 0.0)

    def conjugate(self, u):
        return 0.0 if u <= self.strength else math.inf


class Silent(NamedTuple):
    """Half a square, without its conjugate."""

    def cost(self, w):
        return 0.05 * w * w

    def prox(self, v, c):
        return v / (1.0 + 0.1 * c)


#: The import path of all of them, and that of one.
PATH: Final = "tests.own_penalties:"
ROUNDED: Final = f"{PATH}Rounded"
#: Cost and slope of coefficients that are allowed, by numpy.
BY_NUMPY: Final[dict[str, Any]] = {
    ROUNDED: (
        lambda w: 0.1 * np.where(abs(w) < 0.2, w**2 / 0.4, abs(w) - 0.1),
        lambda w: 0.1 * np.clip(w / 0.2, -1.0, 1.0),
    ),
    f"{PATH}Positive": (lambda w: 0.05 * w, lambda w: np.full(w.size, 0.05)),
    f"{PATH}Silent": (lambda w: 0.05 * w**2, lambda w: 0.1 * w),
}
