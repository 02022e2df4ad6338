"""The cost of outer and inner iterations, and what both bring: how many inner ones pay.

A round is one outer iteration of ``t2`` inner ones. It costs ``c1 + t2 c`` seconds, ``c1`` for
sending the model and sums between members, ``c`` for one pass over a member's examples and what its
groups and threads tell one another. Of the suboptimality it leaves

    1 - rho (1 - theta^t2)

where ``theta`` is what an inner iteration leaves of a member's subproblem, and ``rho`` what there
would be left to gain if members solved theirs exactly.

Source: Snap ML, the cost ``C(t1, t2) = t1 t2 c_comp + t1 c1 + t1 t2 c2`` of section 2.2, and the
rate of its appendix for strongly convex terms, whose constants are measured here and not bounded.
``c`` is ``c_comp + c2``: what groups and threads of one member compute and what they tell one
another, in its memory, is measured together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Where a better theta is looked for.
_THETAS: Final = tuple(k / 200 for k in range(200))
#: A round that brings more decades than these is as good as exact.
_DECADES_MAX: Final = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What rounds of so many inner iterations were measured to cost and to bring, on average."""

    inner: float
    #: Of a round, from end to end; and of it what the slowest member computed.
    seconds: float
    computed_s: float
    #: By which the gap fell in a round.
    decades: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Constants fitted to what was observed."""

    #: ``c1``, seconds a round.
    outer_s: float
    #: ``c``, seconds a pass.
    inner_s: float
    theta: float
    rho: float

    def seconds(self, inner: float) -> float:
        """Predict the seconds of a round."""
        return self.outer_s + inner * self.inner_s

    def decades(self, inner: float) -> float:
        """Predict by how many decades the gap falls in a round."""
        left = 1.0 - self.rho * (1.0 - self.theta**inner)
        return _DECADES_MAX if left <= 10.0**-_DECADES_MAX else -math.log10(left)

    def rate(self, inner: float) -> float:
        """Predict the decades a second."""
        seconds = self.seconds(inner)
        return self.decades(inner) / seconds if seconds > 0.0 else 0.0


def fit(observed: Sequence[Observed]) -> CostModel:
    """Fit the model, by least squares, to one observation or more of different ``inner``.

    Of a single one it is assumed that every inner iteration brings as much as any other: as long as
    nothing else is known, more of them are worth a trial.
    """
    inner_s = _slope([(o.inner, o.computed_s) for o in observed])
    outer_s = max(0.0, sum(o.seconds - inner_s * o.inner for o in observed) / len(observed))
    if len(observed) == 1:
        theta, rho = 10.0 ** (-max(observed[0].decades, 0.0) / observed[0].inner), 1.0
    else:
        gained = [(o.inner, 1.0 - 10.0 ** -max(o.decades, 0.0)) for o in observed]
        theta, rho = min(
            ((theta, _rho(gained, theta)) for theta in _THETAS),
            key=lambda both: _misfit(gained, *both),
        )
    return CostModel(outer_s=outer_s, inner_s=inner_s, theta=theta, rho=rho)


def best_inner(
    model: CostModel, choices: Sequence[float], measured: Mapping[float, float], most: float
) -> float:
    """Return the choice with most decades a second; the least of equals.

    Parameters
    ----------
    measured : mapping of float to float
        Decades a round of values that were tried, which go before the fitted ones.
    most : float
        No choice above it counts, but for the least one.
    """

    def rate(inner: float) -> float:
        decades = measured.get(inner)
        seconds = model.seconds(inner)
        if decades is None or seconds <= 0.0:
            return model.rate(inner)
        return max(decades, 0.0) / seconds

    least = min(choices)
    return max((c for c in choices if c <= max(most, least)), key=lambda c: (rate(c), -c))


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Seconds of computing for one more pass; certificates cost the same whatever the passes."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    spread = sum((p[0] - x) ** 2 for p in points)
    through_zero = sum(p[0] * p[1] for p in points) / sum(p[0] ** 2 for p in points)
    if spread == 0.0:
        return through_zero
    # Noise must not make passes free, nor certificates negative.
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread
    return min(slope, through_zero) if slope > 0.0 else through_zero


def _rho(gained: Sequence[tuple[float, float]], theta: float) -> float:
    shares = [1.0 - math.pow(theta, inner) for inner, _ in gained]
    squares = sum(share * share for share in shares)
    rho = sum(s * g for s, (_, g) in zip(shares, gained, strict=True)) / squares
    return min(1.0, max(0.0, rho))


def _misfit(gained: Sequence[tuple[float, float]], theta: float, rho: float) -> float:
    """Sum up the squared errors, each relative to what was gained."""
    return sum(
        ((rho * (1.0 - math.pow(theta, inner)) - gain) / max(gain, 1e-12)) ** 2
        for inner, gain in gained
    )
