"""Which examples come next: shuffled, each once a pass, with a position that moves with its chunk.

A chunk's order in a pass is drawn from the seed, the chunk's id and the pass alone, so that its
position in it, two numbers in the chunk's state, is all that a new owner needs to go on where the
last one stopped, whoever it is. How many passes it has behind it counts for less: a chunk that was
taken over joins the pass that its new owner is in, or that one would visit nothing else until they
are level.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Batch
from elasticml.data.chunk import Chunk

#: Name in a chunk's state: int64 (2,), whole passes made and rows visited of the next one.
POSITION: Final = "visited"
#: Keeps these draws apart from all others made with the same seed.
_ROWS: Final = 0xA511
_CHUNKS: Final = 0xA512


class Sampler:
    """Draws mini-batches from a member's chunks, from several of them at a time.

    Parameters
    ----------
    chunks : sequence of Chunk
        Those that the member owns; positions in their states are gone on from.
    seed : int
        The job's.
    window : int
        Chunks that a mini-batch is drawn from, as far as there are so many with examples left:
        files are often sorted by label, and one chunk alone would make a biased step.
    """

    def __init__(self, chunks: Sequence[Chunk], *, seed: int, window: int = 16) -> None:
        self._seed = seed
        self._window = max(1, window)
        self._chunks: dict[str, Chunk] = {}
        #: Passes by which chunks that were taken over count as further than they are, or less far.
        self._lead: dict[str, int] = {}
        #: Orders of the chunks that are being visited, by chunk; drawn again when asked for.
        self._orders: dict[str, tuple[int, NDArray[np.int64]]] = {}
        self._open: list[str] = []
        self._waiting: list[str] = []
        #: Examples in the chunks.
        self.rows = 0
        #: Visits of them, in all their chunks' lives, as they count here.
        self._visits = 0
        self.change(chunks)

    @property
    def passes(self) -> float:
        """Visits of an example so far, on average over the examples that are here.

        Those of chunks that were taken over count as having been visited as often as the others.
        """
        return self._visits / self.rows if self.rows else 0.0

    def change(self, chunks: Sequence[Chunk]) -> None:
        """Go on with these chunks: those that left are forgotten, new ones join the present pass.

        Between two passes that is the last one, so that nobody who has made all passes leaves
        alone what a lost member had not visited yet.
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
        self._deal()

    def next(self, size: float) -> Batch:
        """Draw a mini-batch and note in the chunks' states that its rows are visited.

        Parameters
        ----------
        size : float
            Examples wanted, at least 1, or infinity. There are fewer at the end of a pass, so that
            a mini-batch never holds an example twice.

        Returns
        -------
        Batch
            Empty where there are no chunks.
        """
        parts: list[tuple[Chunk, NDArray[np.int64]]] = []
        left = int(min(max(1.0, size), self.rows))
        if not self._open:
            self._deal()
        while left and self._open:
            share = -(-left // len(self._open))
            for id in list(self._open):
                rows = self._take(id, min(share, left))
                parts.append((self._chunks[id], rows))
                left -= rows.size
                if left == 0:
                    break
        return Batch(parts=parts)

    def _take(self, id: str, wanted: int) -> NDArray[np.int64]:
        chunk = self._chunks[id]
        done, position = _position(chunk)
        rows = self._order(id, done)[position : position + wanted]
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
        known = self._orders.get(id)
        if known is None or known[0] != done:
            chunk = self._chunks[id]
            rng = np.random.default_rng([_ROWS, self._seed, *chunk_words(chunk), done])
            known = self._orders[id] = (done, rng.permutation(chunk.n_rows))
        return known[1]

    def _deal(self) -> None:
        """Choose what is visited now and what waits: the chunks that have been visited least."""
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
        # What has been begun is gone on with, so that few orders are kept at a time.
        begun = [id for id in self._open if done[id] == least]
        rest = [id for id in drawn if id not in set(begun)]
        self._open = (begun + rest)[: self._window]
        self._waiting = [id for id in rest if id not in set(self._open)]


def _pass_of(chunks: Mapping[str, Chunk], lead: Mapping[str, int]) -> tuple[int, int]:
    """Return between how many whole passes chunks that are new have to have behind them.

    Parameters
    ----------
    lead : mapping
        Of the chunks that were here before. Where there are none, the new ones that are furthest
        take their place.
    """
    places = {id: _position(chunk) for id, chunk in chunks.items()}
    known = {id: (places[id][0] + more, places[id][1]) for id, more in lead.items()}
    if not known:
        furthest = max((done for done, _ in places.values()), default=0)
        known = {id: place for id, place in places.items() if place[0] == furthest}
    least = min((done for done, _ in known.values()), default=0)
    if least and all(place == (least, 0) for place in known.values()):
        least -= 1
    return least, least + 1


def _position(chunk: Chunk) -> tuple[int, int]:
    found = chunk.state.get(POSITION)
    return (0, 0) if found is None else (int(found[0]), int(found[1]))


def chunk_words(chunk: Chunk) -> tuple[int, ...]:
    """Two 32-bit words of a chunk's id, for seeds."""
    digest = hashlib.blake2b(str(chunk.id).encode(), digest_size=8).digest()
    return (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))
