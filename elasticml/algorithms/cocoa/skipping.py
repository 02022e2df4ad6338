"""Which of the chunks on a disk a pass leaves out: those that hold next to nothing of the gap.

Certificates know what each chunk adds to the duality gap. A pass that has to read chunks goes over
those that stay in memory, which cost no reading, and over as many others as together hold most of
the gap, the largest shares a byte first. A chunk counts for more the longer ago its last turn was,
and has one in every few passes whatever it counts: what is left out changes from pass to pass, and
what is converged to does not change. Certificates look at every chunk.

Where all chunks matter alike, as in shuffled data while most rows still change, nothing is left
out: leaving a few out would cost rounds and save little.

Source: DuHL (Duenner, Parnell, Jaggi: Efficient Use of Limited-Memory Accelerators for Linear
Learning on Heterogeneous Systems, NIPS 2017), section 3, with chunks for coordinates; there too the
importance is the coordinate's share of the gap, and is as old as the last look at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk
from elasticml.terms import ChunkId

#: Share of the gap that a pass works on.
COVERED: Final = 0.9
#: Share of a chunk's gap that is thought to be left after a turn, until the next certificate.
LEFT: Final = 0.1
#: A chunk has its turn in at least one of so many passes.
EVERY: Final = 6
#: A pass that would read more than this share of all bytes reads all of them.
WORTH: Final = 0.5


class Turns:
    """The turns of one member's chunks, pass by pass."""

    def __init__(self) -> None:
        #: The pass in which each chunk had its last turn.
        self._last: dict[ChunkId, int] = {}
        self._passes = 0
        #: What the last certificate said, and what is thought to be left of it.
        self._importance: Mapping[ChunkId, float] | None = None
        self._left: dict[ChunkId, float] = {}

    def next(
        self,
        chunks: Sequence[Chunk],
        importance: Mapping[ChunkId, float],
        staying: Set[ChunkId],
        *,
        whole: bool = False,
    ) -> NDArray[np.bool_]:
        """Say which chunks have their turn in the next pass.

        Parameters
        ----------
        chunks : sequence of Chunk
            All that the member computes over.
        importance : mapping
            What chunks add to the duality gap, as far as it is known.
        staying : set of ChunkId
            Those whose bodies are in memory.
        whole : bool
            All have.

        Returns
        -------
        ndarray (chunks,), bool
        """
        ids = [chunk.id for chunk in chunks]
        self._passes += 1
        if whole or any(id not in importance or id not in self._last for id in ids):
            chosen = np.ones(len(ids), np.bool_)
        else:
            if importance is not self._importance:
                self._importance, self._left = importance, dict(importance)
            gaps = np.array([self._left[id] for id in ids])
            waited = np.array([self._passes - self._last[id] for id in ids])
            nbytes = np.array([chunk.nbytes for chunk in chunks], np.float64)
            chosen = _chosen(gaps, waited, nbytes, np.array([id in staying for id in ids]))
        last = {id: self._last.get(id, 0) for id in ids}
        for id, has in zip(ids, chosen, strict=True):
            if has:
                last[id] = self._passes
                self._left[id] = LEFT * self._left.get(id, 0.0)
        self._last = last
        return chosen


def _chosen(
    gaps: NDArray[np.float64],
    waited: NDArray[np.int64],
    nbytes: NDArray[np.float64],
    staying: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Choose by shares of the gap, passes since the last turn, sizes and what is in memory."""
    gaps = np.where(np.isfinite(gaps), np.maximum(gaps, 0.0), np.inf)
    total = float(gaps.sum())
    if not 0.0 < total < np.inf:
        return np.ones(gaps.size, np.bool_)
    chosen = staying | (waited >= EVERY)
    others = np.flatnonzero(~chosen)
    order = others[np.argsort(-(gaps / nbytes)[others], kind="stable")]
    held = float(gaps[chosen].sum()) + np.cumsum(gaps[order])
    # Up to and with the one that makes the share full.
    n_wanted = int(np.searchsorted(held, COVERED * total)) + 1
    chosen[order[:n_wanted]] = True
    read = float(nbytes[chosen & ~staying].sum())
    if read > WORTH * float(nbytes[~staying].sum()):
        chosen[:] = True
    return chosen
