"""A node of the collective: which partials it holds and refuses, and where it attaches."""

from __future__ import annotations

import pytest

from elasticml.control.tree_node import EARLY_MAX, TreeNode
from elasticml.errors import LocalProtocolError
from elasticml.ids import ExchangeId, Generation, Mask, MemberId
from elasticml.protocol.commands import Attach, Detach, Refuse
from elasticml.protocol.events import PartialArrived

ME, PARENT, HEIR = MemberId(5, 1), MemberId(8, 1), MemberId(9, 1)
A, B, C = MemberId(0, 1), MemberId(1, 1), MemberId(2, 1)


def place(node: TreeNode, generation: int, children=(), parent=PARENT, done: int = 0):
    return node.rewire(Generation(generation), parent, "there", children, ExchangeId(done))


def member(children=()) -> TreeNode:
    """A member below PARENT, with attached children."""
    node = TreeNode(ME)
    place(node, 1, children)
    for child in children:
        node.attached(child, ExchangeId(0))
    node.parent_linked(PARENT)
    return node


def partial(sender: MemberId, *others: MemberId, handle: int = 100) -> PartialArrived:
    """A partial of a sender's subtree."""
    slots = sorted([sender, *others])
    return PartialArrived(
        exchange=ExchangeId(1),
        sender=sender,
        contributors=Mask(sum(m.bit for m in slots)),
        order="+".join(str(m.slot) for m in slots),
        handle=handle,
    )


def test_early_partials_are_bounded():
    node = member()
    for _ in range(EARLY_MAX):
        assert node.partial(partial(A)) == []
    with pytest.raises(LocalProtocolError, match="early partials"):
        node.partial(partial(A))


def test_partial_whose_contributors_are_all_counted_is_refused_whole():
    node = member([A, B])
    node.begin(ExchangeId(1), keep=False)
    node.partial(partial(A, C))
    for again in (partial(A, C, handle=7), partial(A, handle=7)):
        assert node.partial(again) == [Refuse(exchange=ExchangeId(1), sender=A, handle=7)]
    assert node.refused == 2


def test_a_partial_that_overlaps_in_part_is_a_protocol_error():
    node = member([A, B])
    node.begin(ExchangeId(1), keep=False)
    node.partial(partial(A, C))
    with pytest.raises(LocalProtocolError, match="in part"):
        node.partial(partial(B, C))


def test_member_that_returns_to_the_tree_attaches_to_the_same_parent_again():
    # It had no chunks for a round: its parent had removed it, and waited for it for ever.
    node = member()
    commands = node.rewire(Generation(3), PARENT, "there", [], ExchangeId(0), is_new=True)
    assert commands == [
        Detach(peer=PARENT),
        Attach(parent=PARENT, address="there", generation=Generation(3), has_model=ExchangeId(0)),
    ]
    assert place(node, 4) == []


def test_orphan_whose_exchange_ends_before_its_heir_is_linked_sends_nothing_in_the_next_tree():
    """The other partials had reached the root without it, so that the round ended."""
    node = member()
    node.begin(ExchangeId(1), False)
    node.computed(ExchangeId(1))
    place(node, 2, parent=HEIR)
    place(node, 3, parent=B, done=1)
    assert node.parent_linked(B) == []


def test_partial_of_an_exchange_that_has_ended_is_refused_by_a_parent_of_the_next_tree():
    node = member((A,))
    node.begin(ExchangeId(1), False)
    node.computed(ExchangeId(1))
    node.partial(partial(A))
    place(node, 2, (A, B), done=1)
    assert node.partial(partial(B)) == [Refuse(exchange=ExchangeId(1), sender=B, handle=100)]
