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
from typing import Final

from elasticml.algorithms.async_sgd.base import QueueStatus
from elasticml.algorithms.async_sgd.cost_model import IterationCostModel

#: Maximum size of a mini-batch: a member must check its mailbox from time to time.
BATCH_MAX: Final = 10_000_000


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
    least, most : int
        Bounds of b; the paper has none, but b must be at least 1.
    """

    def __init__(
        self,
        *,
        target: float = 1.0,
        gamma: float = 10.0,
        places: int = 16,
        least: int = 1,
        most: int = BATCH_MAX,
    ) -> None:
        self._target = target
        self._gamma = gamma
        self._places = places
        self._bounds = (float(max(1, least)), float(most))
        self._batch = _Real()
        self._q1 = 0.0
        self._q2 = 0.0

    def next(self, batch: int, queue: QueueStatus) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.BatchController`."""
        q0 = queue.fill * self._places
        change = (self._target - q0) - (self._q2 - q0)
        b = self._batch.moved(batch, -change * self._gamma, self._bounds)
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
    gain : float
        g.
    places, least, most : int
        As for :class:`AdaptiveB`. The queue should be short: a deep one fills before b has grown,
        and then sends stale states.
    fixed_share : float, optional
        Lower bound of b: the size at which the fixed cost of an iteration is this share of its
        time. Otherwise, on a fast network where the queue never fills, b would shrink until
        iterations consist of overhead. None: no such bound.
    """

    def __init__(
        self,
        *,
        target: float = 0.5,
        gain: float = 0.05,
        places: int = 2,
        least: int = 1,
        most: int = BATCH_MAX,
        fixed_share: float | None = None,
    ) -> None:
        self._target = target
        self._gain = gain
        self._fixed_share = fixed_share
        self._costs = IterationCostModel()
        #: Examples and seconds at the end of the last iteration.
        self._ended = (0, 0.0)
        self._places = places
        self._bounds = (float(max(1, least)), float(most))
        self._batch = _Real()
        self._before: float | None = None

    def next(self, batch: int, queue: QueueStatus) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.BatchController`."""
        q = queue.fill * self._places
        change = 0.0 if self._before is None else _clip(q - self._before, -2.0, 2.0)
        self._before = q
        error = _clip(q - self._target, -1.0, 2.0)
        factor = math.exp(self._gain * error + 2.0 * self._gain * change)
        return self._batch.scaled(batch, factor, self._bounds_after(queue))

    def _bounds_after(self, queue: QueueStatus) -> tuple[float, float]:
        """Return the bounds of b, after learning from the iteration that just ended."""
        least, most = self._bounds
        if self._fixed_share is None:
            return least, most
        n, seconds = queue.examples - self._ended[0], queue.seconds - self._ended[1]
        is_first, self._ended = not self._ended[0], (queue.examples, queue.seconds)
        # With a full queue the iteration has waited; the first one does not start at time 0.
        if n > 0 and seconds > 0.0 and queue.fill < 1.0 and not is_first:
            self._costs.add(n, seconds)
        return min(max(least, self._costs.least(self._fixed_share)), most), most


class _Real:
    """The unrounded batch size, so that small steps accumulate."""

    def __init__(self) -> None:
        self._value = 0.0
        self._rounded = -1

    def moved(self, batch: int, by: float, bounds: tuple[float, float]) -> int:
        """Add ``by``; a ``batch`` other than the last one returned replaces the value first."""
        return self._round(self._now(batch) + by, bounds)

    def scaled(self, batch: int, by: float, bounds: tuple[float, float]) -> int:
        """Multiply by ``by``; otherwise as :meth:`moved`."""
        return self._round(self._now(batch) * by, bounds)

    def _now(self, batch: int) -> float:
        return self._value if batch == self._rounded else float(batch)

    def _round(self, value: float, bounds: tuple[float, float]) -> int:
        self._value = _clip(value, *bounds)
        self._rounded = round(self._value)
        return self._rounded


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
