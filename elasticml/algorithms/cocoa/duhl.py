"""DuHL: which chunks on a disk a pass skips, those that hold almost nothing of the duality gap.

Certificates compute each chunk's share of the duality gap. A pass that has to read chunks visits
those that stay in memory, which cost no reading, and as many others as together hold most of the
gap, the largest share per byte first. A chunk's turn comes at the latest after a fixed number of
passes, whatever its share: the skipped chunks change from pass to pass, and the limit does not
change. Certificates visit every chunk.

Where all chunks matter alike, as in shuffled data while most rows still change, nothing is skipped:
skipping a few would cost rounds and save little.

Source: DuHL (Duenner, Parnell, Jaggi: Efficient Use of Limited-Memory Accelerators for Linear
Learning on Heterogeneous Systems, NIPS 2017), section 3, with chunks for coordinates. There too,
the importance is the coordinate's share of the gap, as of its last visit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import ChunkId

#: Share of the gap that a pass covers.
COVERED: Final = 0.9
#: Estimated share of a chunk's gap that is left after a turn, until the next certificate.
LEFT: Final = 0.1
#: Every chunk has a turn at least once in this number of passes.
EVERY: Final = 6
#: A pass that would read more than this share of the bytes on disk reads all of them.
WORTH: Final = 0.5


class DuhlSelection:
    """The choice of one member's chunks, pass by pass."""

    def __init__(self) -> None:
        self._passes = 0
        #: The pass of each chunk's last turn.
        self._last: dict[ChunkId, int] = {}
        #: The last certificate's gaps, and their estimated rest.
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
        """Choose the chunks of the next pass.

        Parameters
        ----------
        chunks : sequence of Chunk
            All chunks of the member.
        importance : mapping
            The chunks' contributions to the duality gap, where known.
        staying : set of ChunkId
            Chunks whose bodies are in memory.
        whole : bool
            Choose all chunks.

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
        last, self._last = self._last, {}
        for id, has in zip(ids, chosen, strict=True):
            self._last[id] = self._passes if has else last.get(id, 0)
            if has:
                self._left[id] = LEFT * self._left.get(id, 0.0)
        return chosen


def _chosen(
    gaps: NDArray[np.float64],
    waited: NDArray[np.int64],
    nbytes: NDArray[np.float64],
    staying: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Choose by gap, passes since the last turn, bytes, and whether a chunk is in memory."""
    gaps = np.where(np.isfinite(gaps), np.maximum(gaps, 0.0), np.inf)
    total = float(gaps.sum())
    if not 0.0 < total < np.inf:
        return np.ones(gaps.size, np.bool_)
    chosen = staying | (waited >= EVERY)
    others = np.flatnonzero(~chosen)
    order = others[np.argsort(-(gaps / nbytes)[others], kind="stable")]
    held = float(gaps[chosen].sum()) + np.cumsum(gaps[order])
    # Up to and including the chunk that completes the share.
    n_read = int(np.searchsorted(held, COVERED * total)) + 1
    chosen[order[:n_read]] = True
    read = float(nbytes[chosen & ~staying].sum())
    if read > WORTH * float(nbytes[~staying].sum()):
        chosen[:] = True
    return chosen
