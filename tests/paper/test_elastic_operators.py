"""The resource-elastic paper's Broadcast and Reduce, and lines 18 to 20, with the pure machines."""

from __future__ import annotations

import math

import pytest

from elasticml.control.policy import GroupView, MemberView, Readmit, View
from elasticml.control.tree_node import TreeNode
from elasticml.ids import ExchangeId, Generation, GroupId, Mask, MemberId
from elasticml.policies.readmission import Reload, WholeGroup
from elasticml.protocol.commands import Gathered, Refuse
from elasticml.protocol.events import PartialArrived

FOURTEEN = [MemberId(slot, 1) for slot in range(14)]


def slots(members: list[MemberId]) -> list[int]:
    return [m.slot for m in members]


def a_partial(sender: MemberId, *contributors: MemberId, handle: int = 1) -> PartialArrived:
    mask = Mask(sum(1 << m.slot for m in contributors))
    return PartialArrived(
        exchange=ExchangeId(1), sender=sender, contributors=mask, order="", handle=handle
    )


def a_root(*members: MemberId) -> TreeNode:
    """The root of a star in its first exchange."""
    root = TreeNode(None)
    root.rewire(Generation(1), None, "", members, ExchangeId(0))
    root.begin(ExchangeId(1), keep=False)
    return root


def view_with(groups: list[int], free: int, waited_s: float = 0.0) -> View:
    """Return a view with groups of these sizes, oldest first, and free members; 7 members work."""
    former = iter(FOURTEEN)
    return View(
        now_s=waited_s,
        round=200,
        groups=tuple(
            GroupView(
                id=GroupId(k + 1),
                former=tuple(next(former) for _ in range(size)),
                rows=10 * size,
                absent_since_s=0.0,
            )
            for k, size in enumerate(groups)
        ),
        spares=tuple(MemberView(id=MemberId(s, 2), host="a", rows=0) for s in range(free)),
        working=tuple(MemberView(id=m, host="a", rows=10) for m in FOURTEEN[7:]),
    )


def returning_members(suggestions: list[Readmit]) -> dict[int, int]:
    """Return the members to which each group returns."""
    return {s.group: len(s.targets) for s in suggestions}


# --- "the output of Reduce will return the aggregated result of active containers only" ---


def test_the_reduce_ends_with_the_remaining_members_and_names_them():
    a, b, c = FOURTEEN[:3]
    root = a_root(a, b, c)
    assert root.partial(a_partial(a, a, handle=7)) == []
    assert root.partial(a_partial(c, c, handle=9)) == []
    ended = root.rewire(Generation(2), None, "", [a, c], ExchangeId(0))
    gathered = [command for command in ended if isinstance(command, Gathered)]
    assert [(g.contributors, g.inputs) for g in gathered] == [(0b101, (7, 9))]


def test_a_partial_that_is_counted_already_is_refused_whole():
    a, b, c = FOURTEEN[:3]
    root = a_root(a, c)
    root.partial(a_partial(a, a, b, handle=7))
    # b was a's child; its parent's sum had been sent when the root adopted it.
    root.rewire(Generation(2), None, "", [a, b, c], ExchangeId(0))
    refused = Refuse(exchange=ExchangeId(1), sender=b, handle=8)
    assert root.partial(a_partial(b, b, handle=8)) == [refused]


# --- lines 18 to 20 ---


@pytest.mark.parametrize(
    ("sizes", "free", "back"),
    [
        ([7], 6, {}),
        ([7], 7, {1: 7}),
        ([2, 3], 4, {1: 2}),
        ([2, 3], 5, {1: 2, 2: 3}),
        ([5, 1], 3, {}),
    ],
)
def test_the_oldest_group_returns_as_soon_as_enough_members_are_free(sizes, free, back):
    assert (
        returning_members(WholeGroup(patience_s=math.inf).suggest(view_with(sizes, free))) == back
    )


def test_a_small_group_may_pass_a_large_one_that_waits_at_the_head():
    policy = WholeGroup(patience_s=math.inf, first_fitting=True)
    assert returning_members(policy.suggest(view_with([5, 1], 3))) == {2: 1}


def test_a_returning_member_gets_its_former_place_in_the_tree():
    view = view_with([2], 4)
    assert [slots(list(s.targets)) for s in WholeGroup().suggest(view)] == [[0, 1]]


# --- "we are guaranteed to get the containers back": not assumed ---


def test_reload_brings_a_group_back_on_survivors():
    (back,) = Reload().suggest(view_with([3], 0))
    assert slots(list(back.targets)) == [7, 8, 9]
