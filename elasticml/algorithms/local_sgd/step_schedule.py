"""The number of samples per local step of a member, and the learning rate.

All members together take ``K L H`` samples per round. Each takes a number proportional to its share
of the examples left in the epoch. So all members finish the epoch together, however the chunks are
distributed, and a member with twice the examples takes twice the samples.

Source: the uni-task paper, sections 3 (shares, weights) and 5.1 (rates).
"""

from __future__ import annotations

import math

from elasticml.specification.algorithms import RateRule


def rate(rule: RateRule, learning_rate: float, n_members: int) -> float:
    """Return alpha' for K members.

    ``alpha sqrt(K)`` (the paper's), ``alpha K`` (linear), or alpha itself.
    """
    if rule == "sqrt":
        return learning_rate * math.sqrt(n_members)
    return learning_rate * n_members if rule == "linear" else learning_rate


def steps(
    *,
    rule: RateRule,
    batch: int,
    local_steps: int,
    n_members: int,
    n_local: int,
    n_left: int,
) -> list[int]:
    """Return the number of samples in each local step of a member in this round.

    Parameters
    ----------
    rule : RateRule
        With "constant_global_batch" all members together take L H samples.
    batch, local_steps : int
        L and H.
    n_members : int
        K, >= 1.
    n_local : int
        Examples left in the epoch on this member.
    n_left : int
        Examples left in the epoch on all members, >= ``n_local``.

    Returns
    -------
    list of int
        At most H positive numbers with a sum of at most ``n_local``, and at least 1 if that is not
        0. Members with equal shares take L samples in each step; the last round of an epoch has
        fewer steps, not smaller ones.
    """
    if n_local <= 0:
        return []
    all_batch = batch if rule == "constant_global_batch" else n_members * batch
    target = all_batch * local_steps * (n_local / max(n_left, n_local))
    # A share of less than one sample would be rounded to none in every round.
    target = max(target, 1.0)
    ends = [min(n_local, round(i * target / local_steps)) for i in range(local_steps + 1)]
    return [ends[i + 1] - ends[i] for i in range(local_steps) if ends[i + 1] > ends[i]]
