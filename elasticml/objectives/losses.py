"""The losses of linear models: one record each, of its parameters, with functions of one margin.

A loss is a ``NamedTuple`` of its parameters. It needs three methods, of the margin ``m`` of a row
and its target ``y``: ``value``, ``slope`` and ``curvature``, the first two derivatives with respect
to ``m``. All others have a default in :class:`Loss`. If the loss classifies, ``m`` is folded
with the label: ``m = y z`` with ``z = x.w + b`` and ``y`` -1 or +1; in regression ``m = z``.

Dual variables ``a`` belong to the same margins: ``a = -slope(m)`` at the optimum, and
``minus(a) = -conj(-a) = inf_m loss(m) + a m`` is a row's concave term of the dual problem.

The methods are plain functions. :mod:`elasticml.objectives.loss_kernels` compiles them into its
loops, and so those of users' own losses: this file imports neither arrays nor a compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from elasticml.errors import ConfigError

#: How a margin becomes a prediction. "log": the prediction is ``exp(z)``; "logit" and "sign": a
#: class, with probabilities for the former.
Link = Literal["identity", "log", "logit", "sign"]
#: Targets in the domain of a loss of regression.
Domain = Literal["any", "nonnegative", "positive"]
#: Newton steps of the logistic loss's dual step.
NEWTON_STEPS: Final = 2
#: Logistic dual variables keep this distance from 0 and 1, where the entropy has no derivative.
EDGE: Final = 1e-15
#: Most steps for the root of a monotone function, and doublings of an interval that contains it.
_STEPS_MAX: Final = 100

_Record = TypeVar("_Record", bound=type)


def exponential(x: float) -> float:
    """Return ``exp(x)`` for ``x <= 0``; kernels have a version that vectorises."""
    return math.exp(x)


def logarithm(e: float) -> float:
    """Return ``log(1 + e)`` for ``0 <= e <= 1``; kernels have a version that vectorises."""
    return math.log1p(e)


def _root(
    loss: Any, y: float, c: float, q: float, goal: float, low: float, high: float, z: float
) -> float:
    """Return the z from ``low`` to ``high`` at which ``c z + q slope(z)`` is ``goal``.

    The function increases. By Newton's method from a first z, and by halving.
    """
    last = math.inf
    for _ in range(_STEPS_MAX):
        excess = c * z + q * loss.slope(z, y) - goal
        if excess > 0.0:
            high = z
        else:
            low = z
        curvature = c + q * loss.curvature(z, y)
        step = -excess / curvature if curvature > 0.0 else math.inf
        if not low <= z + step <= high or abs(step) > 0.5 * last:
            step = 0.5 * (low + high) - z
        if abs(step) <= 1e-16 * (1.0 + abs(z)) or excess == 0.0:
            break
        z, last = z + step, abs(step)
    return z


class Loss:
    """A loss with its parameters: three methods that each defines, and the defaults of the others.

    Losses do not inherit from it: :func:`complete` gives them the defaults.
    """

    link: Link = "identity"

    def value(self, m: float, y: float) -> float:
        """Return the loss, at least 0."""
        raise NotImplementedError

    def slope(self, m: float, y: float) -> float:
        """Return its derivative; at a kink a subgradient."""
        raise NotImplementedError

    def curvature(self, m: float, y: float) -> float:
        """Return its second derivative."""
        raise NotImplementedError

    def fold(self, y: float) -> float:
        """Return what a margin ``z`` is multiplied by: the label, or 1 in regression."""
        return 1.0

    def domain(self) -> Domain:
        """Return which targets a regression may have."""
        return "any"

    def margin(self, a: float, y: float) -> float:
        """Return a margin with the slope ``-a``; infinity if there is none.

        By default by Newton's method in a bracket, which grows from the target.
        """
        near, width = y, 1.0
        sign = -1.0 if self.slope(near, y) + a > 0.0 else 1.0
        far = near
        for _ in range(_STEPS_MAX):
            if not (self.slope(far, y) + a) * sign < 0.0:
                break
            near, far, width = far, far + sign * width, 2.0 * width
        if (self.slope(far, y) + a) * sign < 0.0:
            return sign * math.inf
        return _root(self, y, 0.0, 1.0, -a, min(near, far), max(near, far), far)

    def minus(self, a: float, y: float) -> float:
        """Return ``-conj(-a)``; minus infinity outside its domain.

        By default ``loss(m) + a m`` at its minimum.
        """
        z = self.margin(a, y)
        return self.value(z, y) + a * z if abs(z) < math.inf else -math.inf

    def clip(self, a: float, y: float) -> float:
        """Return the closest dual variable in the domain of :meth:`minus`.

        By default it is clipped to the slopes at margins of 1e150.
        """
        return min(max(a, -self.slope(1e150, y)), -self.slope(-1e150, y))

    def minus_curvature(self, a: float, b: float) -> float:
        """Return a lower bound of ``-minus''`` between two dual variables.

        By default 1 over the smoothness.
        """
        return 1.0 / self.smoothness()

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """Return the ``a'`` that maximises ``minus(a') - (a' - a) m - q/2 (a' - a)^2``.

        ``q >= 0`` is the derivative of the row's margin with respect to its dual variable.

        By default from the root of ``z + q slope(z) = m - q a``, the margin after the step.
        """
        goal = m - q * a
        # The function grows at least as fast as z does.
        other = goal - q * self.slope(m, y)
        return -self.slope(_root(self, y, 1.0, q, goal, min(m, other), max(m, other), m), y)

    def short_step(self, a: float, m: float, y: float, q: float) -> float:
        """Return a cheaper approximation of it.

        By default the step itself.
        """
        return self.step(a, m, y, q)

    def slack(self, a: float, m: float) -> float:
        """Return how far ``m`` must move before ``a`` leaves its bound; 0 inside.

        By default 0: a row is never skipped.
        """
        return 0.0

    def shrinks(self) -> bool:
        """Whether dual variables rest at bounds."""
        return False

    def gap(self, a: float, m: float, y: float) -> float:
        """Return ``value(m) - minus(a) + a m``, at least 0: a row's share of the duality gap."""
        return self.value(m, y) - self.minus(a, y) + a * m

    def smoothness(self) -> float:
        """Return an upper bound of the curvature, or infinity.

        By default infinity.
        """
        return math.inf

    def is_smooth(self) -> bool:
        """Whether the loss has no kink."""
        return True

    def bound_edges(self) -> tuple[tuple[float, ...], ...]:
        """Return edges of the bins of absent rows, finest first; none if they have no bound.

        See :mod:`elasticml.algorithms.cocoa.frozen_loss_bound`.

        By default all rows are in one bin, if the curvature is limited.
        """
        return ((),) if self.smoothness() <= 2.0 else ()

    def bound_key(self, m: Any) -> Any:
        """Return the key by which rows with margins ``m`` are put into bins.

        By default the margin.
        """
        return m

    def bound_curvature(self, upper: float, radius: float) -> float:
        """Return half of the largest curvature within ``radius`` of keys up to ``upper``.

        By default half of the smoothness.
        """
        return 0.5 * self.smoothness()


