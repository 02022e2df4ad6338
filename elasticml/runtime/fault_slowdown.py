"""A member that computes more slowly than it could: real work on top, for tests and studies."""

from __future__ import annotations

import time

import numpy as np

from elasticml.algorithms.base import Parallel

#: The key in ``worker.extensions`` under which a cluster says how slow its worker shall be.
SLOWNESS_EXTENSION = "elasticml-slowness"
#: Side of the square matrices that are multiplied to keep a core busy; they stay in its cache.
SIDE = 48


class FaultSlowdown:
    """How many times as much processor time each computation takes.

    Parameters
    ----------
    factor : float, at least 1
        1 adds nothing; 1.5 adds half of the processor time that the computation took.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def add(self, spent_s: float, parallel: Parallel) -> None:
        """Compute on all threads for what the factor adds to the processor time just spent.

        Parameters
        ----------
        spent_s : float, seconds
            Of the calling thread.
        """
        extra_s = (self.factor - 1.0) * spent_s
        if extra_s > 0.0:
            parallel.map(_burn, [extra_s] * parallel.n_threads)


def _burn(seconds: float) -> None:
    """Spend processor time of this thread; sleeping would leave the core to others."""
    until_s = time.thread_time() + seconds
    left = np.full((SIDE, SIDE), 1.0 / SIDE)
    right = left.copy()
    out = np.empty_like(left)
    while time.thread_time() < until_s:
        np.matmul(left, right, out=out)
