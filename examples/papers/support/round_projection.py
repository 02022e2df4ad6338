"""Projected round lengths: of micro-tasks in waves, and of uni-tasks with balanced examples.

Convergence per round is measured; these functions return what a round costs on N members, as the
uni-task paper projects it. The unit is a round of 16 equal tasks on 16 ordinary members.

Source: the uni-task paper, sections 5.2 (elastic scaling) and 5.3 (heterogeneous members).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

#: Members of the papers' cluster: a round of this many tasks on as many members is one unit.
REFERENCE_MEMBERS = 16


def micro_task_units(tasks: int, members: int, reference: int = REFERENCE_MEMBERS) -> float:
    """Return the length of a round of equal tasks that members run in waves.

    ``ceil(K / N) * 16 / K``

    Parameters
    ----------
    tasks : int, at least 1
        K: constant, whichever members are present.
    members : int, at least 1
        N, all equally fast; each runs one task at a time.
    reference : int
        Tasks and members of a round that is one unit long.

    Raises
    ------
    ValueError
        When a count is below 1.
    """
    _check(tasks=tasks, members=members, reference=reference)
    return -(-tasks // members) * reference / tasks


def uni_task_units(members: int, reference: int = REFERENCE_MEMBERS) -> float:
    """Return the length of a round in which each of N equal members passes over n / N examples.

    ``16 / N``

    Raises
    ------
    ValueError
        When a count is below 1.
    """
    _check(members=members, reference=reference)
    return reference / members


def local_sgd_rounds(members: int, reference: int = REFERENCE_MEMBERS) -> float:
    """Return how many times more rounds an epoch of local SGD has on N members than on 16.

    A round is one unit for any N, because each member takes as many samples in it: an epoch is
    ``16 / N`` times as long.

    Raises
    ------
    ValueError
        When a count is below 1.
    """
    return uni_task_units(members, reference)


def micro_task_units_mixed(
    tasks: int, factors: Sequence[float], reference: int = REFERENCE_MEMBERS
) -> float:
    """Return the length of a round of equal tasks, assigned optimally to unequal members.

    For two speeds this is the paper's ``max(1.5 i, 1.0 j) * 16 / K`` at the best i and j.

    Parameters
    ----------
    tasks : int, at least 1
    factors : sequence of float
        How many times longer than an ordinary member each one takes; above 0.
    reference : int

    Raises
    ------
    ValueError
        When there is no member, or a number is out of its range.
    """
    _check(tasks=tasks, members=len(factors), reference=reference)
    counts: list[int] = [0] * len(factors)
    if min(factors) <= 0:
        raise ValueError(f"a member's factor is above 0, got {min(factors)}")
    for _ in range(tasks):  # greedy is optimal for equal tasks: each ends as early as it can
        k = min(range(len(factors)), key=lambda k: ((counts[k] + 1) * factors[k], k))
        counts[k] += 1
    longest = max(count * factor for count, factor in zip(counts, factors, strict=True))
    return longest * reference / tasks


def uni_task_units_mixed(factors: Sequence[float], reference: int = REFERENCE_MEMBERS) -> float:
    """Return the length of a round in which every member has examples in proportion to its speed.

    ``16 / sum(1 / factor)``; 1.2 for 8 members of factor 1 and 8 of factor 1.5.

    Raises
    ------
    ValueError
        When there is no member, or a factor is not above 0.
    """
    _check(members=len(factors), reference=reference)
    if min(factors) <= 0:
        raise ValueError(f"a member's factor is above 0, got {min(factors)}")
    return reference / math.fsum(1.0 / factor for factor in factors)


def members_at(schedule: Sequence[tuple[float, int]], t: float) -> int:
    """Return the members at a moment, of ``(from second, members)`` in order."""
    result = schedule[0][1]
    for since, members in schedule:
        if since <= t:
            result = members
    return result


def stepwise(start: int, end: int, *, by: int = 2, every: float = 20.0) -> list[tuple[float, int]]:
    """Return the papers' schedule: a fixed number of members more, or fewer, at a time.

    >>> stepwise(2, 6)
    [(0.0, 2), (20.0, 4), (40.0, 6)]
    """
    step = by if end > start else -by
    counts = [*range(start, end, step), end]
    return [(every * k, members) for k, members in enumerate(counts)]


def elapsed(
    rounds: int, schedule: Sequence[tuple[float, int]], units: Mapping[int, float], unit_s: float
) -> list[float]:
    """Return when each round has ended, with members changing at round boundaries.

    Parameters
    ----------
    rounds : int
    schedule : sequence of (float, int)
        Members over time, as (from second, members).
    units : mapping of int to float
        Length of a round by the number of members.
    unit_s : float
        Seconds of a unit.

    Returns
    -------
    list of float (rounds,), seconds
    """
    t, ends = 0.0, []
    for _ in range(rounds):
        t += units[members_at(schedule, t)] * unit_s
        ends.append(t)
    return ends


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
