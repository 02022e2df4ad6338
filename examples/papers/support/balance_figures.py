"""Load balancing round by round: the uni-task paper's swim-lanes, and the members' loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from support.elastic_comparison import markdown

from elasticml.report.style import COLOURS, new_figure, png_bytes, styled
from examples.papers.support.virtual_study import Curve

#: Without and with the policy.
WAYS = ("not balanced", "balanced")


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Compute time of every slot in every round; in units of an epoch on one member."""

    rounds: tuple[Mapping[int, float], ...]

    def imbalance(self, k: int) -> float:
        """Return slowest over mean time of a round."""
        seconds = list(self.rounds[k].values())
        return max(seconds) / mean(seconds)


def busy_of(curve: Curve) -> Busy:
    """Read the members' compute times of the passes from a run's story."""
    results = [
        {int(slot): float(s) for slot, s in record["compute_s"].items()}
        for record in curve.story
        if record["event"] == "ExchangeEnded" and record["operation"] == "pass"
    ]
    return Busy(rounds=tuple(results))


def balance_table(
    busy: Mapping[str, Sequence[Busy]], rounds: Sequence[int] = tuple(range(10))
) -> str:
    """Format the imbalance (slowest over mean time) of some rounds."""
    rows = []
    for name, ways in busy.items():
        for way, result in zip(WAYS, ways, strict=True):
            cells = [f"{result.imbalance(k):.3f}" for k in rounds if k < len(result.rounds)]
            rows.append([name, way, *cells])
    width = max(len(row) for row in rows) - 2
    return markdown(["data", "", *(str(k) for k in rounds[:width])], rows)


def balance_pictures(
    busy: Mapping[str, Sequence[Busy]], stem: str = "figure-6"
) -> dict[str, bytes]:
    """Draw the swim-lanes without and with the policy, and the loads with it, for each data set."""
    return {f"{stem}-{name}.png": styled(_draw, name, ways) for name, ways in busy.items() if ways}


def _draw(name: str, ways: Sequence[Busy]) -> bytes:
    figure = new_figure(11.0, 3.4)
    axes = figure.subplots(1, 3)
    for ax, way, result in zip(axes, WAYS, ways, strict=False):
        start = 0.0
        for k, times in enumerate(result.rounds):
            for slot, seconds in times.items():
                colour = COLOURS["blue" if k % 2 else "sky"]
                ax.barh(slot, seconds, left=start, height=0.8, color=colour, lw=0)
            start += max(times.values())
        ax.set_title(f"{name}, {way}")
        ax.set_xlabel("units, projected")
    axes[0].set_ylabel("member")
    axes[1].set_xlim(axes[0].get_xlim())
    first = ways[1].rounds[0]
    for slot in sorted(first):
        # A member's examples relative to the first round's are its time relative to that round's.
        loads = [times[slot] / first[slot] for times in ways[1].rounds if slot in times]
        colour = COLOURS["red" if loads[-1] < 1 else "blue"]
        axes[2].plot(range(len(loads)), loads, color=colour, lw=1.0)
    axes[2].set_title("examples, relative")
    axes[2].set_xlabel("round")
    figure.tight_layout()
    return png_bytes(figure)
