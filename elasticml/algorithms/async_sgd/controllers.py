"""How many examples the next mini-batch has, by what is unsent: the larger, the fewer messages.

One controller per member, with a memory. A queue's length is counted in messages here: its fill
times its places. Source: Algorithm 3 (adaptiveB) of the asynchronous SGD paper, word for word in
:class:`AdaptiveB`; :class:`LogPI` is our own: a linear step has the wrong scale both for small and
for large batches, and the last difference damps what the delay of a full queue excites.
"""

from __future__ import annotations

import math
from typing import Final

from elasticml.algorithms.async_sgd.base import Queue
from elasticml.algorithms.async_sgd.turns import TurnCosts

#: Mini-batches never grow beyond this: a member must look at its mailbox now and then.
BATCH_MAX: Final = 10_000_000


class Fixed:
    """Leaves the mini-batch as it is."""

    def next(self, batch: int, queue: Queue) -> int:
        """Return ``batch``."""
        return batch


class AdaptiveB:
    """adaptiveB as printed: ``b <- b - ((q_opt - q0) - (q2 - q0)) gamma``.

    The present length q0 cancels: this is integral control on a length that is two readings old.
    With a large gamma it runs into a limit cycle, and from a large b it comes down by a constant
    amount a step only; both are the paper's, and kept.

    Parameters
    ----------
    target : float
        q_opt, in messages.
    gamma : float
        Step of b, in examples per message.
    places : int
        Of the outgoing queue.
    least, most : int
        Bounds of b; the paper has none, but a b below 1 means nothing.
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

    def next(self, batch: int, queue: Queue) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.Controller`."""
        q0 = queue.fill * self._places
        change = (self._target - q0) - (self._q2 - q0)
        b = self._batch.moved(batch, -change * self._gamma, self._bounds)
        # In the printed order: the other way round the history would hold q0 three times.
        self._q2 = self._q1
        self._q1 = q0
        return b


class LogPI:
    """Proportional-integral control of log b: the same relative step whatever b is.

    ``b <- b exp(g e + 2 g clip(q - q_prev, -2, 2))`` with ``e = clip(q - q_opt, -1, 2)``.

    Parameters
    ----------
    target : float
        q_opt, in messages. Each message beyond one that waits only adds age.
    gain : float
        g.
    places, least, most : int
        As for :class:`AdaptiveB`; wants a short queue: a deep one is filled before b has grown, and
        what it then sends is old.
    fixed_share : float, optional
        b does not go below the size from which on what a turn takes besides its examples is at most
        this share of it: where the network is no limit, a queue that never fills would have b
        shrink until turns are nothing else. None: no such bound.
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
        self._costs = TurnCosts()
        #: Examples and seconds at the end of the last turn.
        self._ended = (0, 0.0)
        self._places = places
        self._bounds = (float(max(1, least)), float(most))
        self._batch = _Real()
        self._before: float | None = None

    def next(self, batch: int, queue: Queue) -> int:
        """Return the next b; see :class:`elasticml.algorithms.async_sgd.base.Controller`."""
        q = queue.fill * self._places
        change = 0.0 if self._before is None else _clip(q - self._before, -2.0, 2.0)
        self._before = q
        error = _clip(q - self._target, -1.0, 2.0)
        factor = math.exp(self._gain * error + 2.0 * self._gain * change)
        return self._batch.scaled(batch, factor, self._bounds_after(queue))

    def _bounds_after(self, queue: Queue) -> tuple[float, float]:
        """Return the bounds of b, with what is known of turns after this one."""
        least, most = self._bounds
        if self._fixed_share is None:
            return least, most
        n, seconds = queue.examples - self._ended[0], queue.seconds - self._ended[1]
        is_first, self._ended = not self._ended[0], (queue.examples, queue.seconds)
        # Who found the queue full has waited; the first turn began when its life was under way.
        if n > 0 and seconds > 0.0 and queue.fill < 1.0 and not is_first:
            self._costs.add(n, seconds)
        return min(max(least, self._costs.least(self._fixed_share)), most), most


class _Real:
    """A real number behind the whole one that is told: small steps add up."""

    def __init__(self) -> None:
        self._value = 0.0
        self._told = -1

    def moved(self, batch: int, by: float, bounds: tuple[float, float]) -> int:
        """Add to it; ``batch`` is what was told last, or is begun with anew where it was not."""
        return self._tell(self._now(batch) + by, bounds)

    def scaled(self, batch: int, by: float, bounds: tuple[float, float]) -> int:
        """Multiply it; else as :meth:`moved`."""
        return self._tell(self._now(batch) * by, bounds)

    def _now(self, batch: int) -> float:
        return self._value if batch == self._told else float(batch)

    def _tell(self, value: float, bounds: tuple[float, float]) -> int:
        self._value = _clip(value, *bounds)
        self._told = round(self._value)
        return self._told


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