def _label(self: Loss, y: float) -> float:
    return y


def complete(record: type) -> type:
    """Give a loss the methods that it lacks.

    Raises
    ------
    ConfigError
        When it is no ``NamedTuple``, or lacks value, slope or curvature.
    """
    of_both = "of a margin and a target"
    check_record(record, "loss", ("value", "slope", "curvature"), of_both)
    # A loss that is derived from one of another kind has its own fold.
    if "fold" not in vars(record):
        of_classes = is_of_classes(getattr(record, "link", Loss.link))
        setattr(record, "fold", _label if of_classes else Loss.fold)  # noqa: B010
    return with_defaults(record, Loss)


def check_record(record: type, key: str, needed: Sequence[str], of: str) -> None:
    """Raise a ConfigError, which begins with a key, if a record lacks methods."""
    lacking = [name for name in needed if not callable(getattr(record, name, None))]
    if lacking or not (isinstance(record, type) and hasattr(record, "_field_defaults")):
        what = f"it lacks {' and '.join(lacking)}" if lacking else "it is none"
        methods = f"{', '.join(needed[:-1])} and {needed[-1]}"
        raise ConfigError(
            f"{key}: wanted a NamedTuple with the methods {methods} {of}, and "
            f"{getattr(record, '__name__', record)!s} is not that: {what}"
        )


