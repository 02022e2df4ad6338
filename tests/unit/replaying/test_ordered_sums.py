"""Partials added in a story's order have the bits of the tree that added them."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.errors import DataError
from elasticml.ids import Mask
from elasticml.replaying.replay_engine import add_up

# No two orders of adding these give the same bits.
PARTIALS = {0: np.array([1e16]), 1: np.array([1.0]), 2: np.array([-1e16]), 3: np.array([3.0])}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("(0+1+2+3)", ((1e16 + 1.0) + -1e16) + 3.0),
        ("(0+2+1+3)", ((1e16 - 1e16) + 1.0) + 3.0),
        ("(0+(1+3)+2)", (1e16 + 4.0) - 1e16),
        ("((0+2)+(1+3))", 4.0),
        ("3", 3.0),
    ],
)
def test_the_parentheses_decide_the_bits(order: str, expected: float) -> None:
    sums = add_up(order, PARTIALS, "sum")
    assert sums.total is not None
    assert sums.total.tolist() == [expected]
    assert PARTIALS[0].tolist() == [1e16]


def test_every_inner_sum_is_kept_under_its_members() -> None:
    kept = add_up("((0+2)+3)", PARTIALS, "sum").by_mask
    assert {int(mask): sum.tolist() for mask, sum in kept.items()} == {
        0b0001: [1e16],
        0b0100: [-1e16],
        0b0101: [0.0],
        0b1000: [3.0],
        0b1101: [3.0],
    }
    assert Mask(0b1101) in kept


def test_the_largest_sum_is_merged_on_request() -> None:
    total = add_up("(1+3)", PARTIALS, "max").total
    assert total is not None
    assert total.tolist() == [3.0]


def test_an_empty_set_of_members_has_no_sum() -> None:
    assert add_up("", PARTIALS, "sum").total is None


@pytest.mark.parametrize("order", ["(0+1", "0+1", "(0+9)", "(0+)", "(0+1))", "a"])
def test_invalid_orders_are_refused(order: str) -> None:
    with pytest.raises(DataError, match="order of additions"):
        add_up(order, PARTIALS, "sum")
