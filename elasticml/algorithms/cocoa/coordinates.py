"""A member's coordinates in the state of their chunk, with a pending step: they travel with it.

Coordinates are dual variables of a chunk's rows, or coefficients of its columns. A chunk's state
has their values at the beginning of the last exchange that it took part in, the full ``step`` of
that exchange, and its ``serial``. Arrays are replaced and never changed: a state that is being sent
stays as it is. Those of several chunks may be parts of one array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
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

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of values, step and serial in a state."""
        return self.prefix + self.name, self.prefix + "step", self.prefix + "serial"

    def serial(self, chunk: Chunk) -> int | None:
        """Return the serial of a chunk's last exchange; None if it has no coordinates."""
        number = chunk.state.get(self.prefix + "serial")
        if number is None or self.values(chunk).shape != (chunk.n_rows,):
            return None
        return int(number[0])

    def values(self, chunk: Chunk) -> F64:
        """Return a chunk's values."""
        return chunk.state[self.prefix + self.name]

    def step(self, chunk: Chunk) -> F64:
        """Return the step of a chunk's last exchange."""
        return chunk.state[self.prefix + "step"]

    def _runs(self, chunks: Sequence[Chunk]) -> Iterator[tuple[int | None, list[Chunk]]]:
        """Yield runs of chunks that were written together, and their serials."""
        name = self.names[2]
        for _, run in itertools.groupby(chunks, lambda chunk: id(chunk.state.get(name))):
            some = list(run)
            yield self.serial(some[0]), some

    def ready(self, chunks: Sequence[Chunk], exchange: Settling) -> list[Chunk]:
        """Return those that took part in the exchange before, or in this one, which is repeated."""
        serials = exchange.serial, exchange.settle
        return [chunk for own, some in self._runs(chunks) if own in serials for chunk in some]

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
        for own, some in self._runs(chunks):
            part = slice(start, start + sum(chunk.n_rows for chunk in some))
            is_ready = own in (exchange.serial, exchange.settle)
            if own is not None and (is_ready or 0 <= exchange.settle - own <= MISSED_MAX):
                gamma = exchange.gamma if own == exchange.settle else 0.0
                value, step, _ = self.names
                np.multiply(_joined([c.state[step] for c in some]), gamma, out=out[part])
                out[part] += _joined([c.state[value] for c in some])
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
        (a, s, n), start, number = self.names, 0, np.array([serial], np.int64)
        for chunk in chunks:
            stop = start + chunk.n_rows
            own = {a: values[start:stop], s: step[start:stop], n: number}
            chunk.state = {**chunk.state, **own}
            chunk.state_version += 1
            start = stop


def array_for(chunks: Sequence[Chunk]) -> F64:
    """Return an array of all rows of chunks, in a file if it is one that is out of core."""
    return row_array(chunks[0]) if len(chunks) == 1 else np.empty(sum(c.n_rows for c in chunks))


def _joined(parts: Sequence[F64]) -> F64:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
