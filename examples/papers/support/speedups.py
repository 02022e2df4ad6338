"""Times to a gap, medians over seeds, and the notation of ratios in the papers' tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from examples.papers.support.virtual_study import Curve

#: Neither side has reached the gap.
NEITHER = "–"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a setting to reach a gap: exact, or a lower bound."""

    value: float
    is_reached: bool = True

    def __str__(self) -> str:
        """Format the cost, or ``>x`` if it is only a lower bound."""
        return f"{'' if self.is_reached else '>'}{self.value:.3g}"


def cost_of(curves: Sequence[Curve], gap: float, unit: str = "units") -> Cost:
    """Return the median over seeds; if most have not reached the gap, of the cost so far.

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


def spread(values: Sequence[float | None]) -> str:
    """Format the median of some seeds; the least and the largest in brackets where they differ.

    None is a run that has not reached the gap, and counts as the largest; it is formatted as "–".
    """
    known = sorted(math.inf if value is None else value for value in values)
    middle, least, most = (
        NEITHER if math.isinf(value) else f"{value:.4g}"
        for value in (median(known), known[0], known[-1])
    )
    return middle if least == most else f"{middle} [{least}, {most}]"


def speed_up(elastic: Cost, static: Mapping[int, Cost]) -> str:
    """Format the best static cost over the elastic one as the elastic-CoCoA paper's Table 2 does.

    ``1.25 (4)``: the best static number of members in brackets. ``>1.25``: no static setting has
    reached the gap, or one that has not might be better. ``<0.8``: the elastic one has not. ``–``:
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
    """Parse the number of an entry; None if it is no lower bound of a speed-up."""
    if text == NEITHER or text.startswith("<"):
        return None
    return float(text.lstrip(">").split(" ")[0])


def geometric_mean(texts: Iterable[str]) -> str:
    """Average the exact entries; also return their number."""
    texts = list(texts)
    exact = [lower_bound(t) for t in texts if not t.startswith((">", "<"))]
    known = [value for value in exact if value]
    if not known:
        return NEITHER
    mean = math.exp(math.fsum(map(math.log, known)) / len(known))
    return f"{mean:.2f} ({len(known)} of {len(texts)})"


def gap_words(gap: float) -> str:
    """Format a gap as the papers do."""
    return f"1e{round(math.log10(gap))}"
