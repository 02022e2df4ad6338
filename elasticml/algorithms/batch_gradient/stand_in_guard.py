"""What is certain of the objective, the best model by that, and the guard of flat stand-ins.

A stand-in without curvature lets the model run away in directions that only the absent examples
constrain. The certified interval of their loss shows when this happens: its upper end stops
falling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elasticml.algorithms.batch_gradient.elastic_gradient import ElasticGradient, Evaluated, Point
from elasticml.algorithms.batch_gradient.line_search import HIDDEN
from elasticml.algorithms.batch_gradient.stand_ins import Interval, gap_bound
from elasticml.objectives.penalty_kernels import L2

# The certified error of the estimated objective, and its history columns.


def interval(elastic: ElasticGradient, evaluated: Evaluated) -> Interval | None:
    """Return an interval of ``f - f^`` at a point, mean form; None if a group has no bound.

    It is zero while every example is present.
    """
    w, present = evaluated.point.w, evaluated.sums
    total = Interval(low=0.0, high=0.0)
    for entry in elastic.stand_ins.entries.values():
        if entry is None or entry.proof is None:
            return None
        true = entry.proof.interval(w, elastic.columns.down(w - entry.proof.w))
        taken = entry.at(w, present).loss
        total = total.plus(Interval(low=true.low - taken, high=true.high - taken))
    divisor = elastic.divisor(present)
    return Interval(low=total.low / divisor, high=total.high / divisor)


def history_columns(
    elastic: ElasticGradient, evaluated: Evaluated, penalty: L2
) -> dict[str, float | int | str | None]:
    """Return the additional history columns of a job with guarded stand-ins; empty for others.

    ``curvature_from``
        The sources of the stand-ins' curvature, with their counts.
    ``likeness``
        rho of the last loss, for ``absent: auto``.
    ``error_bound``, ``gap_bound``
        Certified upper bounds of ``|f - f^|`` and ``f - min f`` at the model at the start of the
        round.
    """
    if not elastic.rules.guarded:
        return {}
    assert elastic.curvatures is not None
    if elastic.is_whole:
        return dict.fromkeys(("curvature_from", "likeness", "error_bound", "gap_bound"))
    modes = elastic.stand_ins.modes()
    error = interval(elastic, evaluated)
    return {
        "curvature_from": ", ".join(f"{mode} {n}" for mode, n in modes.items() if n),
        "likeness": elastic.curvatures.likeness,
        "error_bound": None if error is None else error.size,
        "gap_bound": _gap(elastic, evaluated, penalty),
    }


def _gap(elastic: ElasticGradient, evaluated: Evaluated, penalty: L2) -> float | None:
    """Bound the true gap by the convex function with tangents in place of the absent losses."""
    w, divisor = evaluated.point.w, elastic.divisor(evaluated.sums)
    gradient, room = evaluated.sums.gradient, 0.0
    for entry in elastic.stand_ins.entries.values():
        if entry is None or entry.proof is None:
            return None
        gradient = gradient + entry.proof.gradient
        true = entry.proof.interval(w, elastic.columns.down(w - entry.proof.w))
        room += true.high - true.low
    gradient = penalty.by_coefficients(gradient / divisor + penalty.gradient(w))
    return gap_bound(room / divisor, gradient, penalty.strength, penalty.n_penalised)


# The best model that is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The point with the least certain objective so far, over all examples."""

    point: Point
    #: The objective, or an upper bound of it if examples were absent.
    value: float
    is_bound: bool
    #: The round that began there.
    round: int

    def is_below(self, value: float) -> bool:
        """Whether a value is higher by more than rounding."""
        return value - self.value > HIDDEN * abs(value)


# The guard that watches stand-ins without curvature.

#: Rounds without a better certified value after which the model returns to the best one.
PATIENCE: Final = 8


@dataclass(slots=True, kw_only=True)
class StandInGuard:
    """Judges every point while there are stand-ins without curvature.

    After ``PATIENCE`` points without progress the stand-ins borrow curvature at the best point. If
    the absent examples are unlike the present ones, no step is taken after as many more. A change
    of the set of examples resets the guard; if the steps so far have certainly led away from the
    best known point, the model goes back to it first. If a group's loss has no bound, points cannot
    be judged: the stand-ins borrow curvature at once, and the guard is off.
    """

    best: Point | None = None
    best_value: float = 0.0
    #: Points since the best one.
    stale: int = 0
    #: Borrow curvature at the best point, once the sums there are known again.
    switches: bool = False
    #: Take no step until examples are lost or return.
    holds: bool = False
    #: There are stand-ins without curvature, or there were until the guard gave them some.
    watches: bool = False
    _changes: int = -1

    def judge(
        self,
        elastic: ElasticGradient,
        evaluated: Evaluated,
        estimated: float,
        error: Interval | None,
        known: Known | None,
    ) -> Point | None:
        """Return the point to go back to, or None to continue from the evaluated one.

        Parameters
        ----------
        estimated : float
            The estimated objective at the evaluated point.
        error : Interval or None
            What is certain of its error: see :func:`interval`.
        known : Known or None
            The best point so far, before and after changes of the set of examples.
        """
        if elastic.changes != self._changes:
            flat = elastic.rules.guarded and elastic.stand_ins.modes()["taylor"] > 0
            watched = self.watches
            self._begin(elastic.changes, watches=flat)
            if flat and known is not None:
                self.best, self.best_value = known.point, known.value
            if not watched or known is None or error is None:
                pass
            elif known.is_below(estimated + error.low):
                elastic.note = "steps with flat stand-ins led away: back to the best known model"
                return known.point
        if not self.watches:
            return None
        if self.switches:
            elastic.borrow(evaluated)
            self.switches, self._changes = False, elastic.changes
            assert elastic.curvatures is not None
            if elastic.curvatures.seems_alike():
                # As if they had borrowed it from the beginning, which is not watched.
                self._begin(elastic.changes, watches=False)
                return None
        if error is None:
            self._give_up(elastic, evaluated)
            return None
        certain = estimated + error.high
        if self.best is None or certain < self.best_value:
            self.best, self.best_value, self.stale = evaluated.point, certain, 0
            return None
        self.stale += 1
        if self.stale < PATIENCE or self.holds:
            return None
        self.stale = 0
        self.switches = elastic.stand_ins.modes()["taylor"] > 0
        self.holds = not self.switches
        elastic.note = (
            "stand-ins without curvature helped no more: they borrow it from here on"
            if self.switches
            else "no step is certain to help: the model stays until examples return"
        )
        return self.best

    def _give_up(self, elastic: ElasticGradient, evaluated: Evaluated) -> None:
        """Let stand-ins without curvature borrow it at this point, and switch the guard off."""
        if elastic.stand_ins.modes()["taylor"] > 0:
            elastic.borrow(evaluated)
            elastic.note = "nothing is certain of some absent: stand-ins without curvature borrow"
        self._begin(elastic.changes, watches=False)

    def _begin(self, changes: int, *, watches: bool) -> None:
        self._changes, self.watches = changes, watches
        self.best, self.stale, self.switches, self.holds = None, 0, False, False