def with_defaults(record: type, base: type) -> type:
    """Give a record the methods and attributes of a class that it lacks."""
    for name in dir(base):
        if not name.startswith("_") and not hasattr(record, name):
            setattr(record, name, getattr(base, name))
    return record


def is_of_classes(link: Link) -> bool:
    """Whether the targets of losses with this link are classes, -1 and +1."""
    return link in ("logit", "sign")


#: The losses by their names in job files, with their parameters' defaults.
LOSSES: Final[dict[str, Any]] = {}


def _loss(name: str, *, link: Link = "identity", base: type = Loss) -> Callable[[_Record], _Record]:
    """Register a loss under its name in job files, with the methods of ``base`` that it lacks."""

    def register(record: _Record) -> _Record:
        setattr(record, "link", link)  # noqa: B010
        complete(with_defaults(record, base) if base is not Loss else record)
        LOSSES[name] = record()
        return record

    return register


def _logistic_steps(a: float, m: float, q: float, steps: int) -> float:
    """Take safeguarded Newton steps from between the old value and ``sigma(-m)``.

    The root of ``g(a') = log((1 - a')/a') - m - q (a' - a)``, which falls from infinity to minus
    infinity on (0, 1), lies between ``a`` and ``sigma(-m)``: one term of ``g`` vanishes at each
    end. The start interpolates the two ends by the largest curvature between them. A Newton step
    that would leave the interval goes half the way to its bound instead.

    Error: over a grid of a, m and q two steps lose at most a sixth of the possible gain of a row,
    and in the median only rounding.
    """
    e = math.exp(-abs(m))
    goal = min(max((e if m > 0.0 else 1.0) / (1.0 + e), EDGE), 1.0 - EDGE)
    old = min(max(a, EDGE), 1.0 - EDGE)
    spread = max(old * (1.0 - old), goal * (1.0 - goal))
    if (old - 0.5) * (goal - 0.5) < 0.0:
        spread = 0.25
    new = old + (goal - old) / (1.0 + q * spread)
    low, high = min(old, goal), max(old, goal)
    for _ in range(steps):
        slope = math.log((1.0 - new) / new) - m - q * (new - a)
        if slope > 0.0:
            low = new
        else:
            high = new
        trial = new + slope * new * (1.0 - new) / (1.0 + q * new * (1.0 - new))
        if trial <= low:
            trial = 0.5 * (new + low)
        elif trial >= high:
            trial = 0.5 * (new + high)
        new = trial
    return new


