"""Choose the number of inner iterations per round from a fitted cost model.

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
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from elasticml.control.policy import MemberView, Tune, View
from elasticml.policies.convergence import (
    Point,
    extrapolated_slope,
    gap_points,
    next_round,
    slope,
)
from elasticml.policies.validation import PolicyOptions, check_rising
from elasticml.specification.settings_model import (
    Count,
    NumberAbove0,
    NumberFrom1,
    settings_dataclass,
)

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


def rate_of(inner: float, model: CostModel, measured: Mapping[float, Observed]) -> float:
    """Return the decades per second with a value: as measured where it was tried.

    Passes end early once the members' problems are solved, so that a round with many of them may
    take less time than the model says.
    """
    tried = measured.get(inner)
    if tried is None or tried.seconds <= 0.0:
        return model.rate(inner)
    return max(tried.decades, 0.0) / tried.seconds


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


#: A new value is at most this many times the largest value tried so far.
REACH: Final = 4


@settings_dataclass(finite=False, eq=False)
class ChooseInnerIterations(PolicyOptions):
    """Choose ``local_epochs``, Snap ML's t2, by the cost model of its hierarchical scheme.

    An inner iteration is a pass over a member's examples: its groups and their threads merge their
    models in memory, while the members' models are merged once per round. Seconds and decades of
    the gap are measured over ``window`` rounds with a certificate. The model is fitted to all
    values tried (:mod:`elasticml.policies.inner_iterations`), and the value predicted to be the
    fastest is adopted if it is faster by more than ``hysteresis``. Measurements take precedence
    over the model. If a round consists almost only of its passes, nothing is tried.

    Source: Snap ML, section 2.2 and Figure 4 (time to a suboptimality against t2), which does not
    say how t2 is found.

    Parameters
    ----------
    choices : list of float
        Candidate values, ascending, > 0 each.
    start : float
        The job's value of ``local_epochs``.
    window : int
        Rounds with a certificate, >= 1.
    hysteresis : float
        >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> em.policies.ChooseInnerIterations().name
    'inner_iterations'
    """

    name = "inner_iterations"

    choices: tuple[NumberAbove0, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    start: NumberAbove0 = 1
    window: Count = 3
    hysteresis: NumberFrom1 = 1.1

    def __post_init__(self) -> None:
        self._observed: dict[float, Observed] = {}
        self._members = 0
        self._since_round = 0

    def check(self) -> None:
        """Check constraints between fields."""
        check_rising("choices", self.choices)

    def state(self) -> dict[str, Any]:
        """Return the observations, the number of members, and the start of the measurement."""
        return {
            "observed": [asdict(o) for o in self._observed.values()],
            "members": self._members,
            "since_round": self._since_round,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self._observed = {float(o["inner"]): Observed(**o) for o in state["observed"]}
        self._members, self._since_round = int(state["members"]), int(state["since_round"])

    def suggest(self, view: View) -> Sequence[Tune]:
        """Return a value that is predicted to be faster, if there is one."""
        members = len(view.working)
        if members != self._members:
            # With other shares a pass and a merge take other times.
            self._members = members
            self._observed.clear()
        points = gap_points(view.history, members, self._since_round)
        if len(points) <= self.window:
            return []
        value = float(view.tuned.get("local_epochs", self.start))
        seen = points[-self.window - 1 :]
        now = _observe(value, seen, view.working)
        if now is None:
            return []
        self._since_round = next_round(view.history)
        former = self._observed.get(value)
        if former is not None:
            self._fade(now.decades / former.decades)
        self._observed[value] = now
        model = fit([*self._observed.values()])
        rates = {c: rate_of(c, model, self._observed) for c in (value, *self.choices)}
        most = max(REACH * max(self._observed), self.choices[0])
        # Of equals the smallest.
        best = max((c for c in self.choices if c <= most), key=lambda c: (rates[c], -c))
        gain = rates[best] / rates[value] if rates[value] > 0.0 else 0.0
        if best == value or gain <= self.hysteresis:
            return []
        faded = extrapolated_slope(seen, self.window, "rounds")
        if faded > 0.0:
            self._fade(faded / now.decades)
        return [Tune(name="local_epochs", value=best, why=_why(model, best, gain, value))]

    def _fade(self, factor: float) -> None:
        """Scale all measured rates to the present, because convergence slows down by itself."""
        for inner, observed in self._observed.items():
            self._observed[inner] = replace(observed, decades=observed.decades * factor)


def _observe(value: float, seen: Sequence[Point], working: Sequence[MemberView]) -> Observed | None:
    """Average over the rounds between the first and last point; None without a measurement."""
    rounds, decades = seen[-1].rounds - seen[0].rounds, slope(seen, "rounds")
    computed = [m.seconds[-rounds:] for m in working if m.seconds]
    if rounds <= 0 or decades <= 0.0 or not computed:
        return None
    return Observed(
        inner=value,
        seconds=(seen[-1].seconds - seen[0].seconds) / rounds,
        computed_s=max(sum(seconds) / len(seconds) for seconds in computed),
        decades=decades,
    )


def _why(model: CostModel, best: float, gain: float, value: float) -> str:
    return (
        f"a pass takes {model.inner_s:.3g} s, the rest of a round {model.outer_s:.3g} s: {best:g} "
        "inner iterations are predicted to bring "
        f"{gain:.3g} times the progress a second of {value:g}"
    )
