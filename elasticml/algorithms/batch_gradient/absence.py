"""The certified error of the estimated objective, and its history columns."""

from __future__ import annotations

from elasticml.algorithms.batch_gradient.bounds import Interval, gap_bound
from elasticml.algorithms.batch_gradient.elastic import Elastic, Evaluated
from elasticml.objectives.penalties import L2


def interval(elastic: Elastic, evaluated: Evaluated) -> Interval | None:
    """Return an interval of ``f - f^`` at a point, mean form; None if a group has no bound."""
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
    elastic: Elastic, evaluated: Evaluated, penalty: L2
) -> dict[str, float | int | str | None]:
    """Return the additional history columns of a job with ``absent: auto``; empty for others.

    ``curvature_from``
        The sources of the stand-ins' curvature, with their counts.
    ``likeness``
        rho of the last loss.
    ``error_bound``, ``gap_bound``
        Certified upper bounds of ``|f - f^|`` and ``f - min f`` at the model at the start of the
        round.
    """
    if not elastic.rules.bends:
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


def _gap(elastic: Elastic, evaluated: Evaluated, penalty: L2) -> float | None:
    """Bound the true gap by the convex function with tangents in place of the absent losses."""
    w, divisor = evaluated.point.w, elastic.divisor(evaluated.sums)
    gradient, room = evaluated.sums.gradient, 0.0
    for entry in elastic.stand_ins.entries.values():
        if entry is None or entry.proof is None:
            return None
        gradient = gradient + entry.proof.gradient
        true = entry.proof.interval(w, elastic.columns.down(w - entry.proof.w))
        room += true.high - true.low
    gradient = gradient / divisor + penalty.gradient(w)
    return gap_bound(room / divisor, gradient, penalty.strength, penalty.n_penalised)
