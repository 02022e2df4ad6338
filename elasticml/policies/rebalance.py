"""Rebalancing: move chunks gradually from slow members to fast ones."""

from __future__ import annotations

import statistics
from collections.abc import Container, Mapping, Sequence

from elasticml.control.policy import Chunks, Move, View
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.load_balancing import (
    LAST_CHUNK_MAX,
    predicted_seconds,
    rows_owned,
    seconds_per_row,
    slowdown,
)
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import (
    Count,
    NumberFrom0,
    ShareAbove0,
    settings_dataclass,
)


@settings_dataclass(finite=False, eq=False)
class Rebalance(PolicyOptions):
    """Move chunks from slow members to fast ones until predicted times differ by one chunk.

    A member's round time is predicted as its examples times its median seconds per example over
    the last ``rounds`` rounds. Per round at most ``share`` of the misplaced examples move, from the
    slowest member to the fastest. A move is made only if the receiver will then finish before the
    sender would have finished, so that no chunk moves back while speeds are constant.

    Source: the uni-task paper, section 4 (rebalancing). Deviations: ``share`` and ``tolerance``
    quantify the paper's "gradually"; a receiver that already holds the body is preferred.

    Parameters
    ----------
    rounds : int
        Rounds of the median, >= 1: the paper's I.
    share : float
        Share of the misplaced examples, in (0, 1]; at least one chunk moves.
    tolerance : float
        Nothing moves while the slowest member's predicted time is within this of the mean, >= 0.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> policies = [em.policies.Rebalance()]
    >>> job = em.Job(em.CoCoA(), em.from_arrays(X, y), policies=policies, stop=stop)
    >>> job.run(client).summary["rounds"]
    3
    """

    name = "rebalance"

    rounds: Count = 8
    share: ShareAbove0 = 0.5
    tolerance: NumberFrom0 = 0.02

    def __post_init__(self) -> None:
        #: The reshuffle policy draws all chunks, and balances them by the same prediction.
        self.defers_to_reshuffle = False

    def suggest(self, view: View) -> Sequence[Move]:
        """Return the moves of this round; none before a member has been measured."""
        chunks = view.chunks
        if chunks is None or len(view.steady) < 2:
            return []
        if self.defers_to_reshuffle and view.holders > 1:
            return []
        if not any(m.seconds_per_row for m in view.steady):
            return []
        cost = seconds_per_row(view.steady, self.rounds)
        rows = {m.id: rows_owned(chunks, m.id) for m in view.steady}
        before = predicted_seconds(rows, cost)
        slowest, mean = max(before.values()), sum(before.values()) / len(before)
        if slowest <= (1 + self.tolerance) * mean:
            return []
        slow = {m.id for m in view.steady if slowdown(m, view.steady) > LAST_CHUNK_MAX}
        targets = _moves(chunks, rows, cost, self.share, slow)
        if not targets:
            return []
        last = max(before, key=lambda m: (before[m], m))
        why = (
            f"slowest member {last} is predicted at {slowest:.3g} s, the mean at {mean:.3g} s: "
            f"{len(targets)} chunks to faster members"
        )
        return [Move(targets=targets, why=why)]


def _moves(
    chunks: Chunks,
    rows: dict[MemberId, int],
    cost: Mapping[MemberId, float],
    share: float,
    slow: Container[MemberId],
) -> dict[ChunkId, MemberId]:
    """Choose the moves of one round."""
    speed = sum(1 / c for c in cost.values())
    # The round time if rows could be divided arbitrarily.
    ideal = sum(rows.values()) / speed
    surplus = sum(max(0.0, n - ideal / cost[m]) for m, n in rows.items())
    left = {m: list(chunks.of(m)) for m in rows}
    load = predicted_seconds(rows, cost)
    budget = share * surplus
    targets: dict[ChunkId, MemberId] = {}
    while budget > 0:
        giver = max(load, key=lambda m: (load[m], m))
        # A member without chunks would count as a newcomer and be given some, unless it is slow.
        others = [load[m] for m in load if m != giver]
        may_give = len(left[giver]) > 1 or (
            giver in slow and load[giver] > LAST_CHUNK_MAX * statistics.median(others)
        )
        chosen = _pick(chunks, left[giver], giver, load, cost) if may_give else None
        if chosen is None:
            break
        chunk, taker = chosen
        n_rows = chunks.rows(chunk)
        targets[chunk] = taker
        left[giver].remove(chunk)
        load[giver] -= n_rows * cost[giver]
        load[taker] += n_rows * cost[taker]
        budget -= n_rows
    return targets


def _pick(
    chunks: Chunks,
    owned: Sequence[ChunkId],
    giver: MemberId,
    load: Mapping[MemberId, float],
    cost: Mapping[MemberId, float],
) -> tuple[ChunkId, MemberId] | None:
    """Choose a chunk of the slowest member and its receiver; None if no move helps."""
    fastest = min(load, key=lambda m: (load[m], m))
    middle = sum(load.values()) / len(load)
    best: tuple[tuple[bool, float, ChunkId], MemberId] | None = None
    for chunk in owned:
        n_rows = chunks.rows(chunk)
        if not n_rows:
            continue
        holders = [m for m in chunks.holders(chunk) if m in load and m != giver]
        takers = [m for m in holders if load[m] + n_rows * cost[m] <= middle] or [fastest]
        taker = min(takers, key=lambda m: (load[m], m))
        done = load[taker] + n_rows * cost[taker]
        if taker == giver or done >= load[giver]:
            continue
        key = (taker not in holders, done, chunk)
        if best is None or key < best[0]:
            best = (key, taker)
    return (best[0][2], best[1]) if best else None
