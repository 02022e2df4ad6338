"""Writes a job's checkpoints: every few seconds, and when the membership changes.

The state is captured between two rounds, which takes microseconds. A separate thread writes it
while rounds continue, one checkpoint at a time, without what is written already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from elasticml.algorithms.base import Arrays
from elasticml.control.checkpoint_state import progress_entry
from elasticml.control.driver import Driver
from elasticml.data.storage.filesystem import exists, join, remove
from elasticml.errors import ConfigError, ElasticmlError, one_line
from elasticml.runtime.checkpoints.attempt_claim import AttemptClaim
from elasticml.runtime.checkpoints.checkpoint_store import (
    KEPT,
    Part,
    last_number,
    leftovers,
    part_of,
    write_checkpoint,
    write_model,
    write_part,
)
from elasticml.runtime.executors import Runner
from elasticml.story.compressed_records import RecordsView
from elasticml.story.records import (
    CheckpointFailed,
    CheckpointWritten,
    ChunksAbsent,
    GroupReturned,
    MemberActive,
    MemberLost,
    MemberNoticed,
    StoryRecord,
)
from elasticml.training.checkpoint import ResumePoint
from elasticml.training.driver_session import DriverSession

logger = logging.getLogger(__name__)

#: Records after which a checkpoint is due immediately. Chunks change owners because members come or
#: go, and the scheduler's own container may be the next to go.
OWNERSHIP_RECORDS: Final = (MemberNoticed, MemberLost, MemberActive, ChunksAbsent, GroupReturned)
Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The input of one checkpoint, captured on the event loop."""

    resume_point: ResumePoint
    owners: Mapping[str, tuple[Any, ...]]
    facts: Mapping[str, Any]
    #: Parts of the journal that stay; start and entries of the part to write.
    parts: tuple[Part, ...]
    start: Position
    entries: Mapping[str, RecordsView | list[Any]]
    #: Models that are still to be written, by round.
    models: Mapping[int, Arrays]


