"""A member's coordinates in the state of their chunk, with a pending step: they travel with it.

Coordinates are dual variables of a chunk's rows, or coefficients of its columns. A chunk's state
has their values at the beginning of the last exchange that it took part in, the full ``step`` of
that exchange, and its ``serial``. Arrays are replaced and never changed: a state that is being sent
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.base import Work
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core.store import row_array

#: Missed exchanges after which kept coordinates are worse than those that the model gives.
MISSED_MAX: Final = 2

#: Maps a chunk, values, step and step length to new values.
Moved = Callable[[Chunk, F64, F64, float], F64]


@dataclass(frozen=True, slots=True)
class Settling:
    """Which step an exchange settles, and by which share."""

    serial: int
    settle: int
    gamma: float

    @staticmethod
    def of(work: Work) -> Settling:
        """Read it from an exchange."""
        serial, settle, gamma = (work.parameters[k] for k in ("serial", "settle", "gamma"))
        return Settling(int(serial), int(settle), float(gamma))


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The names of a chunk's coordinates in its state; arrays are float64 (n_rows,)."""

    #: Of the values.
    name: str
    #: Of all names: each of several classes has its own.
    prefix: str = ""

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of values, step and serial in a state."""
        return self.prefix + self.name, self.prefix + "step", self.prefix + "serial"

    def serial(self, chunk: Chunk) -> int | None:
        """Return the serial of a chunk's last exchange; None if it has no coordinates."""
        name = self.prefix + "serial"
        has = name in chunk.state and self.values(chunk).shape == (chunk.n_rows,)
        return int(chunk.state[name][0]) if has else None

    def values(self, chunk: Chunk) -> F64:
        """Return a chunk's values."""
        return chunk.state[self.prefix + self.name]

    def step(self, chunk: Chunk) -> F64:
        """Return the step of the exchange that the chunk is settled for."""
        return chunk.state[self.prefix + "step"]

    def settle(self, chunk: Chunk, exchange: Settling, moved: Moved) -> bool:
        """Apply the last step, once; return whether the chunk is up to date.

        The chunk then has the exchange's serial, and its step is that of a certificate. A chunk
        without coordinates, or with those of another exchange, is left as it is.
        """
        own = self.serial(chunk)
        if own == exchange.serial:
            return True
        if own is None or own != exchange.settle:
            return False
        values = self.values(chunk)
        if exchange.gamma != 0.0:
            values = moved(chunk, values, self.step(chunk), exchange.gamma)
        self.write(chunk, values, exchange.serial)
        return True

    def give(self, chunk: Chunk, exchange: Settling, moved: Moved, made: Callable[[], F64]) -> bool:
        """Settle a chunk, or give it coordinates; return whether it was up to date.

        It keeps its own if it has missed few exchanges; else it gets those that are ``made``.
        """
        if self.settle(chunk, exchange, moved):
            return True
        own = self.serial(chunk)
        is_recent = own is not None and 0 <= exchange.settle - own <= MISSED_MAX
        self.write(chunk, self.values(chunk) if is_recent else made(), exchange.serial)
        return False

    def write(self, chunk: Chunk, values: F64, serial: int, step: F64 | None = None) -> None:
        """Replace a chunk's coordinates by arrays, which it then owns.

        Without a step, as in certificates, it is as large as the values: its share scales them.
        """
        if step is None:
            step = row_array(chunk)
            step[:] = values
        a, s, n = self.names
        chunk.state = {**chunk.state, a: values, s: step, n: np.array([serial], np.int64)}
        chunk.state_version += 1
