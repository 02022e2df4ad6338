"""Comparison of the runs of the resource-elastic experiment: tables and expectations.

The study's figures are in ``resource_elastic.json`` beside this file: objective at rounds 100, 150,
199, 250 and 300, test AUPRC at 199, and the optimum f*/n.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Result of a run: ``rounds`` (objective and auprc by round) and ``members``.
Run = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """When members leave; half of them are killed and return."""

    members: int = 14
    lost_at: int = 100
    back_at: int = 200
    rounds: int = 300

    @property
    def half(self) -> int:
        """Number of members that are killed."""
        return self.members // 2

    @property
    def shown(self) -> tuple[int, ...]:
        """Rounds of the tables: 100, 150, 199, 250, 300."""
        middle = (self.lost_at + self.back_at) // 2, (self.back_at + self.rounds) // 2
        return self.lost_at, middle[0], self.back_at - 1, middle[1], self.rounds

    @property
    def faults(self) -> list[dict[str, int]]:
        """The faults of a job."""
        return [
            {"round": self.lost_at, "lose": self.half},
            {"round": self.back_at, "return": self.half},
        ]


@dataclass(frozen=True, kw_only=True)
class Study:
    """An earlier, independent measurement of the same experiment."""

    optimum: float = math.nan
    objective: Mapping[str, Sequence[float]]
    auprc_at_199: Mapping[str, float]

    @staticmethod
    def of(name: str, penalty: float, plan: Plan) -> Study:
        """Look an experiment up; an empty study if it has none."""
        known = json.loads(Path(__file__).with_name("resource_elastic.json").read_text())
        result = known.get(name, {}).get(f"{penalty:g}") if plan == Plan() else None
        return Study(**{"objective": {}, "auprc_at_199": {}, **(result or {})})

    def gap_ratios(self) -> dict[str, list[float]]:
        """Gaps over those of no failure at 150, 199, 200 (not known), 250 and 300."""
        results = {}
        for mode, values in self.objective.items():
            pairs = list(zip(values, self.objective["no failure"], strict=True))
            ratios = [(v - self.optimum) / (plain - self.optimum) for v, plain in pairs]
            results[mode] = [*ratios[1:3], math.nan, *ratios[3:]]
        return results


# --- expectations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """An expectation and its measurement."""

    text: str
    measured: str
    holds: bool


def gap_ratio(runs: Mapping[str, Run], mode: str, at: int, optimum: float) -> float:
    """Gap to the optimum at a round over the undisturbed run's."""
    ours, plain = (runs[m]["rounds"][at]["objective"] - optimum for m in (mode, "no failure"))
    return float(ours / plain)


def judge(runs: Mapping[str, Run], optimum: float, plan: Plan, *, ranks: bool) -> list[Verdict]:
    """Compare the runs with the study's results and with the expectations of elasticity.

    ``ranks``: test AUPRC is compared, too.
    """
    verdicts = [judge_members(mode, run["members"], plan) for mode, run in runs.items()]
    # A run that continues longer comes as close to the optimum as an undisturbed one does.
    is_long = plan.rounds - plan.back_at > plan.back_at - plan.lost_at
    bounds: list[tuple[str, int, float, float]] = [
        ("taylor", plan.rounds, -math.inf, 1.0 if is_long else 0.9),
        ("taylor (paper)", plan.rounds, -math.inf, 1.0 if is_long else 0.9),
        ("ignore", plan.back_at, 1.1, math.inf),
    ]
    if not is_long:
        bounds.append(("stall", plan.rounds, 1.3, math.inf))
    for mode, at, low, high in bounds:
        if {mode, "no failure"} <= runs.keys():
            value = gap_ratio(runs, mode, at, optimum)
            expected = f"<= {high}" if high < math.inf else f">= {low}"
            text = f"gap at {at}, {mode} / no failure {expected}"
            verdicts.append(Verdict(text, f"{value:.3f}", low <= value <= high))
    at = plan.back_at - 1
    for mode, margin in (("stall", 0.005), ("ignore", 0.008)) if ranks else ():
        if {mode, "taylor"} <= runs.keys():
            more = auprc(runs["taylor"], at) - auprc(runs[mode], at)
            text = f"test AUPRC at {at}, taylor - {mode} >= {margin}"
            verdicts.append(Verdict(text, f"{more:+.4f}", more >= margin))
    return verdicts


def judge_members(mode: str, members: Mapping[str, Any], plan: Plan) -> Verdict:
    """Check that exactly the planned members left, and that survivors kept their processes."""
    half = 0 if mode == "no failure" else plan.half
    lost, kept = members["lost"], members["kept"]
    holds = (
        members["started"] == plan.members
        and len(lost) == half == members["returned"]
        and {reason for _, _, reason in lost} <= {"killed", "closed"}
        and {at for _, at, _ in lost} <= {plan.lost_at}
        and len(kept) == plan.members - half
        and kept.items() <= members["running_at_end"].items()
    )
    text = f"{len(lost)} lost, {members['returned']} returned, {len(kept)} kept their process"
    return Verdict(f"{mode}: {half} of {plan.members} lost and back, nobody else", text, holds)


def auprc(run: Run, at: int) -> float:
    """Test AUPRC of a run at a round."""
    return float(run["rounds"][at]["auprc"])


# --- tables ------------------------------------------------------------------------------------


def tables(runs: Mapping[str, Run], optimum: float, plan: Plan, study: Study, *, test: bool) -> str:
    """Format objective, gap ratio and test AUPRC, the study's figures in brackets."""
    shown = plan.shown
    parts = [
        "Objective over all examples:\n",
        _table(runs, study.objective, shown, lambda m, r: runs[m]["rounds"][r]["objective"], 5),
    ]
    if "no failure" in runs:
        at = (*shown[1:3], plan.back_at, *shown[3:])
        parts += [
            "Gap to the optimum, divided by the gap of the run without failure:\n",
            _table(runs, study.gap_ratios(), at, lambda m, r: gap_ratio(runs, m, r, optimum), 3),
        ]
    if test:
        known = {m: [math.nan] * 2 + [v] + [math.nan] * 2 for m, v in study.auprc_at_199.items()}
        parts += ["Test AUPRC:\n", _table(runs, known, shown, lambda m, r: auprc(runs[m], r), 4)]
    return "\n".join(parts)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [" | ".join(head), "|".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _table(
    runs: Iterable[str],
    study: Mapping[str, Sequence[float]],
    rounds: Sequence[int],
    value: Callable[[str, int], float],
    digits: int,
) -> str:
    rows = []
    for mode in runs:
        theirs = study.get(mode, [math.nan] * len(rounds))
        cells = [
            f"{value(mode, at):.{digits}f}" + ("" if math.isnan(v) else f" ({v:.{digits}f})")
            for at, v in zip(rounds, theirs, strict=True)
        ]
        rows.append([mode, *cells])
    return markdown(["", *(str(at) for at in rounds)], rows)
