"""The coefficients in a chunk's state: settled, filled, stepped; they travel with the chunk.

What has been learnt of its columns is there as well, so that whoever gets the chunk need not look
at its body for that.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.messages import MISSED_MAX
from elasticml.data.chunk import Chunk

F64 = NDArray[np.float64]

#: float64 (n_rows,): coefficients at the beginning of the last exchange; of rows that are no
#: columns 0, here and below.
COEF: Final = "coef"
#: float64 (n_rows,): by how much that exchange would change them.
STEP: Final = "step"
#: int64 (1,): serial of that exchange.
SERIAL: Final = "serial"
#: float64 (n_rows,): squares and means of the columns.
NORMS: Final = "norms"
MEANS: Final = "means"
#: float64 (n_rows,): products with the residual of the last certificate.
SLOPES: Final = "slopes"
#: uint8 (n_rows,): 0 where no solution has a coefficient.
ALIVE: Final = "alive"


def begin(chunk: Chunk, norms: F64, means: F64) -> None:
    """Give a chunk a state without coefficients."""
    n = chunk.n_rows
    chunk.state = {
        NORMS: norms,
        MEANS: means,
        SLOPES: np.zeros(n),
        ALIVE: (chunk.labels >= 0.0).astype(np.uint8),
    }
    chunk.state_version += 1


def settle(chunk: Chunk, *, serial: int, settle: int, gamma: float) -> bool:
    """Have a chunk take ``gamma`` of its last step, once; return whether it is up to date.

    Afterwards it waits for ``serial`` without a step. A chunk that has no coefficients, or those of
    another exchange than ``settle``, stays as it is.
    """
    if SERIAL not in chunk.state:
        return False
    own = int(chunk.state[SERIAL][0])
    if own == serial:
        return True
    if own != settle:
        return False
    coef = chunk.state[COEF]
    if gamma != 0.0:
        coef = coef + gamma * chunk.state[STEP]
    write(chunk, coef, serial)
    return True


def is_recent(chunk: Chunk, settle: int) -> bool:
    """Whether a chunk that is not up to date still has coefficients worth keeping."""
    if SERIAL not in chunk.state:
        return False
    return 0 <= settle - int(chunk.state[SERIAL][0]) <= MISSED_MAX


def write(chunk: Chunk, coef: F64, serial: int) -> None:
    """Replace a chunk's coefficients; the array becomes its own."""
    chunk.state |= {
        COEF: coef,
        STEP: np.zeros(chunk.n_rows),
        SERIAL: np.array([serial], np.int64),
    }
    chunk.state_version += 1


def note(chunk: Chunk, **arrays: NDArray[np.float64] | NDArray[np.uint8]) -> None:
    """Replace some of a chunk's arrays."""
    chunk.state |= arrays
    chunk.state_version += 1
