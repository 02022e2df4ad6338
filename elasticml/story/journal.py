"""The journal of a running job: story, history, model snapshots, and the summary made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.story.compressed_records import CompressedRecords
from elasticml.story.history import HistoryRow
from elasticml.story.records import (
    BlockRead,
    ChunksLoaded,
    ChunksMoved,
    DataDealt,
    MemberActive,
    MemberLost,
    PolicyDecided,
    StoryRecord,
)
from elasticml.story.summary import MemberCounts, RunSummary

Arrays = Mapping[str, NDArray[Any]]

#: Counters of a journal, by attribute name.
_COUNTED = (
    "moved_bytes",
    "chunks_moved",
    "lost",
    "returned",
    "retired",
    "container_s",
    "members_start",
    "members_min",
    "attempts",
    "parsed_bytes",
)


class Journal:
    """The records of a job in memory; the scheduler keeps them until clients have fetched them.

    Parameters
    ----------
    record : mapping
        The job record.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        self.story = CompressedRecords()
        self.rows = CompressedRecords()
        self.snapshots: dict[int, Arrays] = {}
        self.moved_bytes = 0
        self.chunks_moved = 0
        self.lost = 0
        self.returned = 0
        #: Members that a policy released.
        self.retired = 0
        #: Number of decisions of each policy.
        self.decisions: dict[str, int] = {}
        #: Seconds of participation, summed over members.
        self.container_s = 0.0
        self.members_start = 0
        self.members_min: int | None = None
        #: Members of the first round whose ``MemberActive`` record is still to come.
        self._initial_members = 0
        #: Processes that have driven the job so far, this one included.
        self.attempts = 1
        #: Bytes of chunk bodies that members have parsed; None before any member has reported them.
        self.parsed_bytes: int | None = None
        #: The same when this process began.
        self._parsed_before = 0
        #: Bytes sent, and (bytes, chunks) moved, before this process's first round.
        self._sent_before = 0
        self._moved_before = (0, 0)
        evaluate = record.get("evaluate") or {}
        self._every: int = int(evaluate.get("every") or 0)
        self._rounds = {int(r) for r in evaluate.get("rounds") or ()}

    def write(self, t: float, record: StoryRecord) -> None:
        """Append a record to the story, with the time, and update the counters of the summary."""
        values = record.to_json()
        values["t"] = round(t, 6)
        self.story.append(values)
        match record:
            case ChunksMoved():
                self.chunks_moved += record.chunks
                self.moved_bytes += record.bytes
            case BlockRead() | ChunksLoaded() if record.parsed_bytes is not None:
                self.parsed_bytes = (self.parsed_bytes or 0) + record.parsed_bytes
            case MemberLost(reason="retired"):
                self.retired += 1
            case MemberLost():
                self.lost += 1
            case PolicyDecided(policy=policy):
                self.decisions[policy] = self.decisions.get(policy, 0) + 1
            case MemberActive() if self._initial_members > 0:
                self._initial_members -= 1
            case MemberActive():
                # A member that replaces a lost one counts as returned, whether it gets back the
                # lost chunks or a share of the others'. Any further member is a newcomer.
                self.returned += self.returned < self.lost
            case DataDealt():
                self._initial_members = record.members or 0
                self.members_start = self.members_start or self._initial_members
                # The initial placement of chunks is part of loading and does not count as moves.
                self.moved_bytes, self.chunks_moved = self._moved_before

    def add_row(self, t: float, row: HistoryRow, sent_bytes: int) -> None:
        """Append a history row."""
        since_s = (self.last_row().seconds or 0.0) if self.rows else 0.0
        self.container_s += row.members * max(0.0, t - since_s)
        self.rows.append(
            {
                **row.columns,
                "seconds": round(t, 6),
                "moved_bytes": self.moved_bytes,
                "sent_bytes": self._sent_before + sent_bytes,
            }
        )
        n = row.members
        self.members_min = n if self.members_min is None else min(self.members_min, n)

    def compact(self, record: Mapping[str, Any]) -> None:
        """Take less memory, after the end; ``record`` is the job record without its arrays."""
        self.record = record
        self.story.compact()
        self.rows.compact()

    @property
    def nbytes(self) -> int:
        """Bytes of memory of story and history, about."""
        return self.story.nbytes + self.rows.nbytes

    def last_row(self) -> HistoryRow:
        """Return the last row of the history; one without columns if there is none."""
        return HistoryRow(self.rows[-1] if self.rows else {})

    def snapshot(self, round_number: int, arrays: Arrays) -> None:
        """Keep the model of a round if the job's ``evaluate`` setting selects it."""
        is_selected = round_number in self._rounds or (
            self._every and round_number % self._every == 0
        )
        if is_selected and arrays:
            self.snapshots[round_number] = {k: np.array(v) for k, v in arrays.items()}

    @property
    def newly_parsed_bytes(self) -> int | None:
        """The bytes of chunk bodies that members have parsed for this process; None: unknown."""
        return None if self.parsed_bytes is None else self.parsed_bytes - self._parsed_before

    def counts(self) -> dict[str, Any]:
        """Return the counters as plain values."""
        return {name: getattr(self, name) for name in _COUNTED} | {
            "decisions": dict(self.decisions)
        }

    def go_on(
        self,
        counts: Mapping[str, Any],
        story: Sequence[Mapping[str, Any]],
        rows: Sequence[Mapping[str, Any]],
        snapshots: Mapping[int, Arrays],
    ) -> None:
        """Continue the records and counters of the attempt that wrote the checkpoint."""
        for name in (*_COUNTED, "decisions"):
            setattr(self, name, counts[name])
        self.story.extend(dict(record) for record in story)
        self.rows.extend(dict(row) for row in rows)
        self.snapshots.update(snapshots)
        self.attempts += 1
        self._parsed_before = self.parsed_bytes or 0
        self._sent_before = self.last_row().sent_bytes
        self._moved_before = (self.moved_bytes, self.chunks_moved)

    def summary(
        self,
        *,
        reason: str,
        converged: bool,
        unconverged: str = "",
        rounds: int,
        seconds: float,
        objective: float | None,
        examples: int | None,
        features: int | None,
        members: int,
    ) -> RunSummary:
        """Return the summary without the metrics, which the evaluator adds."""
        last = self.last_row()
        why = None
        if objective is None:
            is_whole = bool(last.columns) and not last.absent_examples
            why = "it was not evaluated" if is_whole else "examples are absent"
            why = f"{why} at the end ({reason})"
        rows = [HistoryRow(row) for row in self.rows]
        return RunSummary(
            name=self.record.get("name"),
            job=self.record.get("job"),
            rounds=rounds,
            seconds=round(seconds, 6),
            objective=objective,
            objective_missing_because=why,
            member_objective=last.member_objective,
            gap=last.gap,
            gap_is_bound=last.gap is not None and last.gap_is_bound,
            converged=converged,
            stopped_by=reason,
            unconverged=unconverged or None,
            examples=examples,
            features=features,
            members=MemberCounts(start=self.members_start, min=self.members_min, end=members),
            container_seconds=round(self.container_s, 3),
            holders=self.record.get("holders"),
            decisions=dict(sorted(self.decisions.items())),
            lost=self.lost,
            returned=self.returned,
            retired=self.retired,
            attempts=self.attempts,
            stand_in_rounds=sum(row.stand_ins > 0 for row in rows),
            cuda_rounds=sum(row.on_cuda > 0 for row in rows),
            chunks_moved=self.chunks_moved,
            moved_bytes=self.moved_bytes,
            parsed_bytes=self.parsed_bytes,
        )
