"""Functions of one coefficient that make penalties: the absolute value, and users' own.

A separable penalty is ``a1 sum_j p(w_j) + a2/2 |w|^2``. Its function p is a ``NamedTuple`` of its
parameters. As of losses, its methods are plain functions, which
:mod:`elasticml.objectives.penalty_kernels` compiles into its loops: this file imports neither
arrays nor a compiler.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from elasticml.errors import ConfigError, ElasticmlError, one_line
from elasticml.objectives.losses import Loss, check_record, with_defaults

#: Names of methods of losses and of :class:`elasticml.objectives.penalty_kernels.Penalty`, which a
#: function must not have: compiled code finds the parameters of a method by its name.
TAKEN: Final = {name for name in vars(Loss) if not name.startswith("_")} | {
    *("best", "conjugate_at", "of", "sizes", "times"),
}
#: Most halvings for the end of a conjugate's domain.
_STEPS_MAX: Final = 100


class Function:
    """A convex function of one coefficient, at least 0, and 0 at 0.

    Two methods each defines, the others have defaults. Functions do not inherit from it:
    :func:`complete` gives them the defaults.
    """

    def cost(self, w: float) -> float:
        """Return the function; infinity where coefficients must not be."""
        raise NotImplementedError

    def prox(self, v: float, c: float) -> float:
        """Return the ``w`` that minimises ``1/2 (w - v)^2 + c cost(w)``, for ``c >= 0``."""
        raise NotImplementedError

    def minimiser(self, t: float, h: float, c: float) -> float:
        """Return the ``w`` that minimises ``h/2 w^2 - t w + c cost(w)``, for ``h > 0``.

        By default by ``prox``.
        """
        return self.prox(t / h, c / h)

    def conjugate(self, u: float) -> float:
        """Return ``sup_w (u w - cost(w))``, infinity outside its domain.

        By default infinity: the penalty has no certificate.
        """
        return math.inf

    def nearest(self, u: float) -> float:
        """Return the number nearest to ``u`` in the domain of the conjugate.

        By default by halving an interval that begins at 0.
        """
        if self.conjugate(u) < math.inf:
            return u
        inside, outside = 0.0, u
        for _ in range(_STEPS_MAX):
            middle = 0.5 * (inside + outside)
            if middle in (inside, outside):
                break
            if self.conjugate(middle) < math.inf:
                inside = middle
            else:
                outside = middle
        return inside


def complete(record: type) -> type:
    """Give a function of a coefficient the methods that it lacks.

    Raises
    ------
    ConfigError
        When it is no ``NamedTuple``, lacks cost or prox, or has a method with a name in
        :data:`TAKEN`.
    """
    check_record(record, "penalty", ("cost", "prox"), "of a coefficient")
    taken = [name for name in vars(record) if name in TAKEN and callable(vars(record)[name])]
    if taken:
        raise ConfigError(
            f"penalty: {record.__name__} has a method {taken[0]}, a name that losses or kernels "
            "use otherwise; rename it"
        )
    return with_defaults(record, Function)


def has_conjugate(terms: Any) -> bool:
    """Whether a function has a conjugate, from which a gap is certified."""
    return type(terms).conjugate is not Function.conjugate


#: Points at which the methods of a user's function are compared.
_PROBES: Final = (-3.0, -1.1, -0.4, 0.0, 0.3, 0.9, 2.0)
#: Factors of the function in its steps, the curvature of a step, and shares of the way from where
#: it ends to the points above: there a wrong step has something better.
_FACTORS: Final = (0.1, 1.0)
_CURVATURE: Final = 2.0
_SHARES: Final = (1e-2, 0.1, 1.0)
#: Relative error that is rounding.
_ROUNDING: Final = 1e-9


def check(terms: Any) -> None:
    """Refuse a function that fails, or whose methods contradict each other.

    Raises
    ------
    ConfigError
        Naming the method and the point.
    """
    name = type(terms).__name__
    try:
        _compare(terms, name)
    except ElasticmlError:
        raise
    except Exception as error:
        raise ConfigError(
            f"penalty: {name} fails for a coefficient between {_PROBES[0]:g} and {_PROBES[-1]:g}: "
            f"{one_line(error)}; correct it or its penalty_options"
        ) from None


def _compare(terms: Any, name: str) -> None:
    least = float(terms.cost(0.0))
    if least != 0.0:
        raise ConfigError(
            f"penalty: {name}.cost(0) is {least:g}, wanted 0, the least cost; subtract it"
        )
    costs = {w: float(terms.cost(w)) for w in _PROBES}
    for w, cost in costs.items():
        if not cost >= 0.0:
            raise ConfigError(f"penalty: {name}.cost({w:g}) is {cost:g}, wanted at least 0")
    for v in _PROBES:
        for c in _FACTORS:
            _check_step(terms, f"{name}.prox({v:g}, {c:g})", terms.prox(v, c), v, c)
            h = _CURVATURE
            step = terms.minimiser(h * v, h, h * c)
            _check_step(terms, f"{name}.minimiser({h * v:g}, {h:g}, {h * c:g})", step, v, c)
    if not has_conjugate(terms):
        return
    for u in _PROBES:
        most = max(u * w - cost for w, cost in costs.items())
        found = float(terms.conjugate(u))
        if not found >= most - _ROUNDING:
            raise ConfigError(
                f"penalty: {name}.conjugate({u:g}) is {found:g}, wanted at least {most:g}, the "
                "largest u w - cost(w) that was found; correct it, or leave it out"
            )


def _check_step(terms: Any, call: str, w: float, v: float, c: float) -> None:
    """Refuse a step to ``w`` if another coefficient is better."""

    def value(w: float) -> float:
        return 0.5 * (w - v) ** 2 + c * float(terms.cost(w))

    others = [w + share * (probe - w) for probe in _PROBES for share in _SHARES]
    found, (least, best) = value(w), min((value(other), other) for other in others)
    if not found <= least + _ROUNDING * (1.0 + least):
        raise ConfigError(
            f"penalty: {call} is {w:g}, and {best:g} is better: (w - v)^2 / 2 + c cost(w) with "
            f"v = {v:g}, c = {c:g} is {found:g} and {least:g}; correct it"
        )


class Absolute(NamedTuple):
    """``|w|``; infinity for negative coefficients if it is ``positive``."""

    positive: bool = False

    def cost(self, w: float) -> float:
        """See :class:`Function`."""
        return math.inf if self.positive and w < 0.0 else abs(w)

    def prox(self, v: float, c: float) -> float:
        """See :class:`Function`."""
        return self.minimiser(v, 1.0, c)

    def minimiser(self, t: float, h: float, c: float) -> float:
        """Return it by soft thresholding."""
        if t > c:
            return (t - c) / h
        if t < -c and not self.positive:
            return (t + c) / h
        return 0.0

    def conjugate(self, u: float) -> float:
        """See :class:`Function`."""
        return 0.0 if self.nearest(u) == u else math.inf

    def nearest(self, u: float) -> float:
        """See :class:`Function`."""
        return min(u, 1.0) if self.positive else min(max(u, -1.0), 1.0)


complete(Absolute)
