"""Swim-lanes read from a story: what every member did at every moment of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.story.records import (
    ChunksMoved,
    ExchangeEnded,
    JobResumed,
    MemberActive,
    MemberJoined,
    MemberLost,
    MemberNoticed,
    Reclaimed,
    StoryRecord,
)

Kind = Literal["load", "compute", "wait", "move", "gone"]

#: The kinds in the order of the last axis of :func:`occupancy`.
KINDS: tuple[Kind, ...] = ("load", "compute", "wait", "move", "gone")

Span = tuple[float, float]
Segment = tuple[float, float, Kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One interval of a lane, in seconds since the job started."""

    slot: int
    kind: Kind
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMark:
    """An event in a lane: a member joined, returned, got notice, was marked, or was lost."""

    slot: int
    kind: Literal["joined", "returned", "noticed", "marked", "lost"]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lanes of a run; a slot's intervals are ascending and disjoint."""

    slots: tuple[int, ...]
    intervals: Mapping[int, tuple[Interval, ...]]
    marks: tuple[LaneMark, ...]
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Life:
    """The time of one member in a slot, while the story is read."""

    start_s: float
    active_s: float | None = None
    end_s: float | None = None


def slot_of(member: object) -> int | None:
    """Return the slot of a member id ``"slot.incarnation"``; None for anything else."""
    head = str(member).partition(".")[0]
    return int(head) if head.isdecimal() else None


def make_lanes(records: Sequence[StoryRecord]) -> Lanes:
    """Build the lanes of all slots that the story names.

    A member loads from joining until it takes part, computes in each exchange for the duration that
    it reported, moves while a chunk is sent or received, and waits otherwise. A slot is gone from a
    loss until the next member joins in it. Before its first member it has no interval.
    """
    end_s = max((record.t for record in records), default=0.0)
    lives, marks = _lives(records)
    compute = _compute_spans(records)
    for slot, spans in compute.items():
        if spans and slot not in lives:
            lives[slot] = [_Life(start_s=spans[0][0], active_s=spans[0][0])]
    moves = _move_spans(records)
    intervals: dict[int, tuple[Interval, ...]] = {}
    for slot in sorted(lives):
        busy = compute.get(slot, [])
        lane = _presence(lives[slot], end_s)
        lane = paint(lane, _load_spans(lives[slot], busy, end_s), "load")
        lane = paint(lane, moves.get(slot, []), "move")
        lane = paint(lane, busy, "compute")
        intervals[slot] = tuple(
            Interval(slot=slot, kind=kind, start_s=start, end_s=end) for start, end, kind in lane
        )
    return Lanes(slots=tuple(intervals), intervals=intervals, marks=marks, start_s=0.0, end_s=end_s)


def paint(lane: Sequence[Segment], spans: Sequence[Span], kind: Kind) -> list[Segment]:
    """Overwrite a lane with spans of one kind, except where the slot is gone.

    Parameters
    ----------
    lane : segments (start, end, kind), ascending, disjoint
    spans : (start, end), ascending by start
    """
    out: list[Segment] = []
    i = 0
    for start, end, below in lane:
        at = start
        while i < len(spans) and spans[i][0] < end:
            low, high = max(spans[i][0], at), min(spans[i][1], end)
            if high > low and below != "gone":
                if low > at:
                    out.append((at, low, below))
                out.append((low, high, kind))
                at = high
            if spans[i][1] > end:
                break  # the span continues over the next segment
            i += 1
        if at < end:
            out.append((at, end, below))
    return out


