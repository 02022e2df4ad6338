"""Shuffled sampling without replacement, with a position that moves with its chunk.

A chunk's order in a pass depends on the seed, the chunk's id and the number of the pass only. So
the position, two numbers in the chunk's state, is all that a new owner needs to continue where the
last one stopped. The chunk joins the current pass of its new owner, whatever its own number of
passes: otherwise the owner would visit only this chunk until it had caught up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Batch
from elasticml.data.chunks.chunk import Chunk

#: Name in a chunk's state: int64 (2,), completed passes and rows visited in the current one.
POSITION: Final = "visited"
#: Separate these draws from all others with the same seed.
_ROWS: Final = 0xA511
_CHUNKS: Final = 0xA512


class Sampler:
    """Draws mini-batches from a member's chunks, from several at a time.

    Parameters
    ----------
    chunks : sequence of Chunk
        The member's chunks; sampling resumes at the positions in their states.
    seed : int
        The job's seed.
    window : int
        Number of chunks that a mini-batch is drawn from, if as many have examples left. Files are
        often sorted by label, so that a single chunk would give a biased step.
    """

    def __init__(self, chunks: Sequence[Chunk], *, seed: int, window: int = 16) -> None:
        self._seed = seed
        self._window = max(1, window)
        self._chunks: dict[str, Chunk] = {}
        #: Number of passes added to the count of each taken-over chunk; may be negative.
        self._lead: dict[str, int] = {}
        #: Orders of the open chunks with their pass, by chunk; drawn when needed.
        self._orders: dict[str, tuple[int, NDArray[np.int64]]] = {}
        self._open: list[str] = []
        self._waiting: list[str] = []
        #: Examples in the chunks.
        self.rows = 0
        #: Visits of these examples, corrected by the lead of taken-over chunks.
        self._visits = 0
        self.change(chunks)

    @property
    def passes(self) -> float:
        """Mean number of visits per example in the member's chunks.

        Examples of taken-over chunks count as visited as often as the others.
        """
        return self._visits / self.rows if self.rows else 0.0

    def change(self, chunks: Sequence[Chunk]) -> None:
        """Continue with these chunks: drop those that left; new ones join the current pass.

        Between two passes the current pass is the completed one. Otherwise a member that has
        completed all its passes would not visit what a lost member had left.
        """
        here = {str(chunk.id): chunk for chunk in chunks if chunk.n_rows}
        self._lead = {id: lead for id, lead in self._lead.items() if id in here}
        least, most = _pass_of(here, self._lead)
        for id, chunk in here.items():
            if id not in self._lead:
                done = _position(chunk)[0]
                self._lead[id] = min(max(done, least), most) - done
        self._chunks = here
        self._orders = {id: order for id, order in self._orders.items() if id in self._chunks}
        self._open = [id for id in self._open if id in self._chunks]
        self.rows = self._visits = 0
        for id, chunk in self._chunks.items():
            done, position = _position(chunk)
            self.rows += chunk.n_rows
            self._visits += (done + self._lead[id]) * chunk.n_rows + position
        self._open_chunks()

    def next(self, size: float) -> Batch:
        """Draw a mini-batch and update the positions in the chunks' states.

        Parameters
        ----------
        size : float
            Requested size, at least 1, or infinity. A batch is smaller at the end of a pass: it
            never holds an example twice.

        Returns
        -------
        Batch
            Empty if there are no chunks.
        """
        parts: list[tuple[Chunk, NDArray[np.int64]]] = []
        left = int(min(max(1.0, size), self.rows))
        if not self._open:
            self._open_chunks()
        while left and self._open:
            share = -(-left // len(self._open))
            for id in list(self._open):
                rows = self._take(id, min(share, left))
                parts.append((self._chunks[id], rows))
                left -= rows.size
                if left == 0:
                    break
        return Batch(parts=parts)

    def _take(self, id: str, n: int) -> NDArray[np.int64]:
        chunk = self._chunks[id]
        done, position = _position(chunk)
        rows = self._order(id, done)[position : position + n]
        position += rows.size
        self._visits += rows.size
        if position == chunk.n_rows:
            done, position = done + 1, 0
            self._open.remove(id)
            del self._orders[id]
            if self._waiting:
                self._open.append(self._waiting.pop())
        chunk.state[POSITION] = np.array([done, position], np.int64)
        chunk.state_version += 1
        return rows

    def _order(self, id: str, done: int) -> NDArray[np.int64]:
        cached = self._orders.get(id)
        if cached is None or cached[0] != done:
            chunk = self._chunks[id]
            rng = np.random.default_rng([_ROWS, self._seed, *chunk_words(chunk), done])
            cached = self._orders[id] = (done, rng.permutation(chunk.n_rows))
        return cached[1]

    def _open_chunks(self) -> None:
        """Choose the open and the waiting chunks among those with the fewest passes."""
        if not self._chunks:
            self._open, self._waiting = [], []
            return
        done = {id: _position(c)[0] + self._lead[id] for id, c in self._chunks.items()}
        least = min(done.values())
        due = sorted(id for id in self._chunks if done[id] == least)
        rng = np.random.default_rng(
            [_CHUNKS, self._seed, *chunk_words(self._chunks[due[0]]), least]
        )
        drawn = [due[k] for k in rng.permutation(len(due))]
        # Open chunks stay open, so that few orders are kept at a time.
        still_open = [id for id in self._open if done[id] == least]
        rest = [id for id in drawn if id not in set(still_open)]
        self._open = (still_open + rest)[: self._window]
        self._waiting = [id for id in rest if id not in set(self._open)]


def _pass_of(chunks: Mapping[str, Chunk], lead: Mapping[str, int]) -> tuple[int, int]:
    """Return the range of completed passes to which new chunks are clamped.

    Parameters
    ----------
    lead : mapping
        Leads of the chunks owned before. If there are none, the new chunks with the most passes
        define the current pass.
    """
    positions = {id: _position(chunk) for id, chunk in chunks.items()}
    current = {id: (positions[id][0] + more, positions[id][1]) for id, more in lead.items()}
    if not current:
        furthest = max((done for done, _ in positions.values()), default=0)
        current = {id: position for id, position in positions.items() if position[0] == furthest}
    least = min((done for done, _ in current.values()), default=0)
    if least and all(position == (least, 0) for position in current.values()):
        least -= 1
    return least, least + 1


def _position(chunk: Chunk) -> tuple[int, int]:
    stored = chunk.state.get(POSITION)
    return (0, 0) if stored is None else (int(stored[0]), int(stored[1]))


def chunk_words(chunk: Chunk) -> tuple[int, ...]:
    """Return a hash of a chunk's id as two 32-bit words, for seeds."""
    digest = hashlib.blake2b(str(chunk.id).encode(), digest_size=8).digest()
    return (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))
