"""Learning rates by the paper's rule and others; samples in proportion to remaining examples."""

from __future__ import annotations

import math
from typing import get_args

from hypothesis import example, given
from hypothesis import strategies as st

from elasticml.algorithms.local_sgd.step_schedule import steps
from elasticml.specification.algorithms import RateRule


def test_a_member_with_twice_the_examples_takes_twice_the_samples():
    kind = {"rule": "sqrt", "batch": 8, "local_steps": 16, "n_members": 3, "n_left": 4000}
    one, two = steps(n_local=1000, **kind), steps(n_local=2000, **kind)
    assert (sum(one), sum(two), len(one), len(two)) == (96, 192, 16, 16)


def test_the_last_round_of_an_epoch_has_fewer_steps_and_not_smaller_ones():
    result = steps(rule="sqrt", batch=8, local_steps=16, n_members=1, n_local=20, n_left=20)
    assert result == [8, 8, 4]


@given(
    st.sampled_from(get_args(RateRule)),
    st.integers(1, 64),
    st.integers(1, 32),
    st.lists(st.integers(0, 500), min_size=1, max_size=9),
)
@example("sqrt", 1, 1, [0, 20, 20, 20])
def test_members_end_an_epoch_together_with_every_example_taken(rule, batch, local_steps, left):
    """For any placement of examples, an epoch takes as many rounds as its samples need."""
    rounds, total = 0, sum(left)
    a_round = local_steps * batch * (1 if rule == "constant_global_batch" else len(left))
    while sum(left):
        taken = [
            sum(
                steps(
                    rule=rule,
                    batch=batch,
                    local_steps=local_steps,
                    n_members=len(left),
                    n_local=n,
                    n_left=sum(left),
                )
            )
            for n in left
        ]
        assert all(0 < t <= n for t, n in zip(taken, left, strict=True) if n)
        left = [n - t for n, t in zip(left, taken, strict=True)]
        rounds += 1
    # Rounding takes at most a third of a member's share: one sample of nearly one and a half.
    assert rounds <= math.ceil(1.5 * total / a_round) + len(left)
