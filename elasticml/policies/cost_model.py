"""A cost model of outer and inner iterations, from which the best number of inner ones follows.

A round is one outer iteration with ``t2`` inner ones. It takes ``c1 + t2 c`` seconds: ``c1`` for
communicating the model and the sums between members, ``c`` for one pass over a member's examples,
including the communication among its groups and threads. The round leaves

    1 - rho (1 - theta^t2)

of the suboptimality, where ``theta`` is the part of a member's subproblem that one inner iteration
leaves unsolved, and ``rho`` is the gain of a round that solves the subproblems exactly.

Source: Snap ML, the cost ``C(t1, t2) = t1 t2 c_comp + t1 c1 + t1 t2 c2`` of section 2.2, and the
rate in its appendix for strongly convex terms. The constants are measured here instead of bounded.
``c`` is ``c_comp + c2``: computation and communication inside one member are measured together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: The grid on which theta is searched.
_THETAS: Final = tuple(k / 200 for k in range(200))
#: Limit of the decades that a round may gain; beyond it a round counts as exact.
_DECADES_MAX: Final = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Mean cost and progress of the rounds measured with one number of inner iterations."""

    inner: float
    #: Duration of a round, and the compute time of its slowest member.
    seconds: float
    computed_s: float
    #: Decades by which the gap fell per round.
    decades: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The constants of the model, fitted to observations."""

    #: ``c1``, seconds per round.
    outer_s: float
    #: ``c``, seconds per pass.
    inner_s: float
    theta: float
    rho: float

    def seconds(self, inner: float) -> float:
        """Predict the duration of a round."""
        return self.outer_s + inner * self.inner_s

    def decades(self, inner: float) -> float:
        """Predict by how many decades the gap falls in a round."""
        left = 1.0 - self.rho * (1.0 - self.theta**inner)
        return _DECADES_MAX if left <= 10.0**-_DECADES_MAX else -math.log10(left)

    def rate(self, inner: float) -> float:
        """Predict the decades gained per second."""
        seconds = self.seconds(inner)
        return self.decades(inner) / seconds if seconds > 0.0 else 0.0


def fit(observed: Sequence[Observed]) -> CostModel:
    """Fit the model by least squares to one or more observations with different ``inner``.

    From a single observation every inner iteration is assumed to gain the same, so that more of
    them are worth a trial as long as nothing else is known.
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
    """Return the choice with the most decades per second; of equals the smallest.

    Parameters
    ----------
    measured : mapping of float to float
        Decades per round of the values already tried; they take precedence over the fit.
    most : float
        Larger choices are excluded, except the smallest of all.
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
    """Return the compute seconds of one more pass; certificates cost the same for any number."""
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
    """Return the sum of squared errors relative to the measured gains."""
    return sum(
        ((rho * (1.0 - math.pow(theta, inner)) - gain) / max(gain, 1e-12)) ** 2
        for inner, gain in gained
    )
