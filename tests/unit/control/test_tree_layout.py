"""The shape of the reduce tree, and the adoption of orphans."""

from __future__ import annotations

import pytest

from elasticml.control.tree_layout import STAR_MEMBERS_MAX, children, layout, take_out
from elasticml.ids import MemberId


def members(n: int) -> list[MemberId]:
    return [MemberId(slot, 1) for slot in range(n)]


@pytest.mark.parametrize(
    ("n", "n_hosts", "is_star"),
    [(STAR_MEMBERS_MAX, 1, True), (STAR_MEMBERS_MAX + 1, 1, False), (3, 2, False)],
)
def test_auto_is_a_star_for_few_members_on_one_host(n, n_hosts, is_star):
    assert (layout(members(n), "auto", 2, n_hosts) == layout(members(n), "star", 2)) == is_star


def depth(parents, member):
    """Return the number of links to the root."""
    parent = parents[member]
    return 1 if parent is None else 1 + depth(parents, parent)


@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_tree_is_filled_level_by_level_in_the_given_order(fan_out):
    order = members(13)[::-1]
    parents = layout(order, "tree", fan_out)
    depths = [depth(parents, m) for m in order]
    assert depths == sorted(depths)
    assert all(len(below) <= fan_out for below in children(parents).values())
    full = [depths.count(level) for level in sorted(set(depths))][:-1]
    assert full == [fan_out ** (k + 1) for k in range(len(full))]


def test_children_of_a_lost_member_go_to_its_parent():
    a, b, c, d = members(4)
    parents = {a: None, b: a, c: b, d: b}
    below = children(parents)
    assert take_out(parents, below, b) == (a, [c, d])
    assert parents == {a: None, c: a, d: a}
    assert below == children(parents)
    assert take_out(parents, below, a) == (None, [c, d])
    assert parents == {c: None, d: None}
    assert below == children(parents)
