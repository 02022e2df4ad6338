"""What a member's turns take besides their examples, learned from the turns themselves."""

from __future__ import annotations

from typing import Final

#: Turns of about a size that must have been seen before they tell anything.
SEEN_MIN: Final = 8
#: How many times larger the large turns are that small ones are compared with.
APART_MIN: Final = 4


class TurnCosts:
    """Fits ``seconds = fixed + c n`` to turns of n examples.

    Of turns of about the same size (from one power of two to the next) the quickest one counts:
    what else the machine does makes turns longer, never shorter. The line goes through the smallest
    and the largest of these.
    """

    def __init__(self) -> None:
        #: By binary digits of n: turns seen, and n and seconds of the quickest one an example.
        self._seen: dict[int, int] = {}
        self._quickest: dict[int, tuple[int, float]] = {}

    def add(self, n: int, seconds: float) -> None:
        """Take in a turn of n >= 1 examples that has waited for nobody."""
        size = n.bit_length()
        self._seen[size] = self._seen.get(size, 0) + 1
        known = self._quickest.get(size)
        if known is None or seconds * known[0] < known[1] * n:
            self._quickest[size] = (n, seconds)

    def least(self, share: float) -> float:
        """Return the n from which on a turn's fixed part is at most that share of it.

        Parameters
        ----------
        share : float
            In (0, 1).

        Returns
        -------
        float
            ``fixed / c (1 / share - 1)``; 0 as long as too few sizes have been seen, or where there
            is no fixed part.
        """
        sizes = sorted(size for size, seen in self._seen.items() if seen >= SEEN_MIN)
        if not sizes:
            return 0.0
        (few, short_s), (many, long_s) = (self._quickest[sizes[at]] for at in (0, -1))
        if many < APART_MIN * few:
            return 0.0
        each_s = (long_s - short_s) / (many - few)
        fixed_s = short_s - each_s * few
        if each_s <= 0.0 or fixed_s <= 0.0:
            return 0.0
        return fixed_s / each_s * (1.0 / share - 1.0)
