"""The dual variables in a chunk's state, with their pending step; they travel with the chunk."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.messages import MISSED_MAX
from elasticml.data.chunk import Chunk
from elasticml.data.shelf import numbers
from elasticml.objectives.conjugates import DualLoss

F64 = NDArray[np.float64]

#: float64 (n_rows,): dual variables at the beginning of the last exchange.
ALPHA: Final = "alpha"
#: float64 (n_rows,): the full step of that exchange.
STEP: Final = "step"
#: int64 (1,): serial of that exchange.
SERIAL: Final = "serial"


def settle(chunk: Chunk, loss: DualLoss, *, serial: int, settle: int, gamma: float) -> bool:
    """Apply ``gamma`` times a chunk's last step, once; return whether the chunk is up to date.

    The chunk then has serial ``serial`` and no step. A chunk without state, or with the state of
    another exchange than ``settle``, is left as it is.
    """
    state = chunk.state
    if SERIAL not in state or state[ALPHA].shape != (chunk.n_rows,):
        return False
    own = int(state[SERIAL][0])
    if own == serial:
        return True
    if own != settle:
        return False
    alpha = state[ALPHA]
    if gamma != 0.0:
        # Clipped: alpha + (new - alpha) may round beyond a bound that new was on.
        moved = np.multiply(gamma, state[STEP], out=numbers(chunk))
        moved += alpha
        alpha = np.clip(moved, loss.low, loss.high, out=moved)
    write_alpha(chunk, alpha, serial)
    return True


def has_recent_alpha(chunk: Chunk, settle: int) -> bool:
    """Whether a chunk that is not up to date has dual variables worth keeping."""
    state = chunk.state
    if SERIAL not in state or state[ALPHA].shape != (chunk.n_rows,):
        return False
    return 0 <= settle - int(state[SERIAL][0]) <= MISSED_MAX


def write_alpha(chunk: Chunk, alpha: F64, serial: int) -> None:
    """Replace a chunk's state by dual variables, which it then owns, and a zero step."""
    step = numbers(chunk)
    step[:] = 0.0
    chunk.state = {ALPHA: alpha, STEP: step, SERIAL: np.array([serial], np.int64)}
    chunk.state_version += 1


def set_step(chunk: Chunk, step: F64) -> None:
    """Store the step of the exchange that the chunk is settled for."""
    chunk.state[STEP] = step
    chunk.state_version += 1
