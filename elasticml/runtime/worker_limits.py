"""A member's share of its worker's memory, and the disk for chunks that do not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from elasticml.data.out_of_core.mapped_memory import disk_room, resident_bytes
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.runtime.chunks.chunk_store import ChunkStore

#: Share of a worker's or a job's memory limit for chunk bodies while all of them are in memory.
BODIES_SHARE: Final = 0.6
#: Share of a worker's limit for its resident memory, libraries and mapped files included. With the
#: buffers of parsers and sums it stays below .75: nannies pause a worker at .8 and end it at .95.
PROCESS_SHARE: Final = 0.62
#: Share of a job's limit that is left for temporary data.
_SLACK: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits of one worker, or of one job on it; None means no limit."""

    #: Bytes of chunk bodies in memory while all of them fit.
    bodies_bytes: int | None = None
    #: Bytes of the whole process once they do not fit.
    process_bytes: int | None = None
    #: Where bodies go if they do not fit; None if there is no such place.
    folder: Path | None = None

    @staticmethod
    def of_worker(memory_bytes: int | None, folder: Path | None) -> WorkerLimits:
        """Return the limits of a worker with this memory limit; 0 and None mean no limit."""
        if folder is not None and disk_room(folder) == 0:
            folder = None
        if not memory_bytes:
            return WorkerLimits(folder=folder)
        return WorkerLimits(
            bodies_bytes=int(BODIES_SHARE * memory_bytes),
            process_bytes=int(PROCESS_SHARE * memory_bytes),
            folder=folder,
        )

    def at_most(self, limit_bytes: int | None) -> WorkerLimits:
        """Return these limits under a job's memory limit for a member."""
        if not limit_bytes:
            return self
        # The process uses memory before there are any data.
        left = int((1.0 - _SLACK) * limit_bytes) - resident_bytes()
        bodies = max(0, min(int(BODIES_SHARE * limit_bytes), left))
        limits = self.bodies_bytes, self.process_bytes
        return replace(
            self,
            bodies_bytes=bodies if limits[0] is None else min(bodies, limits[0]),
            process_bytes=limit_bytes if limits[1] is None else min(limit_bytes, limits[1]),
        )

    def store(self, forms: int = 1, row_bytes: int = 0) -> ChunkStore:
        """Make the store of a job.

        Parameters
        ----------
        forms : int
            Of each body: as many times as much memory and disk is taken for it in the end.
        row_bytes : int
            Bytes that the solver keeps of each row besides.
        """
        if self.process_bytes is None or self.folder is None:
            return ChunkStore(self.bodies_bytes)
        bodies = None if self.bodies_bytes is None else self.bodies_bytes // forms
        return ChunkStore(
            bodies,
            OutOfCoreStore(self.process_bytes, self.folder),
            forms,
            row_bytes,
        )
