"""Delta debugging: the fewest faults of a plan that still violate a rule.

Source: Zeller and Hildebrandt (2002), Simplifying and isolating failure-inducing input.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(
    items: Sequence[T], fails: Callable[[list[T]], bool], seconds_max: float = float("inf")
) -> list[T]:
    """Return a part of the items that still fails, of which no single one can be left out.

    Parameters
    ----------
    items : sequence
        They fail together.
    fails : callable
        Whether some of them, in their order, fail.
    seconds_max : float
        Time after which the fewest found so far are returned.
    """
    least, parts = list(items), 2
    until_s = time.monotonic() + seconds_max
    if fails([]):
        return []
    while len(least) > 1 and time.monotonic() < until_s:
        bounds = [len(least) * k // parts for k in range(parts + 1)]
        cuts = list(itertools.pairwise(bounds))
        pieces = [least[a:b] for a, b in cuts]
        rests = [least[:a] + least[b:] for a, b in cuts]
        kept = next(
            (some for some in (*pieces, *rests) if len(some) < len(least) and fails(some)), None
        )
        if kept is not None:
            parts = 2 if len(kept) <= len(least) // parts + 1 else max(2, parts - 1)
            least = kept
        elif parts == len(least):
            break
        else:
            parts = min(len(least), 2 * parts)
    return least
