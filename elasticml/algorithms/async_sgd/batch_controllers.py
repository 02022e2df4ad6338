"""Controllers of the mini-batch size, by the length of the send queue.

A larger mini-batch means fewer messages.

Each member has its own controller. The length of the queue is counted in messages: its fill times
its capacity.

Source: Algorithm 3 (adaptiveB) of the asynchronous SGD paper, literally in :class:`AdaptiveB`.
:class:`LogPI` is ours: a linear step has the wrong scale for small and for large batches, and its
difference term damps the oscillation caused by the delay of a full queue.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from elasticml.algorithms.async_sgd.base import QueueStatus

# A cost model of a member's iterations: the fixed cost besides their examples, fitted online.

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


#: Maximum size of a mini-batch: a member must check its mailbox from time to time.
BATCH_MAX: Final = 10_000_000.0
#: Gain g of :class:`LogPI`.
GAIN: Final = 0.05


class Fixed:
    """A constant mini-batch size."""

    def next(self, batch: int, queue: QueueStatus) -> int:
        """Return ``batch``."""
        return batch


class AdaptiveB:
    """adaptiveB as printed: ``b <- b - ((q_opt - q0) - (q2 - q0)) gamma``.

    The current length q0 cancels: this is integral control on a length that is two readings old.
    With a large gamma it runs into a limit cycle, and a large b decreases only by a constant amount
    per step; both are the paper's behaviour and are kept.

    Parameters
    ----------
    target : float
        q_opt, in messages.
    gamma : float
        Step of b, in examples per message.
    places : int
        Capacity of the send queue.
    """

    def __init__(self, *, target: float = 1.0, gamma: float = 10.0, places: int = 16) -> None:
        self._target = target
        self._gamma = gamma
        self._places = places
        self._batch = _Real()
        self._q1 = 0.0
        self._q2 = 0.0

    def next(self, batch: int, queue: QueueStatus) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.BatchController`."""
        q0 = queue.fill * self._places
        change = (self._target - q0) - (self._q2 - q0)
        b = self._batch.changed(batch, plus=-change * self._gamma)
        # In the printed order; reversed, q2, q1 and q0 would all be equal.
        self._q2 = self._q1
        self._q1 = q0
        return b


class LogPI:
    """Proportional-integral control of log b: the relative step does not depend on b.

    ``b <- b exp(g e + 2 g clip(q - q_prev, -2, 2))`` with ``e = clip(q - q_opt, -1, 2)``.

    Parameters
    ----------
    target : float
        q_opt, in messages. More than one waiting message only adds staleness.
    places : int
        Capacity of the send queue. It should be short: a deep one fills before b has grown, and
        then sends stale states.
    least : int
        Lower bound of b.
    fixed_share : float, optional
        Lower bound of b: the size at which the fixed cost of an iteration is this share of its
        time. Otherwise, on a fast network where the queue never fills, b would shrink until
        iterations consist of overhead. None: no such bound.
    """

    def __init__(
        self,
        *,
        target: float = 0.5,
        places: int = 2,
        least: int = 1,
        fixed_share: float | None = None,
    ) -> None:
        self._target = target
        self._fixed_share = fixed_share
        self._costs = IterationCostModel()
        #: Examples and seconds at the end of the last iteration.
        self._ended = (0, 0.0)
        self._places = places
        self._least = float(least)
        self._batch = _Real()
        self._before: float | None = None

    def next(self, batch: int, queue: QueueStatus) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.BatchController`."""
        q = queue.fill * self._places
        change = 0.0 if self._before is None else _clip(q - self._before, -2.0, 2.0)
        self._before = q
        error = _clip(q - self._target, -1.0, 2.0)
        factor = math.exp(GAIN * error + 2.0 * GAIN * change)
        return self._batch.changed(batch, times=factor, least=self._least_after(queue))

    def _least_after(self, queue: QueueStatus) -> float:
        """Return the lower bound of b, after learning from the iteration that just ended."""
        if self._fixed_share is None:
            return self._least
        n, seconds = queue.examples - self._ended[0], queue.seconds - self._ended[1]
        is_first, self._ended = not self._ended[0], (queue.examples, queue.seconds)
        # With a full queue the iteration has waited; the first one does not start at time 0.
        if n > 0 and seconds > 0.0 and queue.fill < 1.0 and not is_first:
            self._costs.add(n, seconds)
        return min(max(self._least, self._costs.least(self._fixed_share)), BATCH_MAX)


class _Real:
    """The unrounded batch size, so that small steps accumulate."""

    def __init__(self) -> None:
        self._value = 0.0
        self._rounded = -1

    def changed(
        self, batch: int, *, times: float = 1.0, plus: float = 0.0, least: float = 1.0
    ) -> int:
        """Multiply and add; a ``batch`` other than the last one returned replaces the value first.

        It is at least ``least``: the paper has no bound, but b must be at least 1.
        """
        now = self._value if batch == self._rounded else float(batch)
        self._value = _clip(times * now + plus, least, BATCH_MAX)
        self._rounded = round(self._value)
        return self._rounded


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
