"""How fast members are and what they would need: what balancing policies have in common."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from elasticml.control.policy import Chunks, MemberView
from elasticml.terms import ChunkId, MemberId


def seconds_per_row(members: Sequence[MemberView], rounds: int) -> dict[MemberId, float]:
    """Estimate what an example costs each member: the median over its last rounds.

    Each round is taken relative to the median of its members: a round with a certificate costs
    everybody more, and that says nothing of who is slow. A member without a measurement counts as
    the median of those that have one; so does a member that differs from it by less than the error
    of its own median, which is about the interquartile range of its measurements over the root of
    their number: short passes on a busy host are mostly noise, and loads that follow noise are
    worse than equal ones. Where nobody was measured an example costs everybody 1, so that times
    are numbers of examples.

    Parameters
    ----------
    members : sequence of MemberView
    rounds : int
        How many rounds back the median looks.

    Source: the uni-task paper, section 4 (rebalancing): the median over the last I iterations.
    Relative rounds and the test for noise are ours.
    """
    recent = {m.id: m.seconds_per_row[-rounds:] for m in members if m.seconds_per_row}
    #: Rounds in which nobody can be compared say nothing; those of the young are the last ones.
    common = sorted((len(times) for times in recent.values()), reverse=True)[:2]
    #: Median of each round, the last one first.
    paces = [
        statistics.median(times[-k] for times in recent.values() if len(times) >= k)
        for k in range(1, min(common, default=0) + 1)
    ]
    relative = {
        id: [time / pace for time, pace in zip(reversed(times), paces, strict=False) if pace > 0]
        for id, times in recent.items()
    }
    measured = {id: statistics.median(ratios) for id, ratios in relative.items() if ratios}
    measured = {id: ratio for id, ratio in measured.items() if ratio > 0}
    usual = statistics.median(measured.values()) if measured else 1.0
    for id, ratio in list(measured.items()):
        if abs(ratio - usual) < _middle_half(relative[id]) / math.sqrt(len(relative[id])):
            measured[id] = usual
    pace = statistics.median(paces) if measured else 1.0
    return {m.id: pace * measured.get(m.id, usual) for m in members}


def _middle_half(times: Sequence[float]) -> float:
    """Return by how much the middle half of these differ, their interquartile range."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return high - low


def rows_owned(chunks: Chunks, member: MemberId) -> int:
    """Count the examples that a member owns."""
    return sum(chunks.rows(chunk) for chunk in chunks.of(member))


def predicted_seconds(
    rows: Mapping[MemberId, int], cost: Mapping[MemberId, float]
) -> dict[MemberId, float]:
    """Predict each member's round: its examples times what one costs it."""
    return {member: rows[member] * cost[member] for member in rows}


def spread(
    chunks: Sequence[ChunkId],
    rows: Chunks,
    load: Mapping[MemberId, float],
    cost: Mapping[MemberId, float],
) -> dict[ChunkId, MemberId]:
    """Deal chunks one by one, each to the member that has done with it first.

    Among equals, and where it costs at most one chunk's time, a member that holds the body is
    preferred: then only the chunk's state travels.

    Parameters
    ----------
    chunks : sequence of ChunkId
        In the order in which they are dealt.
    rows : Chunks
        Looks up examples and holders.
    load : mapping
        Seconds that each member has to work already.
    cost : mapping
        Seconds that an example takes each member.
    """
    load = dict(load)
    target: dict[ChunkId, MemberId] = {}
    for chunk in chunks:
        # A chunk without examples counts, too, so that they do not all go to one member.
        n_rows = max(rows.rows(chunk), 1)
        done = {m: load[m] + n_rows * cost[m] for m in load}
        member = min(done, key=lambda m: (done[m], m))
        holders = [m for m in rows.holders(chunk) if m in done]
        if holders:
            holder = min(holders, key=lambda m: (done[m], m))
            if done[holder] <= done[member] + n_rows * cost[holder]:
                member = holder
        target[chunk] = member
        load[member] = done[member]
    return target
