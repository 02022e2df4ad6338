"""What a job says whose model missed its tolerance or target: how far, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from elasticml.protocol.job_record import JobRecord
from elasticml.specification.algorithms import (
    BatchGradient,
    CoCoA,
    PrimalCoCoA,
    has_tolerance,
    settings_from_section,
)
from elasticml.story.history import HistoryRow

#: The first words of every such sentence.
NOT_CONVERGED: Final = "not converged"
#: Algorithms whose convergence depends on the sizes of the columns, unless they scale them.
_SCALED: Final = (BatchGradient.name, CoCoA.name)
#: The sentence about a job that its limit ended proposes this multiple of the limit.
_LONGER: Final = 10


def shortfall(
    record: JobRecord, rows: Sequence[Mapping[str, Any]], *, rounds: int, reason: str
) -> str:
    """Return a sentence about a job that ended short of its tolerance or target.

    Parameters
    ----------
    record : JobRecord
    rows : sequence of mapping
        The history, with the row of the final model.
    rounds : int
    reason : str
        Why the job ended.

    Returns
    -------
    str
        Empty if the job had neither tolerance nor target.
    """
    far = _distance(record, rows)
    if not far:
        return ""
    after = f"after {rounds:,} round{'' if rounds == 1 else 's'}"
    why = "" if reason == f"{rounds} rounds" else f" ({reason})"
    return f"{NOT_CONVERGED}: {far} {after}{why}; {_remedies(record, reason)}"


def _distance(record: JobRecord, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what was reached and what was wanted; empty if nothing was."""
    stop, section = record.stop, record.algorithm
    last = HistoryRow(rows[-1] if rows else {})
    objective, gap = last.objective, last.gap
    if stop.gap is not None:
        return f"the gap is {_number(gap)}, wanted {stop.gap:g},"
    if stop.objective is not None:
        return f"the objective is {_number(objective, 6)}, wanted {stop.objective:g},"
    if not has_tolerance(section):
        return ""
    if record.algorithm_name == BatchGradient.name:
        # The norm of a round is that of the model with which it started.
        wanted = settings_from_section(BatchGradient, section).gradient_share
        norms = [norm for row in rows if (norm := row.get("gradient_norm")) is not None]
        share = norms[-1] / norms[0] if norms and norms[0] > 0.0 else None
        return f"the gradient's norm is {_number(share)} of the first one, wanted {wanted:g},"
    kind: type[CoCoA] | type[PrimalCoCoA] = PrimalCoCoA
    if record.algorithm_name == CoCoA.name:
        kind = CoCoA
    if _lacks_conjugate(record):
        return f"no gap is certified, because penalty {section['penalty']} has no method conjugate,"
    if objective is None:
        return f"the gap is {_number(gap)}, and the objective is not known,"
    wanted = settings_from_section(kind, section).gap_to_reach(objective)
    return f"the gap is {_number(gap)}, wanted {wanted:.3g},"


def _lacks_conjugate(record: JobRecord) -> bool:
    if record.algorithm_name != PrimalCoCoA.name:
        return False
    return not settings_from_section(PrimalCoCoA, record.algorithm).certifies_gap


def _number(value: float | None, digits: int = 3) -> str:
    return "unknown" if value is None else f"{value:.{digits}g}"


def _remedies(record: JobRecord, reason: str) -> str:
    stop, section, ways = record.stop, record.algorithm, []
    if record.algorithm_name in _SCALED and section.get("scale", "none") == "none":
        ways.append("scale the columns (scale: auto)")
    is_smooth = section.get("loss", "hinge") not in ("hinge", "quantile")
    if record.algorithm_name == CoCoA.name and is_smooth:
        ways.append("use em.Linear (algorithm: linear), which chooses the solver,")
    if stop.gap is None and stop.objective is None and _lacks_conjugate(record):
        ways += ["give it that method", "set tolerance: 0, with which a job ends at its limits"]
    elif stop.rounds is not None and reason == f"{stop.rounds} rounds":
        ways.append(f"allow more rounds (stop: {{rounds: {_LONGER * stop.rounds}}})")
    elif stop.seconds is not None and reason == f"{stop.seconds:g} seconds":
        ways.append(f"allow more time (stop: {{seconds: {_LONGER * stop.seconds:g}}})")
    else:
        ways.append("accept this model with a larger tolerance")
    return " or ".join(ways)
