"""The order in which members sample their examples: each once per epoch, also if chunks move.

Every example has a random key for each epoch, which depends on the seed, the epoch and its position
in the data. A member samples the examples of its chunks by ascending key: a uniformly random order
over all of them. So a chunk's progress is one number, the position in the chunk's own order. The
positions of all chunks are in the trainer's table, which is updated from a round's sum only, and is
sent with the model. Therefore positions move with the chunks, a chunk that was lost with its owner
continues exactly after its last merged update, and a member has no state that could be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64, I64
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import ChunkId

#: Spawn keys of the random streams.
_ORDER: Final = 1
_HOLDOUT: Final = 2
_NOISE: Final = 3


@dataclass(frozen=True, slots=True)
class Taken:
    """Examples in sampling order, (n,) each."""

    #: Index of the chunk.
    chunk: I64
    row: I64


def order_keys(seed: int, id: ChunkId, epoch: int, n_rows: int) -> F64:
    """Draw the keys of a chunk's examples in an epoch, in [0, 1), shape (n_rows,)."""
    return _rng(seed, _ORDER, id.block, id.ordinal, epoch).random(n_rows)


def held_out(seed: int, id: ChunkId, n_rows: int, share: float) -> NDArray[np.bool_]:
    """Return a mask of a chunk's held-out examples, shape (n_rows,)."""
    if share <= 0.0:
        return np.zeros(n_rows, np.bool_)
    return _rng(seed, _HOLDOUT, id.block, id.ordinal).random(n_rows) < share


def noise_seed(seed: int, serial: int, chunks: Sequence[Chunk]) -> int:
    """Return the seed of a round's random operations; it depends on the chunks, not the member."""
    first = (chunks[0].id.block, chunks[0].id.ordinal) if chunks else (0, 0)
    sequence = np.random.SeedSequence(seed, spawn_key=(_NOISE, serial, *first))
    return int(sequence.generate_state(1)[0])


def _rng(seed: int, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Sampler:
    """Samples a member's examples without replacement in each epoch.

    Parameters
    ----------
    seed : int
    holdout : float
        Share of the examples that is held out.
    """

    def __init__(self, seed: int, holdout: float) -> None:
        self._seed = seed
        self._holdout = holdout
        self._epoch = -1
        #: By chunk, for this epoch: training rows by ascending key, and their keys.
        self._orders: dict[ChunkId, tuple[I64, F64]] = {}
        self._ids: tuple[ChunkId, ...] = ()
        #: Positions of the chunks that correspond to ``_next`` in ``_rest``; (chunks,).
        self._position: I64 = np.zeros(0, np.int64)
        self._rest = Taken(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._next = 0

    def n_trained(self, chunk: Chunk) -> int:
        """Return the number of a chunk's training examples."""
        held = held_out(self._seed, chunk.id, chunk.n_rows, self._holdout)
        return chunk.n_rows - int(held.sum())

    def begin(self, chunks: Sequence[Chunk], position: I64, epoch: int) -> int:
        """Set the chunks and their positions in an epoch.

        Parameters
        ----------
        chunks : sequence of Chunk
        position : ndarray (chunks,), int64
            Number of examples of each chunk already taken in this epoch.
        epoch : int

        Returns
        -------
        int
            Number of examples left.
        """
        ids = tuple(chunk.id for chunk in chunks)
        if epoch != self._epoch:
            self._orders, self._epoch = {}, epoch
        elif ids == self._ids and np.array_equal(position, self._position):
            return self._rest.row.size - self._next
        self._orders = {c.id: self._orders.get(c.id) or self._order(c, epoch) for c in chunks}
        orders = [self._orders[id] for id in ids]
        rests = [order[at:] for (order, _), at in zip(orders, position.tolist(), strict=True)]
        keys = [keys[at:] for (_, keys), at in zip(orders, position.tolist(), strict=True)]
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
            Number of examples taken from each chunk.
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
