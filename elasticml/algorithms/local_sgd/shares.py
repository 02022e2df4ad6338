"""How many samples a member takes in a round, and with which learning rate.

All members together take ``K L H`` samples a round, each the share that it has of the examples that
the epoch has left; so all come to the epoch's end together, however chunks are dealt, and whoever
has twice the examples takes twice the samples.

Source: the uni-task paper, sections 3 (shares, weights) and 5.1 (rates).
"""

from __future__ import annotations

import math

from elasticml.algorithms.local_sgd.settings import RateRule


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
    """Return the samples of each local step of a member in this round.

    Parameters
    ----------
    rule : RateRule
        With "constant_global_batch" L H samples are taken by all members together.
    batch, local_steps : int
        L and H.
    n_members : int
        K, >= 1.
    n_local : int
        Examples that the epoch has left on this member.
    n_left : int
        On all members, >= ``n_local``.

    Returns
    -------
    list of int
        At most H numbers above 0, together at most ``n_local`` and, where there are any, at least
        1. Equal members take L in each step; the epoch's last round has fewer steps, not smaller
        ones.
    """
    if n_local <= 0:
        return []
    all_batch = batch if rule == "constant_global_batch" else n_members * batch
    target = all_batch * local_steps * (n_local / max(n_left, n_local))
    # A share of less than one sample would be none, for ever.
    target = max(target, 1.0)
    ends = [min(n_local, round(i * target / local_steps)) for i in range(local_steps + 1)]
    return [ends[i + 1] - ends[i] for i in range(local_steps) if ends[i + 1] > ends[i]]
