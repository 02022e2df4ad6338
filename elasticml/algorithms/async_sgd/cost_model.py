"""A cost model of a member's iterations: the fixed cost besides their examples, fitted online."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Minimum iterations of one size class before it is used.
SEEN_MIN: Final = 8
#: Minimum ratio of the largest to the smallest size used in a fit.
APART_MIN: Final = 4
#: The recommended size is at most this multiple of the largest size observed.
GROWTH_MAX: Final = 4
#: Iterations per window; the current window and the one before it are kept.
STRETCH: Final = 512


class _Quickest(NamedTuple):
    """The number of iterations in a size class, and the one with the least time per example."""

    seen: int
    n: int
    seconds: float


class IterationCostModel:
    """Fits ``seconds = fixed + c n`` to the latest iterations, n the number of examples.

    Of iterations of about the same size (from one power of two to the next) the fastest counts:
    other load on the machine only makes them slower. The line goes through the smallest and the
    largest size class. Observations older than two windows are dropped, to follow changes of a
    member's speed or data. After two windows with a single size there is no estimate until other
    sizes occur.
    """

    def __init__(self) -> None:
        #: By bit length of n: of both windows, and of the current one.
        self._recent: dict[int, _Quickest] = {}
        self._current: dict[int, _Quickest] = {}
        #: Iterations in the current window.
        self._n_iterations = 0

    def add(self, n: int, seconds: float) -> None:
        """Add an iteration of n >= 1 examples that did not have to wait."""
        if self._n_iterations == STRETCH:
            self._recent, self._current, self._n_iterations = self._current, {}, 0
        self._n_iterations += 1
        size = n.bit_length()
        for window in (self._recent, self._current):
            quickest = window.get(size)
            if quickest is None:
                window[size] = _Quickest(1, n, seconds)
            elif seconds * quickest.n < quickest.seconds * n:
                window[size] = _Quickest(quickest.seen + 1, n, seconds)
            else:
                window[size] = quickest._replace(seen=quickest.seen + 1)

    def least(self, share: float) -> float:
        """Return the smallest n for which the fixed cost is at most ``share`` of an iteration.

        Parameters
        ----------
        share : float
            In (0, 1).

        Returns
        -------
        float
            ``fixed / c (1 / share - 1)``, at most ``GROWTH_MAX`` times the largest n used; 0 while
            too few sizes have been observed, or if there is no fixed cost.
        """
        sizes = sorted(size for size, best in self._recent.items() if best.seen >= SEEN_MIN)
        if not sizes:
            return 0.0
        (_, few, short_s), (_, many, long_s) = (self._recent[sizes[at]] for at in (0, -1))
        if many < APART_MIN * few:
            return 0.0
        each_s = (long_s - short_s) / (many - few)
        fixed_s = short_s - each_s * few
        if each_s <= 0.0 or fixed_s <= 0.0:
            return 0.0
        return min(fixed_s / each_s * (1.0 / share - 1.0), float(GROWTH_MAX * many))
