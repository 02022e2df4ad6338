"""The shape of the reduce tree, and the adoption of orphans."""

from __future__ import annotations

import random

import pytest

from elasticml.control.tree_layout import (
    STAR_MEMBERS_MAX,
    children,
    kept_order,
    layout,
    rewired,
    take_out,
)
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


@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_members_keep_their_places_and_those_whose_links_change_are_named(fan_out):
    rng = random.Random(fan_out)
    order = members(30)
    parents = layout(order, "tree", fan_out)
    below, number = children(parents), 30
    for _ in range(200):
        staying = [m for m in order if rng.random() > 0.1]
        came = [MemberId(number + k, 1) for k in range(rng.randrange(5))]
        number += len(came)
        leaving = [m for m in staying if rng.random() < 0.05]
        staying = [m for m in staying if m not in leaving] + came
        for lost in sorted(set(order) - {*staying, *leaving})[::2]:
            take_out(parents, below, lost)  # as within an exchange
        former, former_order = dict(parents), order
        order = kept_order(former_order, staying, leaving)
        assert sorted(order) == sorted([*staying, *leaving])
        assert order[len(staying) :] == leaving
        kept = [k for k, m in enumerate(former_order[: len(staying)]) if m in staying]
        assert [order[k] for k in kept] == [former_order[k] for k in kept]
        parents = layout(order, "tree", fan_out)
        links = {m: (former[m], children(former).get(m)) for m in former}
        now = {m: (parents[m], children(parents).get(m)) for m in parents}
        assert rewired(former, parents, below) == {m for m in now if now[m] != links.get(m)}
        assert below == children(parents)
