"""The coefficients in a chunk's state, with their pending step; they travel with the chunk.

The state also has the constants of the chunk's columns, so that a member that receives the chunk
need not read its body for them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.cocoa_exchanges import MISSED_MAX
from elasticml.data.chunks.chunk import Chunk

F64 = NDArray[np.float64]

#: float64 (n_rows,): coefficients at the beginning of the last exchange. Here and below, rows that
#: are not columns have 0.
COEF: Final = "coef"
#: float64 (n_rows,): the full step of that exchange.
STEP: Final = "step"
#: int64 (1,): serial of that exchange.
SERIAL: Final = "serial"
#: float64 (n_rows,): squared norms and means of the columns.
NORMS: Final = "norms"
MEANS: Final = "means"
#: float64 (n_rows,): products with the residual of the last certificate.
SLOPES: Final = "slopes"
#: uint8 (n_rows,): 0 where screening has excluded the column from every solution.
ALIVE: Final = "alive"


def begin(chunk: Chunk, norms: F64, means: F64) -> None:
    """Initialise a chunk's state, without coefficients."""
    n = chunk.n_rows
    chunk.state = {
        NORMS: norms,
        MEANS: means,
        SLOPES: np.zeros(n),
        ALIVE: (chunk.labels >= 0.0).astype(np.uint8),
    }
    chunk.state_version += 1


def settle(chunk: Chunk, *, serial: int, settle: int, gamma: float) -> bool:
    """Apply ``gamma`` times a chunk's last step, once; return whether the chunk is up to date.

    The chunk then has serial ``serial`` and no step. A chunk without coefficients, or with those of
    another exchange than ``settle``, is left as it is.
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
    """Whether a chunk that is not up to date has coefficients worth keeping."""
    if SERIAL not in chunk.state:
        return False
    return 0 <= settle - int(chunk.state[SERIAL][0]) <= MISSED_MAX


def write(chunk: Chunk, coef: F64, serial: int) -> None:
    """Replace a chunk's coefficients by an array, which it then owns, and a zero step."""
    chunk.state |= {
        COEF: coef,
        STEP: np.zeros(chunk.n_rows),
        SERIAL: np.array([serial], np.int64),
    }
    chunk.state_version += 1


def note(chunk: Chunk, **arrays: NDArray[np.float64] | NDArray[np.uint8]) -> None:
    """Replace some of a chunk's state arrays."""
    chunk.state |= arrays
    chunk.state_version += 1
