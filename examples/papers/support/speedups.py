"""Times to a gap, medians over seeds, and the forms in which the papers' tables give ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from examples.papers.support.virtual_study import Curve

#: Neither side has come to the gap.
NEITHER = "–"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a setting takes to come to a gap: exact, or more than that."""

    value: float
    is_reached: bool = True

    def __str__(self) -> str:
        """Write the cost, or ``>x`` where it is only known to be more."""
        return f"{'' if self.is_reached else '>'}{self.value:.3g}"


def cost_of(curves: Sequence[Curve], gap: float, unit: str = "units") -> Cost:
    """Return the median over seeds; where most have not come there, of what they have spent.

    Parameters
    ----------
    curves : sequence of Curve
        One per seed.
    gap : float
    unit : str
        "rounds", "units", or "member_units".
    """
    reached = [curve.to(gap) for curve in curves]
    values = [math.inf if r is None else float(getattr(r, unit)) for r in reached]
    middle = median(values)
    if middle < math.inf:
        return Cost(value=middle)
    return Cost(value=median(float(getattr(c.end, unit)) for c in curves), is_reached=False)


def speed_up(elastic: Cost, static: Mapping[int, Cost]) -> str:
    """Write the best static cost over the elastic one as the elastic-CoCoA paper's Table 2 does.

    ``1.25 (4)``: the best static number of members in brackets. ``>1.25``: no static setting has
    come to the gap, or one that has not might be better. ``<0.8``: the elastic one has not. ``–``:
    neither has.
    """
    best = min(static, key=lambda k: (static[k].value, k))
    ratio = static[best].value / elastic.value if elastic.value else math.inf
    if elastic.is_reached and static[best].is_reached:
        return f"{ratio:.2f} ({best})"
    if elastic.is_reached:
        return f">{ratio:.2f}"
    reached = {k: cost for k, cost in static.items() if cost.is_reached}
    if not reached:
        return NEITHER
    best = min(reached, key=lambda k: (reached[k].value, k))
    return f"<{reached[best].value / elastic.value:.2f} ({best})"


def lower_bound(text: str) -> float | None:
    """Read the number of an entry; None where it is no lower bound of a speed-up."""
    if text == NEITHER or text.startswith("<"):
        return None
    return float(text.lstrip(">").split(" ")[0])


def geometric_mean(texts: Iterable[str]) -> str:
    """Average the exact entries; say how many of them there are."""
    texts = list(texts)
    exact = [lower_bound(t) for t in texts if not t.startswith((">", "<"))]
    known = [value for value in exact if value]
    if not known:
        return NEITHER
    mean = math.exp(math.fsum(map(math.log, known)) / len(known))
    return f"{mean:.2f} ({len(known)} of {len(texts)})"


def gap_words(gap: float) -> str:
    """Write a gap as the papers do."""
    return f"1e{round(math.log10(gap))}"
