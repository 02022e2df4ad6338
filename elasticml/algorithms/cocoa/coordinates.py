"""A member's coordinates in the state of their chunk, with a pending step: they travel with it.

Coordinates are dual variables of a chunk's rows, or coefficients of its columns. A chunk's state
has their values at the beginning of the last exchange that it took part in, the full ``step`` of
that exchange, and its ``serial``. Arrays are replaced and never changed: a state that is being sent
stays as it is. Those of several chunks may be parts of one array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.base import Work
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core.store import row_array

#: Missed exchanges after which kept coordinates are worse than those that the model gives.
MISSED_MAX: Final = 2


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

    def serial(self, chunk: Chunk) -> int | None:
        """Return the serial of a chunk's last exchange; None if it has no coordinates."""
        name = self.prefix + "serial"
        has = name in chunk.state and self.values(chunk).shape == (chunk.n_rows,)
        return int(chunk.state[name][0]) if has else None

    def values(self, chunk: Chunk) -> F64:
        """Return a chunk's values."""
        return chunk.state[self.prefix + self.name]

    def step(self, chunk: Chunk) -> F64:
        """Return the step of a chunk's last exchange."""
        return chunk.state[self.prefix + "step"]

    def is_ready(self, chunk: Chunk, exchange: Settling) -> bool:
        """Whether a chunk took part in the exchange before, or in this one, which is repeated."""
        return self.serial(chunk) in (exchange.serial, exchange.settle)

    def settled(
        self,
        chunks: Sequence[Chunk],
        exchange: Settling,
        made: Callable[[slice], F64] | None = None,
    ) -> tuple[F64, int]:
        """Return chunks' values with the last step applied, and how many were not up to date.

        A chunk that is not ready keeps its values if it has missed few exchanges; else it gets
        those that are ``made`` for its part of the array.

        Returns
        -------
        ndarray (n,)
            New, of all chunks, at least one. Values may round beyond a bound of the step.
        int
            Of the n.
        """
        out, unset, start = array_for(chunks), 0, 0
        for own, group in itertools.groupby(chunks, self.serial):
            some = list(group)
            part = slice(start, start + sum(chunk.n_rows for chunk in some))
            is_ready = own in (exchange.serial, exchange.settle)
            if own is not None and (is_ready or 0 <= exchange.settle - own <= MISSED_MAX):
                gamma = exchange.gamma if own == exchange.settle else 0.0
                np.multiply(_joined([self.step(c) for c in some]), gamma, out=out[part])
                out[part] += _joined([self.values(c) for c in some])
            elif made is not None:
                out[part] = made(part)
            unset += 0 if is_ready else part.stop - start
            start = part.stop
        return out, unset

    def write(
        self, chunks: Sequence[Chunk], values: F64, serial: int, step: F64 | None = None
    ) -> None:
        """Replace chunks' coordinates by parts of arrays (n,), which do not change after that.

        Without a step, as in certificates, it is as large as the values: its share scales them.
        """
        if step is None:
            step = array_for(chunks)
            step[:] = values
        start, number = 0, np.array([serial], np.int64)
        for chunk in chunks:
            part = slice(start, start + chunk.n_rows)
            own = {self.name: values[part], "step": step[part], "serial": number}
            chunk.state = {**chunk.state, **{self.prefix + k: a for k, a in own.items()}}
            chunk.state_version += 1
            start = part.stop


def array_for(chunks: Sequence[Chunk]) -> F64:
    """Return an array of all rows of chunks, in a file if it is one that is out of core."""
    return row_array(chunks[0]) if len(chunks) == 1 else np.empty(sum(c.n_rows for c in chunks))


def _joined(parts: Sequence[F64]) -> F64:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
