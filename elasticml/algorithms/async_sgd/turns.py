"""What a member's turns take besides their examples, learned from the turns themselves."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Turns of about a size that must have been seen before they tell anything.
SEEN_MIN: Final = 8
#: How many times larger the large turns are that small ones are compared with.
APART_MIN: Final = 4
#: How many times larger than any turn that was seen one may be told to be.
GROWTH_MAX: Final = 4
#: Turns of a stretch; the present one and the one before it are remembered.
STRETCH: Final = 512


class _Quickest(NamedTuple):
    """Turns of about a size that were seen, and the quickest of them for each example."""

    seen: int
    n: int
    seconds: float


class TurnCosts:
    """Fits ``seconds = fixed + c n`` to the last turns of n examples.

    Of turns of about the same size (from one power of two to the next) the quickest one counts:
    what else the machine does makes turns longer, never shorter. The line goes through the smallest
    and the largest of these. What was seen more than two stretches ago is forgotten, so that a
    member whose speed changes, or whose data do, is followed; of one that has made turns of one
    size only since, nothing is known until it makes others.
    """

    def __init__(self) -> None:
        #: By binary digits of n: of both stretches, and of the present one.
        self._known: dict[int, _Quickest] = {}
        self._fresh: dict[int, _Quickest] = {}
        #: Turns of the present stretch.
        self._n_turns = 0

    def add(self, n: int, seconds: float) -> None:
        """Take in a turn of n >= 1 examples that has waited for nobody."""
        if self._n_turns == STRETCH:
            self._known, self._fresh, self._n_turns = self._fresh, {}, 0
        self._n_turns += 1
        size = n.bit_length()
        for found in (self._known, self._fresh):
            known = found.get(size)
            if known is None:
                found[size] = _Quickest(1, n, seconds)
            elif seconds * known.n < known.seconds * n:
                found[size] = _Quickest(known.seen + 1, n, seconds)
            else:
                found[size] = known._replace(seen=known.seen + 1)

    def least(self, share: float) -> float:
        """Return the n from which on a turn's fixed part is at most that share of it.

        Parameters
        ----------
        share : float
            In (0, 1).

        Returns
        -------
        float
            ``fixed / c (1 / share - 1)``, at most ``GROWTH_MAX`` times the largest n that counts; 0
            as long as too few sizes have been seen, or where there is no fixed part.
        """
        sizes = sorted(size for size, found in self._known.items() if found.seen >= SEEN_MIN)
        if not sizes:
            return 0.0
        (_, few, short_s), (_, many, long_s) = (self._known[sizes[at]] for at in (0, -1))
        if many < APART_MIN * few:
            return 0.0
        each_s = (long_s - short_s) / (many - few)
        fixed_s = short_s - each_s * few
        if each_s <= 0.0 or fixed_s <= 0.0:
            return 0.0
        return min(fixed_s / each_s * (1.0 / share - 1.0), float(GROWTH_MAX * many))
