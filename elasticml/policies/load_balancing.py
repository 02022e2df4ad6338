"""Load balancing: members' speeds, predicted round times, and greedy assignment of chunks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from elasticml.control.policy import Chunks, MemberView
from elasticml.ids import ChunkId, MemberId


def seconds_per_row(members: Sequence[MemberView], rounds: int) -> dict[MemberId, float]:
    """Estimate the seconds per example of each member as the median over its last rounds.

    Each time is taken relative to the median of the members in its round: a round with a
    certificate takes all members longer, which does not show who is slow. A member without a
    measurement counts as the median member. So does one that differs from the median by less than
    the error of its own median, about the interquartile range of its measurements over the square
    root of their number: short passes on a busy host are mostly noise, and loads that follow noise
    are worse than equal ones. If no member has been measured, an example costs 1 everywhere, so
    that times are numbers of examples.

    Parameters
    ----------
    members : sequence of MemberView
    rounds : int
        Number of rounds of the median.

    Source: the uni-task paper, section 4 (rebalancing): the median over the last I iterations.
    Relative times and the test for noise are ours.
    """
    recent = {m.id: m.seconds_per_row[-rounds:] for m in members if m.seconds_per_row}
    # A round needs two measured members for a comparison. Newer members have the last rounds only.
    common = sorted((len(times) for times in recent.values()), reverse=True)[:2]
    # Median of each round, the last one first.
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
        if abs(ratio - usual) < _interquartile_range(relative[id]) / math.sqrt(len(relative[id])):
            measured[id] = usual
    pace = statistics.median(paces) if measured else 1.0
    return {m.id: pace * measured.get(m.id, usual) for m in members}


#: A member gives up its last chunk if that takes it more than this many times the median of the
#: others, and gets a share again once it is at most this many times slower.
LAST_CHUNK_MAX = 3.0
#: Rounds between two single chunks for such a member, as a multiple of how much slower it is: they
#: measure its speed, and slow the job by an eighth of a chunk.
ROUNDS_PER_TRIAL = 8


def slowdown(member: MemberView, others: Sequence[MemberView]) -> float:
    """Return how many times longer an example takes a member than the others; 1 if unknown."""
    paces = [m.seconds_per_row[-1] for m in others if m.seconds_per_row and m != member]
    pace_s = statistics.median(paces) if member.seconds_per_row and paces else 0.0
    return member.seconds_per_row[-1] / pace_s if pace_s > 0 else 1.0


def _interquartile_range(times: Sequence[float]) -> float:
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
    """Predict each member's round time: its examples times its seconds per example."""
    return {member: rows[member] * cost[member] for member in rows}


def assign_greedily(
    chunks: Sequence[ChunkId],
    rows: Chunks,
    load: Mapping[MemberId, float],
    cost: Mapping[MemberId, float],
) -> dict[ChunkId, MemberId]:
    """Assign chunks one by one, each to the member that finishes it first.

    A member that holds the body is preferred if this delays the chunk by at most the time of one
    chunk: then only the chunk's state travels.

    Parameters
    ----------
    chunks : sequence of ChunkId
        In the order of assignment.
    rows : Chunks
        Looks up examples and holders.
    load : mapping
        Seconds of work that each member already has.
    cost : mapping
        Seconds per example of each member.
    """
    load = dict(load)
    target: dict[ChunkId, MemberId] = {}
    for chunk in chunks:
        # An empty chunk counts as one example, so that they do not all go to one member.
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