def occupancy(lanes: Lanes, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each time bin that each slot spent on each kind.

    Parameters
    ----------
    edges : ndarray (n_bins + 1,), seconds, ascending

    Returns
    -------
    ndarray (n_slots, n_bins, 5), in the order of :data:`KINDS`; sums to at most one.
    """
    shares = np.zeros((len(lanes.slots), len(edges) - 1, len(KINDS)))
    width = np.diff(edges)
    for i, slot in enumerate(lanes.slots):
        for k, kind in enumerate(KINDS):
            spans = [(v.start_s, v.end_s) for v in lanes.intervals[slot] if v.kind == kind]
            if not spans:
                continue
            bounds = np.array(spans)
            lengths = bounds[:, 1] - bounds[:, 0]
            # The accumulated time is piecewise linear, with knots at every start and end.
            spent = np.repeat(np.concatenate([[0.0], np.cumsum(lengths)]), 2)[1:-1]
            shares[i, :, k] = np.diff(np.interp(edges, bounds.ravel(), spent)) / width
    return shares


def _lives(records: Sequence[StoryRecord]) -> tuple[dict[int, list[_Life]], tuple[LaneMark, ...]]:
    """Read the members of each slot with their times, and the events to mark."""
    lives: dict[int, list[_Life]] = {}
    marks: list[LaneMark] = []
    for record in records:
        t = record.t
        if isinstance(record, JobResumed):
            for life in (stays[-1] for stays in lives.values() if stays):
                life.end_s = t if life.end_s is None else life.end_s
        if isinstance(record, Reclaimed) and (slot := slot_of(record.marked)) is not None:
            marks.append(LaneMark(slot=slot, kind="marked", at_s=t))
        if not isinstance(record, MemberJoined | MemberActive | MemberNoticed | MemberLost):
            continue
        slot = slot_of(record.member)
        if slot is None:
            continue
        stays = lives.setdefault(slot, [])
        present = bool(stays) and stays[-1].end_s is None
        if isinstance(record, MemberJoined):
            if present:
                stays[-1].end_s = t
            marks.append(LaneMark(slot=slot, kind="returned" if stays else "joined", at_s=t))
            stays.append(_Life(start_s=t))
            continue
        if not present and isinstance(record, MemberLost) and stays:
            continue  # a repeated record of the same loss
        if not present:
            stays.append(_Life(start_s=0.0 if not stays else t))
        if isinstance(record, MemberActive):
            stays[-1].active_s = t if stays[-1].active_s is None else stays[-1].active_s
        elif isinstance(record, MemberNoticed):
            marks.append(LaneMark(slot=slot, kind="noticed", at_s=t))
        else:
            stays[-1].end_s = t
            marks.append(LaneMark(slot=slot, kind="lost", at_s=t))
    return {slot: stays for slot, stays in lives.items() if stays}, tuple(marks)


def _presence(stays: Sequence[_Life], end_s: float) -> list[Segment]:
    """Return a slot's lane with its members' times as waiting and the rest as gone."""
    lane: list[Segment] = []
    for i, life in enumerate(stays):
        until = end_s if life.end_s is None else life.end_s
        if until > life.start_s:
            lane.append((life.start_s, until, "wait"))
        back = stays[i + 1].start_s if i + 1 < len(stays) else end_s
        if back > until:
            lane.append((until, back, "gone"))
    return lane


def _load_spans(stays: Sequence[_Life], busy: Sequence[Span], end_s: float) -> list[Span]:
    """Return the times from joining to taking part, which the first computation proves at last."""
    spans = []
    for life in stays:
        ready = life.active_s
        if ready is None:
            ready = next((low for low, _ in busy if low >= life.start_s), end_s)
        spans.append((life.start_s, min(ready, end_s if life.end_s is None else life.end_s)))
    return spans


def _compute_spans(records: Sequence[StoryRecord]) -> dict[int, list[Span]]:
    """Read the compute time of each slot in each exchange."""
    spans: dict[int, list[Span]] = {}
    for record in records:
        if not isinstance(record, ExchangeEnded):
            continue
        stop = record.t
        start = stop if record.start_t is None else record.start_t
        for slot_text, length in record.compute_s.items():
            slot = slot_of(slot_text)
            if slot is not None and length > 0.0:
                spans.setdefault(slot, []).append((start, min(start + length, stop)))
    return {slot: sorted(own) for slot, own in spans.items()}


def _move_spans(records: Sequence[StoryRecord]) -> dict[int, list[Span]]:
    """Read the time of each chunk move, for its source and its target."""
    spans: dict[int, list[Span]] = {}
    for record in records:
        if not isinstance(record, ChunksMoved):
            continue
        span = (record.t - record.seconds, record.t)
        for end in (record.source, record.target):
            slot = slot_of(end)
            if slot is not None and span[1] > span[0]:
                spans.setdefault(slot, []).append(span)
    return {slot: sorted(own) for slot, own in spans.items()}
