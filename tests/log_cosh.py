"""A user's loss with the three methods that it needs: all else is found by elasticml."""

from __future__ import annotations

import math
from typing import NamedTuple


class LogCosh(NamedTuple):
    """``log cosh(m - y)``."""

    def value(self, m, y):
        r = abs(m - y)
        return r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0)

    def slope(self, m, y):
        return math.tanh(m - y)

    def curvature(self, m, y):
        return 1.0 - math.tanh(m - y) ** 2


class Wide(NamedTuple):
    """The same of the error in units of a width."""

    width: float

    def value(self, m, y):
        r = abs(m - y) / self.width
        return r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0)

    def slope(self, m, y):
        return math.tanh((m - y) / self.width) / self.width

    def curvature(self, m, y):
        return (1.0 - math.tanh((m - y) / self.width) ** 2) / self.width**2


class Counts(NamedTuple):
    """The loss of counts with mean m: infinite where training starts."""

    def value(self, m, y):
        return m - y * math.log(m) if m > 0.0 else math.inf

    def slope(self, m, y):
        return 1.0 - y / m if m > 0.0 else -math.inf

    def curvature(self, m, y):
        return y / m**2 if m > 0.0 else math.inf


#: The import path of the first one.
LOG_COSH = "tests.log_cosh:LogCosh"