@_loss("logistic", link="logit")
class Logistic(NamedTuple):
    """``log(1 + exp(-m))``, by ``max(-m, 0) + log(1 + e)`` with ``e = exp(-|m|)``."""

    def value(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        return logarithm(exponential(-abs(m))) + (-m if m < 0.0 else 0.0)

    def slope(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        e = exponential(-abs(m))
        return -(e if m > 0.0 else 1.0) / (1.0 + e)

    def curvature(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        e = exponential(-abs(m))
        return e / ((1.0 + e) * (1.0 + e))

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        if a < 0.0 or a > 1.0:
            return -math.inf
        left = a * math.log(a) if a > 0.0 else 0.0
        right = (1.0 - a) * math.log(1.0 - a) if a < 1.0 else 0.0
        return -left - right

    def clip(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return min(max(a, 0.0), 1.0)

    def minus_curvature(self, a: float, b: float) -> float:
        """Return ``1/(a (1 - a))`` at the point nearest to 1/2."""
        middle = min(max(0.5, min(a, b)), max(a, b))
        return 1.0 / (middle * (1.0 - middle)) if 0.0 < middle < 1.0 else 4.0

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _logistic_steps(a, m, q, NEWTON_STEPS)

    def short_step(self, a: float, m: float, y: float, q: float) -> float:
        """Take one step: passes over all rows gain as much, and take a tenth less time."""
        return _logistic_steps(a, m, q, 1)

    def smoothness(self) -> float:
        """See :class:`Loss`."""
        return 0.25

    def bound_edges(self) -> tuple[tuple[float, ...], ...]:
        """See :class:`Loss`."""
        return (-8.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0), (-5.0, -2.0), ()

    def bound_key(self, m: Any) -> Any:
        """Return ``-|m|``: the curvature falls with the size of the margin."""
        return -abs(m)

    def bound_curvature(self, upper: float, radius: float) -> float:
        """Return it at the smallest margin that a row can reach."""
        e = math.exp(-max(-upper - radius, 0.0))
        return 0.5 * e / (1.0 + e) ** 2


# Box losses: max_a a r - c/2 a^2 over low <= a <= high, with r = target - m.


def _box_dual(r: float, low: float, high: float, c: float) -> float:
    """Return the maximising ``a`` at the residual ``r = y - m``; 0 at a kink."""
    if c > 0.0:
        return min(max(r / c, low), high)
    return high if r > 0.0 else low if r < 0.0 else 0.0


def _box_step(a: float, r: float, q: float, low: float, high: float, c: float) -> float:
    if c + q > 0.0:
        return min(max(a + (r - c * a) / (c + q), low), high)
    # An empty row and a loss without curvature: its slope at the constant margin.
    return _box_dual(r, low, high, c) if r != 0.0 else a


def _box_minus(a: float, target: float, low: float, high: float, c: float) -> float:
    return a * target - 0.5 * c * a * a if low <= a <= high else -math.inf


def _box_gap(a: float, r: float, low: float, high: float, c: float) -> float:
    best = _box_dual(r, low, high, c)
    return (best - a) * r - 0.5 * c * (best * best - a * a)


class _Box:
    """What box losses have in common. The target is 1 for classes, else the row's.

    Each has ``minus`` and ``step`` of its own: a CUDA device compiles them without other methods.
    """

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """Return the target, the bounds of dual variables, and c."""
        raise NotImplementedError

    def value(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        target, low, high, c = self.dual_box(y)
        a = _box_dual(target - m, low, high, c)
        if a == 0.0 or math.isinf(a):
            return a * a
        return a * (target - m - 0.5 * c * a)

    def slope(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        target, low, high, c = self.dual_box(y)
        return -_box_dual(target - m, low, high, c)

    def curvature(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        target, low, high, c = self.dual_box(y)
        return 1.0 / c if c > 0.0 and c * low < target - m < c * high else 0.0

    def margin(self, a: float, y: float) -> float:
        """See :class:`Loss`; inside the bounds."""
        target, _, _, c = self.dual_box(y)
        return target - c * a

    def clip(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        _, low, high, _ = self.dual_box(y)
        return min(max(a, low), high)

    def minus_curvature(self, a: float, b: float) -> float:
        """See :class:`Loss`."""
        return self.dual_box(0.0)[3]

    def smoothness(self) -> float:
        """See :class:`Loss`."""
        c = self.dual_box(0.0)[3]
        return 1.0 / c if c > 0.0 else math.inf

    def is_smooth(self) -> bool:
        """See :class:`Loss`."""
        return self.dual_box(0.0)[3] > 0.0


class _BoxOfClasses(_Box):
    """Box losses of margins of classes: rows at a bound are skipped."""

    def slack(self, a: float, m: float) -> float:
        """See :class:`Loss`."""
        target, low, high, c = self.dual_box(1.0)
        if a <= low:
            return m - (target - c * low)
        return target - c * high - m if a >= high else 0.0


class _BoxOfNumbers(_Box):
    """Box losses of residuals, whose shares of the gap are not differences of large numbers."""

    def gap(self, a: float, m: float, y: float) -> float:
        """See :class:`Loss`."""
        target, low, high, c = self.dual_box(y)
        return _box_gap(a, target - m, low, high, c)


@_loss("squared", base=_BoxOfNumbers)
class Squared(NamedTuple):
    """``(m - y)^2 / 2``."""

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """See :class:`_Box`."""
        return y, -math.inf, math.inf, 1.0

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return _box_minus(a, y, -math.inf, math.inf, 1.0)

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _box_step(a, y - m, q, -math.inf, math.inf, 1.0)

    def gap(self, a: float, m: float, y: float) -> float:
        """See :class:`Loss`."""
        return 0.5 * (y - m - a) * (y - m - a)


@_loss("smoothed_hinge", link="sign", base=_BoxOfClasses)
class SmoothedHinge(NamedTuple):
    """0 for m >= 1, ``(1 - m)^2 / 2`` for 0 <= m < 1, ``1/2 - m`` for m < 0."""

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """See :class:`_Box`."""
        return 1.0, 0.0, 1.0, 1.0

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return _box_minus(a, 1.0, 0.0, 1.0, 1.0)

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _box_step(a, 1.0 - m, q, 0.0, 1.0, 1.0)


@_loss("squared_hinge", link="sign", base=_BoxOfClasses)
class SquaredHinge(NamedTuple):
    """``max(0, 1 - m)^2``, without the factor 1/2, as in LIBLINEAR."""

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """See :class:`_Box`."""
        return 1.0, 0.0, math.inf, 0.5

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return _box_minus(a, 1.0, 0.0, math.inf, 0.5)

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _box_step(a, 1.0 - m, q, 0.0, math.inf, 0.5)

    def shrinks(self) -> bool:
        """See :class:`Loss`."""
        return True

    def bound_edges(self) -> tuple[tuple[float, ...], ...]:
        """See :class:`Loss`."""
        return (-2.0, -1.0, -0.5, -0.25, -0.1, -0.03, 0.0), (-1.0, -0.25, 0.0), (0.0,)

    def bound_key(self, m: Any) -> Any:
        """Return the deficit."""
        return 1.0 - m

    def bound_curvature(self, upper: float, radius: float) -> float:
        """Return c: ``max(0, u + t)^2 <= c t^2`` for deficits u < 0 and ``|t| <= radius``."""
        distance = max(-upper, 0.0)
        if radius <= 0.0:
            return 0.0 if distance > 0.0 else 1.0
        return max(1.0 - distance / radius, 0.0) ** 2


#: Positive edges of the hinge's bins, finest first.
_HINGE_SIDES: Final = (
    (0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.35, 0.6, 1.0, 2.0),
    (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.35, 0.6, 1.0),
    (0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0),
    (0.003, 0.02, 0.1, 0.3, 1.0),
    (0.01, 0.1, 0.5),
)


@_loss("hinge", link="sign", base=_BoxOfClasses)
class Hinge(NamedTuple):
    """``max(0, 1 - m)``; its slope at the kink is 0, and its curvature 0 everywhere."""

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """See :class:`_Box`."""
        return 1.0, 0.0, 1.0, 0.0

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return _box_minus(a, 1.0, 0.0, 1.0, 0.0)

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _box_step(a, 1.0 - m, q, 0.0, 1.0, 0.0)

    def shrinks(self) -> bool:
        """See :class:`Loss`."""
        return True

    def bound_edges(self) -> tuple[tuple[float, ...], ...]:
        """See :class:`Loss`."""
        return tuple((*(-e for e in reversed(side)), 0.0, *side) for side in _HINGE_SIDES)

    def bound_key(self, m: Any) -> Any:
        """Return the deficit."""
        return 1.0 - m


@_loss("huber", base=_BoxOfNumbers)
class Huber(NamedTuple):
    """``r^2 / 2`` for ``|r| <= delta``, else ``delta |r| - delta^2 / 2``, with ``r = y - m``."""

    #: In units of the target, above 0.
    delta: float = 1.0

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """See :class:`_Box`."""
        return y, -self.delta, self.delta, 1.0

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return _box_minus(a, y, -self.delta, self.delta, 1.0)

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _box_step(a, y - m, q, -self.delta, self.delta, 1.0)


@_loss("quantile", base=_BoxOfNumbers)
class Quantile(NamedTuple):
    """``q r`` for ``r = y - m >= 0``, else ``(q - 1) r``.

    With ``smoothing`` c above 0 it is ``max_a (a r - c/2 a^2)`` over ``q - 1 <= a <= q``: a
    parabola for ``c (q - 1) <= r <= c q``, and at most ``c max(q, 1 - q)^2 / 2`` lower.
    """

    quantile: float = 0.5
    smoothing: float = 0.0

    def dual_box(self, y: float) -> tuple[float, float, float, float]:
        """See :class:`_Box`."""
        return y, self.quantile - 1.0, self.quantile, self.smoothing

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        return _box_minus(a, y, self.quantile - 1.0, self.quantile, self.smoothing)

    def step(self, a: float, m: float, y: float, q: float) -> float:
        """See :class:`Loss`."""
        return _box_step(a, y - m, q, self.quantile - 1.0, self.quantile, self.smoothing)


@_loss("tweedie", link="log")
class Tweedie(NamedTuple):
    """Half the deviance of a Tweedie distribution, whose mean is ``exp(m)``.

    Its variance is proportional to the mean to the ``power``, from 1 (Poisson) to 2 (gamma).
    Targets are nonnegative, for power 2 positive. As in scikit-learn's generalised linear models.
    """

    power: float = 1.5

    def domain(self) -> Domain:
        """See :class:`Loss`."""
        return "positive" if self.power == 2.0 else "nonnegative"

    def value(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        p = self.power
        if p == 1.0:
            return math.exp(m) - y + (y * (math.log(y) - m) if y > 0.0 else 0.0)
        if p == 2.0:
            return m - math.log(y) + y * math.exp(-m) - 1.0
        value = math.exp((2.0 - p) * m) / (2.0 - p)
        if y > 0.0:
            value += y * math.exp((1.0 - p) * m) / (p - 1.0)
            value -= y ** (2.0 - p) / ((p - 1.0) * (2.0 - p))
        return value

    def slope(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        below = y * math.exp((1.0 - self.power) * m) if y > 0.0 else 0.0
        return math.exp((2.0 - self.power) * m) - below

    def curvature(self, m: float, y: float) -> float:
        """See :class:`Loss`."""
        p = self.power
        below = y * math.exp((1.0 - p) * m) if y > 0.0 else 0.0
        return (2.0 - p) * math.exp((2.0 - p) * m) + (p - 1.0) * below

    def margin(self, a: float, y: float) -> float:
        """Find it by Newton's method in a bracket: the slope is 0 at ``log(y)``."""
        p = self.power
        if y == 0.0:
            return math.log(-a) / (2.0 - p) if a < 0.0 else -math.inf
        z = math.log(y)
        half = math.exp((2.0 - p) * z)  # both terms of the slope there
        if p == 1.0 or p == 2.0:
            t = half - a if p == 1.0 else y / (1.0 + a)
            return math.log(t) if t > 0.0 else -math.inf
        low, high = z, z
        if a < 0.0:
            high = math.log(half - a) / (2.0 - p)
        else:
            low = math.log((half + a) / y) / (1.0 - p)
        return _root(self, y, 0.0, 1.0, -a, low, high, 0.5 * (low + high))

    def minus(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        if self.power == 1.0:
            t = y - a
            if t < 0.0:
                return -math.inf
            own = y - y * math.log(y) if y > 0.0 else 0.0
            return -(t * math.log(t) - t if t > 0.0 else 0.0) - own
        if self.power == 2.0:
            t = 1.0 + a
            if t < 0.0:
                return -math.inf
            return -(t * math.log(t / y) - t if t > 0.0 else 0.0) - math.log(y) - 1.0
        if y == 0.0 and a >= 0.0:
            return 0.0 if a == 0.0 else -math.inf
        z = self.margin(a, y)
        return self.value(z, y) + a * z

    def clip(self, a: float, y: float) -> float:
        """See :class:`Loss`."""
        if self.power == 2.0:
            return max(a, -1.0)
        return min(a, y) if self.power == 1.0 or y == 0.0 else a


LOSSES["poisson"] = Tweedie(1.0)
LOSSES["gamma"] = Tweedie(2.0)

#: Each parameter of a loss, and the name of the loss in job files.
PARAMETERS: Final[dict[str, str]] = {
    field: name
    for name, record in LOSSES.items()
    if name not in ("poisson", "gamma")
    for field in record._fields
}


def with_parameters(record: Any, parameters: Mapping[str, float]) -> Any:
    """Return a loss with other values of its parameters."""
    return record._replace(**{key: float(value) for key, value in parameters.items()})