class Checkpointer:
    """Writes a job's checkpoints.

    Parameters
    ----------
    every_s : float
        Seconds from the start of one to the start of the next; 0 writes one after every round.
    driver_session : DriverSession
    driver : Driver
    claim : AttemptClaim
        To the place; taken, or to be taken before the first write.
    runner : Runner
        Runs the writes.
    spawn : callable
        Starts a coroutine on the event loop.
    write : callable (StoryRecord)
        Appends a record to the story.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        every_s: float,
        driver_session: DriverSession,
        driver: Driver,
        *,
        claim: AttemptClaim,
        runner: Runner,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        write: Callable[[StoryRecord], None],
        clock: Callable[[], float],
    ) -> None:
        self.place = claim.place
        self._claim = claim
        self._every_s = every_s
        self._session = driver_session
        self._driver = driver
        self._runner = runner
        self._spawn = spawn
        self._append = write
        self._clock = clock
        self._latest: ResumePoint | None = None
        #: The last resume point that was written, or tried.
        self._written: ResumePoint | None = None
        self._is_urgent = False
        self._next_s = 0.0
        self._renew_s = claim.renew_s
        #: Set while no write is in progress.
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = False
        #: The job has ended: nothing may be appended to its story.
        self._is_over = False
        self._is_closed = False
        resumed = driver_session.resumed
        self._number = 0 if resumed is None else resumed.number
        self._parts: tuple[Part, ...] = ()
        self._models: dict[int, str] = {}
        #: Files of the last checkpoints, oldest first.
        self._kept: list[tuple[str, ...]] = []
        if resumed is not None:
            self._parts = tuple(part_of(entry) for entry in resumed.parts)
            self._models = dict(resumed.models)
            self._kept = [resumed.files]
        self._is_tidy = False
        #: Files to remove.
        self._obsolete: set[str] = set()

    # --- when ------------------------------------------------------------------------------------

    def offer(self, tuned: Mapping[str, Any], now_s: float) -> None:
        """Capture the job's state between two rounds, and write it if a checkpoint is due.

        Parameters
        ----------
        tuned : mapping
            Settings that the trainer gets next.
        """
        self._latest = self._session.resume_point(self._driver, now_s, tuned)
        self.look(now_s)

    def noted(self, record: StoryRecord) -> None:
        """Note a record of the story: a change of owners makes a checkpoint due immediately."""
        self._is_urgent = self._is_urgent or isinstance(record, OWNERSHIP_RECORDS)

    def look(self, now_s: float) -> None:
        """Start to write a checkpoint, or to renew the claim, if due and no write is in progress.

        Every checkpoint renews the claim, but loading and long rounds write none.
        """
        if not self._idle.is_set():
            return
        if self._latest is not None and self._latest is not self._written:
            if self._is_urgent or now_s >= self._next_s:
                self._begin(now_s)
        elif self._claim.number and now_s >= self._renew_s:
            self._idle.clear()
            self._renew_s = now_s + self._claim.renew_s
            self._spawn(self._renew())

    def _begin(self, now_s: float) -> None:
        assert self._latest is not None
        self._is_urgent = False
        self._next_s = now_s + self._every_s
        self._renew_s = now_s + self._claim.renew_s
        self._written = self._latest
        try:
            task = self._task(self._latest)
        except Exception as error:
            self._not_written(self._latest.round, error)
            return
        self._idle.clear()
        self._spawn(self._write(task))

    async def _renew(self) -> None:
        try:
            await self._runner.run(self._claim.renew)
        except Exception as error:  # the next checkpoint fails for the same reason, and says so
            logger.warning("job %s: cannot renew claim: %s", self._session.record.job, error)
        finally:
            self._idle.set()

    def end(self, is_done: bool) -> None:
        """Write a last checkpoint, unless the job is done."""
        self._is_over = True
        if is_done:
            self._latest = None
        self._spawn(self.close())

    async def close(self) -> None:
        """Wait for the write in progress; write the latest state if it is newer; end the claim."""
        await self._idle.wait()
        if self._latest is not None and self._latest is not self._written:
            self._begin(self._next_s)
        self._latest = None
        await self._idle.wait()
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._runner.run(self._claim.release)
            except Exception as error:  # the claim ends by itself
                logger.warning("job %s: cannot end claim: %s", self._session.record.job, error)
        self._runner.close()

    # --- what ------------------------------------------------------------------------------------

    def _task(self, resume_point: ResumePoint) -> Task:
        """Capture what the writing thread needs; lists only grow, so slices are enough."""
        journal, facts, ledger = (
            self._session.journal,
            self._session.facts,
            self._driver.state.ledger,
        )
        assert facts is not None
        end = (resume_point.story, resume_point.rows, resume_point.progress)
        parts = self._parts
        start = parts[-1].end if parts else (0, 0, 0)
        # A part absorbs the parts before it that are no longer than itself: so there are few parts,
        # and each entry is written only a few times.
        while parts and parts[-1].size <= sum(end) - sum(start):
            start, parts = parts[-1].start, parts[:-1]
        progress = self._driver.history.progress
        return Task(
            resume_point=resume_point,
            owners={str(m): tuple(chunks) for m, chunks in ledger.owned.items()},
            facts=facts.to_json(),
            parts=parts,
            start=start,
            entries={
                "story": journal.story.view(start[0], end[0]),
                "row": journal.rows.view(start[1], end[1]),
                "progress": list(progress[start[2] : end[2]]),
            },
            models={
                round: journal.snapshots[round]
                for round in resume_point.kept
                if round not in self._models
            },
        )

    async def _write(self, task: Task) -> None:
        began_s = self._clock()
        try:
            number, nbytes = await self._runner.run(self._write_task, task)
        except Exception as error:
            self._not_written(task.resume_point.round, error)
        else:
            self._failed = False
            written = CheckpointWritten(
                cause="checkpoint",
                round=task.resume_point.round,
                checkpoint=number,
                bytes=nbytes,
                seconds=round(self._clock() - began_s, 6),
            )
            if not self._is_over:
                self._append(written)
        finally:
            self._idle.set()

    def _not_written(self, round: int, error: Exception) -> None:
        logger.warning(
            "job %s: cannot write checkpoint: %s", self._session.record.job, one_line(error)
        )
        self._written = None  # retried when the next one is due
        if not (self._failed or self._is_over):
            self._failed = True
            what = one_line(error)
            self._append(CheckpointFailed(cause="checkpoint", round=round, error=what))

    # --- in the thread ---------------------------------------------------------------------------

    def _write_task(self, task: Task) -> tuple[int, int]:
        """Write a checkpoint's files, its own file last; then remove obsolete files.

        Returns
        -------
        (int, int)
            Its number, and the bytes written.
        """
        if self._is_tidy and not exists(self.place):  # writing would create it again
            raise ConfigError(
                f"{self.place} has been removed; checkpoints continue if it is restored"
            )
        self._claim.renew()
        if not self._is_tidy:
            self._tidy()
        number = self._number + 1
        models, nbytes = dict(self._models), 0
        for at, arrays in task.models.items():
            models[at] = f"model-{self._claim.number:03d}-{at:08d}.bin"
            nbytes += write_model(self.place, models[at], at, arrays)
        resume_point = task.resume_point
        parts = task.parts
        if any(task.entries.values()):
            name = f"journal-{self._claim.number:03d}-{number:08d}.jsonl"
            entries: dict[str, RecordsView | list[Any]] = {**task.entries}
            finished: list[Any] = list(entries["progress"])
            entries["progress"] = [progress_entry(p) for p in finished]
            end = (resume_point.story, resume_point.rows, resume_point.progress)
            part, size = write_part(self.place, name, task.start, end, entries)
            parts, nbytes = (*parts, part), nbytes + size
        name, size = write_checkpoint(
            self.place,
            attempt=self._claim.number,
            number=number,
            resume_point=resume_point,
            about={
                "record": self._session.record.without_arrays(),
                "fingerprint": self._session.fingerprint,
                "facts": task.facts,
                "owners": {m: sorted(map(str, chunks)) for m, chunks in task.owners.items()},
            },
            parts=parts,
            models={round: models[round] for round in resume_point.kept},
        )
        self._number, self._parts, self._models = number, parts, models
        self._keep((name, *(part.name for part in parts), *models.values()))
        return number, nbytes + size

    def _tidy(self) -> None:
        """Before the first write, find files of earlier attempts."""
        self._number = max(self._number, last_number(self.place))
        used = [name for files in self._kept for name in files]
        self._obsolete = set(leftovers(self.place, self._claim.number, [*used, self._claim.name]))
        self._is_tidy = True

    def _keep(self, files: tuple[str, ...]) -> None:
        """Keep the files of the last checkpoints, and remove the files of older ones."""
        self._kept.append(files)
        while len(self._kept) > KEPT:
            self._obsolete |= set(self._kept.pop(0))
        self._obsolete -= {name for kept in self._kept for name in kept}
        with suppress(ElasticmlError):  # a file that cannot be removed now is retried
            if self._obsolete:
                self._claim.renew()  # a later attempt may use the same files by now
            while self._obsolete:
                remove(join(self.place, min(self._obsolete)))
                self._obsolete.discard(min(self._obsolete))
