"""Tables and plots of the uni-task paper's experiments with local SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from support import local_sgd_study as study
from support.balance_figures import Busy, balance_pictures, balance_table
from support.cocoa_figures import gap_figure
from support.elastic_comparison import markdown
from support.local_sgd_store import Store
from support.local_sgd_study import Budget, Line, Lines
from support.speedups import spread

from examples.papers.support.round_projection import (
    REFERENCE_MEMBERS,
    micro_task_units_mixed,
    uni_task_units_mixed,
)

#: Test accuracies of the tables.
TARGETS: Final = {
    "fashion": (0.70, 0.80, 0.85, 0.88, 0.90, 0.91),
    "cifar10": (0.30, 0.40, 0.50, 0.55, 0.60, 0.65),
    "squares": (0.5, 0.7, 0.9),
}
#: The figures that can be requested, and their descriptions.
FIGURES: Final = {
    "1a": "Figure 1a, mini-batch SGD: epochs by the batch",
    "fixed": "Fixed members, and the largest number of them to 2 and back",
    "4a": "Figures 4 and 9, 16 to 2 members",
    "4b": "Figures 4 and 9, 2 to 16 members",
    "5": "Figures 5 and 10, 8 fast and 8 slow members",
    "7": "Figure 7, against PyTorch alone, the same steps",
    "11": "Figure 11, 4 of 16 members at 1.2 instead of 2.6 GHz",
}
#: Figures of which the tables have medians over seeds; the others have the first seed only.
SEEDED: Final = ("fixed", "4a", "4b", "5")
#: Rounds of Figure 11's table.
_SHOWN: Final = (0, 1, 2, 3, 4, 6, 8, 10, 15, 20, 30, 40, 49)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measurements: figure -> data set -> lines."""

    lines: dict[str, dict[str, Lines]] = field(default_factory=dict)
    #: Data set -> units of a round of uni-tasks on unequal members.
    units: dict[str, float] = field(default_factory=dict)
    #: Data set -> busy times without and with the rebalancing policy.
    busy: dict[str, list[Busy]] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the lines as plain values."""
        lines = {
            figure: {name: asdict(lines) for name, lines in sets.items()}
            for figure, sets in self.lines.items()
        }
        return {"lines": lines, "units": self.units}


def run_all(
    names: Sequence[str], figures: Sequence[str], store: Store, budget: Budget
) -> Measurements:
    """Run what the figures need, one data set after the other."""
    results = Measurements()
    for name in names:
        for figure in figures:
            sets = results.lines.setdefault(figure, {})
            match figure:
                case "1a":
                    sets[name] = Lines(epochs=study.parallelism(store, name, budget))
                case "7":
                    sets[name] = Lines(epochs=study.baseline(store, name, budget))
                case "fixed":
                    sets[name] = study.fixed(store, name, budget)
                case "4a":
                    sets[name] = study.scaling(store, name, budget, REFERENCE_MEMBERS, 2)
                case "4b":
                    sets[name] = study.scaling(store, name, budget, 2, REFERENCE_MEMBERS)
                case "5":
                    sets[name], results.units[name] = study.mixed(store, name, budget)
                case "11":
                    results.busy[name] = [
                        Busy(rounds=tuple(r.busy for r in run.rounds[: budget.balanced_rounds]))
                        for run in study.balanced(store, name, budget)
                    ]
    return results


def tell(seeds: Sequence[Measurements]) -> str:
    """Format all tables."""
    parts = []
    first = seeds[0]
    for figure, sets in first.lines.items():
        if not sets:
            continue
        some = [m.lines[figure] for m in seeds if figure in m.lines]
        words = f"{FIGURES[figure]}, " + (f"median of {len(some)}" if len(some) > 1 else "one seed")
        parts += [f"{words}: epochs to a test accuracy (measured):\n"]
        parts += [_table(name, [lines[name].epochs for lines in some]) for name in sets]
        if any(lines.units for lines in sets.values()):
            parts += [f"{words}: units to a test accuracy (projected):\n"]
            parts += [
                _table(name, [lines[name].units for lines in some], ends=False) for name in sets
            ]
    if first.units:
        parts += ["Units of as many samples as 16 members take in a round, on 8 fast and 8 slow:\n"]
        parts += [_units_table([m.units for m in seeds if m.units])]
    if first.busy:
        parts += [f"{FIGURES['11']}: slowest over mean time by round:\n"]
        parts += [balance_table(first.busy, _SHOWN)]
    return "\n".join(parts)


def _table(name: str, seeds: Sequence[Mapping[str, Line]], *, ends: bool = True) -> str:
    """Format where each line reaches the targets that any reaches, and its best value."""
    all_lines = [line for some in seeds for line in some.values()]
    targets = [t for t in TARGETS[name] if any(y >= t for line in all_lines for _, y in line)]
    rows = []
    for setting in seeds[0]:
        lines = [some[setting] for some in seeds]
        cells = [
            spread([next((x for x, y in line if y >= target), None) for line in lines])
            for target in targets
        ]
        if ends:
            cells += [spread([max(y for _, y in line) for line in lines]), str(len(lines[0]))]
        rows.append([name, setting, *cells])
    head = ["data", "setting", *(f"{target:.0%}" for target in targets)]
    return markdown([*head, "best", "epochs"] if ends else head, rows)


def _units_table(seeds: Sequence[Mapping[str, float]]) -> str:
    tasks = (16, 24, 32, 64)
    cells = [f"{micro_task_units_mixed(k, study.MIXED):.3f}" for k in tasks]
    ideal = f"{uni_task_units_mixed(study.MIXED):.3f}"
    head = ["data", *(f"micro-tasks ({k})" for k in tasks), "uni-tasks, ideal", "uni-tasks, run"]
    rows = [[name, *cells, ideal, spread([some[name] for some in seeds])] for name in seeds[0]]
    return markdown(head, rows)


def pictures(found: Measurements) -> dict[str, bytes]:
    """Draw all figures; the titles before the colon are the files' names."""
    files = balance_pictures(found.busy, "figure-11") if found.busy else {}
    for figure, sets in found.lines.items():
        by_epoch = {name: lines.epochs for name, lines in sets.items() if lines.epochs}
        by_unit = {name: lines.units for name, lines in sets.items() if lines.units}
        title = f"local SGD {figure}"
        if by_epoch:
            words = f"{title} epochs: {FIGURES[figure]} (measured)"
            files |= gap_figure(by_epoch, "epoch", words, accuracy=True)
        if by_unit:
            words = f"{title} units: {FIGURES[figure]} (projected from measured rounds)"
            files |= gap_figure(by_unit, "units, projected", words, accuracy=True)
    return files
