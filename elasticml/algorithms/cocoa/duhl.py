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
from dataclasses import dataclass, field, replace
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


@dataclass(slots=True)
class _Past:
    """The state that determines a pass's choice."""

    passes: int = 0
    #: The pass of each chunk's last turn.
    last: dict[ChunkId, int] = field(default_factory=dict)
    #: The last certificate's gaps, and their estimated rest.
    importance: Mapping[ChunkId, float] | None = None
    left: dict[ChunkId, float] = field(default_factory=dict)

    def copy(self) -> _Past:
        """Return a copy."""
        return replace(self, last=dict(self.last), left=dict(self.left))


@dataclass(frozen=True, slots=True)
class _Made:
    """A choice, its inputs, and the state before and after it."""

    ids: tuple[ChunkId, ...]
    whole: bool
    chosen: NDArray[np.bool_]
    before: _Past
    after: _Past


class DuhlSelection:
    """The choice of one member's chunks, pass by pass.

    A pass that is repeated because its steps were discarded when a member was lost counts once, and
    visits the same chunks.
    """

    def __init__(self) -> None:
        self._past = _Past()
        #: Seed and serial of the last pass, and the choices of its epochs.
        self._serial: tuple[int, int] | None = None
        self._made: dict[int, _Made] = {}
        #: The state after undoing the last pass.
        self._undone = _Past()

    def next(
        self,
        key: tuple[int, int, int],
        chunks: Sequence[Chunk],
        importance: Mapping[ChunkId, float],
        staying: Set[ChunkId],
        *,
        whole: bool = False,
    ) -> NDArray[np.bool_]:
        """Choose the chunks of the next pass.

        Parameters
        ----------
        key : tuple of int
            Seed, serial and epoch of the pass.
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
        *serial, epoch = key
        if tuple(serial) != self._serial:
            self._serial, self._made = (key[0], key[1]), {}
        ids = tuple(chunk.id for chunk in chunks)
        made = self._made.get(epoch)
        if made is not None and (made.ids, made.whole) == (ids, whole):
            self._past = made.after.copy()
            self._undone = replace(made.before.copy(), passes=made.after.passes)
            return made.chosen.copy()
        before = self._past.copy() if made is None else made.before
        self._past = before.copy()
        chosen = self._choose(chunks, importance, staying, whole=whole)
        self._count(ids, chosen)
        self._undone = replace(before.copy(), passes=self._past.passes)
        self._made[epoch] = _Made(ids, whole, chosen.copy(), before, self._past.copy())
        return chosen

    def undo(self) -> None:
        """Do not count the last pass as a turn: its chunks keep their waiting time and gap."""
        self._past = self._undone.copy()

    def _choose(
        self,
        chunks: Sequence[Chunk],
        importance: Mapping[ChunkId, float],
        staying: Set[ChunkId],
        *,
        whole: bool,
    ) -> NDArray[np.bool_]:
        """Start a pass, and choose its chunks."""
        past, ids = self._past, [chunk.id for chunk in chunks]
        past.passes += 1
        if whole or any(id not in importance or id not in past.last for id in ids):
            return np.ones(len(ids), np.bool_)
        if importance is not past.importance:
            past.importance, past.left = importance, dict(importance)
        gaps = np.array([past.left[id] for id in ids])
        waited = np.array([past.passes - past.last[id] for id in ids])
        nbytes = np.array([chunk.nbytes for chunk in chunks], np.float64)
        return _chosen(gaps, waited, nbytes, np.array([id in staying for id in ids]))

    def _count(self, ids: Sequence[ChunkId], chosen: NDArray[np.bool_]) -> None:
        """Record the turns of this pass."""
        past = self._past
        past.last = {id: past.last.get(id, 0) for id in ids}
        for id, has in zip(ids, chosen, strict=True):
            if has:
                past.last[id] = past.passes
                past.left[id] = LEFT * past.left.get(id, 0.0)


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
