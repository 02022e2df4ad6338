"""In which order a member takes its examples: each once per epoch, whoever has it meanwhile.

Every example of every epoch has a key, drawn from the seed, the epoch and its place in the data. A
member goes through the examples that it has by ascending key, whatever chunks they are in: a
uniformly random order over all of them. What has been taken of a chunk is then one number, its
position in the chunk's own order. The positions of all chunks stand in the trainer's table, which
takes in what is in a round's sum and nothing else, and goes down with the model. So they move with
the chunks, a chunk that was lost with its owner is gone on with exactly where its last merged
update left it, and a member keeps nothing that could be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk
from elasticml.terms import ChunkId

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: What seeds are spawned for.
_ORDER: Final = 1
_HOLDOUT: Final = 2
_NOISE: Final = 3


@dataclass(frozen=True, slots=True)
class Places:
    """Number of each chunk in the trainer's table: blocks one after another, then ordinals.

    ``starts`` (n_blocks + 1,), int64: number of each block's first chunk.
    """

    starts: I64

    def of(self, chunks: Sequence[Chunk]) -> I64:
        """Return the numbers of chunks, shape (n,)."""
        starts = self.starts.tolist()
        return np.array([starts[c.id.block] + c.id.ordinal for c in chunks], np.int64)


@dataclass(frozen=True, slots=True)
class Taken:
    """Examples in the order in which they are to be taken, (n,) each."""

    #: Which of the chunks, by its place among those given.
    chunk: I64
    row: I64


def order_keys(seed: int, id: ChunkId, epoch: int, n_rows: int) -> F64:
    """Draw the keys of a chunk's examples in an epoch, in [0, 1), shape (n_rows,)."""
    return _rng(seed, _ORDER, id.block, id.ordinal, epoch).random(n_rows)


def held_out(seed: int, id: ChunkId, n_rows: int, share: float) -> NDArray[np.bool_]:
    """Say which of a chunk's examples are never trained on, shape (n_rows,)."""
    if share <= 0.0:
        return np.zeros(n_rows, np.bool_)
    return _rng(seed, _HOLDOUT, id.block, id.ordinal).random(n_rows) < share


def noise_seed(seed: int, serial: int, chunks: Sequence[Chunk]) -> int:
    """Seed a member's dropout and its like in a round: from what it has, not from who it is."""
    first = (chunks[0].id.block, chunks[0].id.ordinal) if chunks else (0, 0)
    sequence = np.random.SeedSequence(seed, spawn_key=(_NOISE, serial, *first))
    return int(sequence.generate_state(1)[0])


def _rng(seed: int, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Sampler:
    """Goes through a member's examples, epoch after epoch.

    Parameters
    ----------
    seed : int
    holdout : float
        Share of the examples that is left out.
    """

    def __init__(self, seed: int, holdout: float) -> None:
        self._seed = seed
        self._holdout = holdout
        self._epoch = -1
        #: By chunk, for this epoch: the rows that are trained on by ascending key, and their keys.
        self._orders: dict[ChunkId, tuple[I64, F64]] = {}
        self._ids: tuple[ChunkId, ...] = ()
        #: Positions from which ``_rest`` goes on at ``_next``; (chunks,).
        self._position: I64 = np.zeros(0, np.int64)
        self._rest = Taken(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._next = 0

    def n_trained(self, chunk: Chunk) -> int:
        """Count a chunk's examples that are trained on."""
        held = held_out(self._seed, chunk.id, chunk.n_rows, self._holdout)
        return chunk.n_rows - int(held.sum())

    def begin(self, chunks: Sequence[Chunk], position: I64, epoch: int) -> int:
        """Stand where an epoch stands.

        Parameters
        ----------
        chunks : sequence of Chunk
        position : ndarray (chunks,), int64
            How many examples of each have been taken in this epoch.
        epoch : int

        Returns
        -------
        int
            How many are left.
        """
        ids = tuple(chunk.id for chunk in chunks)
        if epoch != self._epoch:
            self._orders, self._epoch = {}, epoch
        elif ids == self._ids and np.array_equal(position, self._position):
            return self._rest.row.size - self._next
        self._orders = {c.id: self._orders.get(c.id) or self._order(c, epoch) for c in chunks}
        found = [self._orders[id] for id in ids]
        rests = [order[at:] for (order, _), at in zip(found, position.tolist(), strict=True)]
        keys = [keys[at:] for (_, keys), at in zip(found, position.tolist(), strict=True)]
        sizes = [rest.size for rest in rests]
        merged = np.argsort(np.concatenate([np.zeros(0), *keys]), kind="stable")
        self._rest = Taken(
            np.repeat(np.arange(len(ids)), sizes)[merged],
            np.concatenate([np.zeros(0, np.int64), *rests])[merged],
        )
        self._ids, self._position, self._next = ids, position.copy(), 0
        return int(merged.size)

    def take(self, n: int) -> tuple[Taken, I64]:
        """Take the next ``n`` examples.

        Returns
        -------
        Taken
        ndarray (chunks,), int64
            How many of each chunk are among them.
        """
        rows = slice(self._next, self._next + n)
        taken = Taken(self._rest.chunk[rows], self._rest.row[rows])
        seen = np.bincount(taken.chunk, minlength=len(self._ids))
        self._next += taken.row.size
        self._position = self._position + seen
        return taken, seen

    def _order(self, chunk: Chunk, epoch: int) -> tuple[I64, F64]:
        held = held_out(self._seed, chunk.id, chunk.n_rows, self._holdout)
        keys = order_keys(self._seed, chunk.id, epoch, chunk.n_rows)
        rows = np.flatnonzero(~held)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        return rows, keys[rows]
