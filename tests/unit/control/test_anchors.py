"""The signed sum of kept partials is the vanished members' own share, for any tree and any loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticml.control.exchange import plan_anchor
from elasticml.ids import ExchangeId, Mask, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Deliver, Refuse, SendAnchor
from tests.sim.small_jobs import begun


def members(n: int) -> list[MemberId]:
    return [MemberId(slot, 1) for slot in range(n)]


@st.composite
def trees(draw):
    """Any tree: each member below the root or below an earlier one, in an arbitrary order."""
    order = draw(st.permutations(members(draw(st.integers(1, 14)))))
    parents = {}
    for k, member in enumerate(order):
        parents[member] = draw(st.sampled_from([None, *order[:k]]))
    return parents


@st.composite
def trees_and_vanished(draw):
    parents = draw(trees())
    lost = draw(st.sets(st.sampled_from(sorted(parents))))
    # Of the vanished, those that still exist are no help; of the others, some may be lost, too.
    also_lost = draw(st.sets(st.sampled_from(sorted(parents)), max_size=1)) - lost
    return parents, lost, parents.keys() - lost - also_lost


def sums(parents):
    """Return what each member sent up: its own number plus its children's sums."""
    own = {member: 3**member.slot for member in parents}
    total = dict(own)
    for member in parents:
        above = parents[member]
        while above is not None:
            total[above] += own[member]
            above = parents[above]
    return own, total


@given(trees_and_vanished())
def test_terms_of_living_holders_add_up_to_the_share_of_the_vanished(case):
    parents, lost, living = case
    terms = plan_anchor(parents, lost, living)
    # There is no plan only if a holder is lost, too.
    assert terms is not None or parents.keys() != lost | living
    own, total = sums(parents)
    if terms is not None:
        assert sum(t.sign * total[t.of] for t in terms) == sum(own[m] for m in lost)
        # A member has its own sum, and its children's.
        assert all(t.at in (t.of, parents[t.of]) for t in terms)
        assert {t.at for t in terms} <= {None, *living}


def test_member_that_was_not_in_the_tree_has_no_anchor():
    a, b = members(2)
    assert plan_anchor({a: None}, {b}, {a}) is None


# --- the driver's questions for the terms -----------------------------------------------------

A, B, C = members(3)


@pytest.mark.parametrize("handle", [8, None])
def test_lost_partials_are_anchored_when_all_members_have_their_terms(handle: int | None) -> None:
    """B, between A and C in a chain, is lost: A is asked for B's sum, and C for its own one."""
    simulation, driver = begun(3, collective={"topology": "tree", "fan_out": 1})
    driver.handle(ev.Lost(member=B, reason="closed"), 0.0)
    sums = ev.PartialArrived(
        exchange=ExchangeId(3),
        sender=A,
        contributors=Mask(A.bit | C.bit),
        order="(0+2)",
        handle=5,
    )
    asked = [c for c in driver.handle(sums, 0.0) if isinstance(c, SendAnchor)]
    assert [(c.member, c.exchange, c.sender) for c in asked] == [(A, 2, B), (C, 2, None)]
    first = ev.AnchorArrived(member=A, exchange=ExchangeId(2), sender=B, handle=7)
    assert not any(isinstance(c, Deliver) for c in driver.handle(first, 0.0))
    last = ev.AnchorArrived(member=C, exchange=ExchangeId(2), sender=None, handle=handle)
    (deliver,) = (c for c in driver.handle(last, 0.0) if isinstance(c, Deliver))
    parts = [(part.handle, part.sign) for part in deliver.anchor]
    assert parts == ([(7, 1), (8, -1)] if handle else [])
    refused = Refuse(exchange=ExchangeId(2), sender=A, handle=9)
    assert driver.handle(replace(first, handle=9), 0.0) == [refused]  # it comes too late
    simulation.close()
