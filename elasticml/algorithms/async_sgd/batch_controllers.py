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

#: Maximum size of a mini-batch: a member must check its mailbox from time to time.
BATCH_MAX: Final = 10_000_000.0
#: Gain g of :class:`LogPI`.
GAIN: Final = 0.05


class Fixed:
    """A constant mini-batch size."""

    def next(self, batch: int, fill: float) -> int:
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

    def next(self, batch: int, fill: float) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.BatchController`."""
        q0 = fill * self._places
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
        Lower bound of b. On a fast network the queue never fills, and b shrinks to it.
    """

    def __init__(
        self,
        *,
        target: float = 0.5,
        places: int = 2,
        least: int = 1,
    ) -> None:
        self._target = target
        self._places = places
        self._least = float(least)
        self._batch = _Real()
        self._before: float | None = None

    def next(self, batch: int, fill: float) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.BatchController`."""
        q = fill * self._places
        change = 0.0 if self._before is None else _clip(q - self._before, -2.0, 2.0)
        self._before = q
        error = _clip(q - self._target, -1.0, 2.0)
        factor = math.exp(GAIN * error + 2.0 * GAIN * change)
        return self._batch.changed(batch, times=factor, least=self._least)


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
