"""Slots are refilled, incarnations are never reused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticml.control.membership import MemberRecord, Membership
from elasticml.errors import LocalProtocolError
from elasticml.ids import MemberId
from elasticml.protocol.events import Arrived


def admit(membership: Membership, address: str, slot: int | None = None) -> MemberRecord:
    return membership.admit(
        Arrived(arrival=0, address=address, host="h", pid=1, threads=1, slot=slot), 0.0
    )


def test_newcomers_get_the_lowest_free_slot():
    membership = Membership()
    for address in "abc":
        admit(membership, address)
    membership.remove(MemberId(1, 1))
    assert admit(membership, "d").id == MemberId(1, 2)
    assert admit(membership, "e").id == MemberId(3, 1)


def test_former_slot_is_assigned_again_if_it_is_free():
    membership = Membership()
    admit(membership, "a")
    assert admit(membership, "b", slot=7).id == MemberId(7, 1)
    assert admit(membership, "c", slot=7).id == MemberId(1, 1)


def test_no_id_is_assigned_twice():
    membership, seen = Membership(), set()
    for k in range(20):
        record = admit(membership, f"w{k}", slot=k % 3)
        assert record.id not in seen
        seen.add(record.id)
        membership.remove(record.id)


def test_repeated_report_of_a_loss_finds_no_member():
    membership = Membership()
    record = admit(membership, "a")
    assert membership.remove(record.id) is record
    assert membership.remove(record.id) is None


def test_member_is_found_at_its_address_while_it_lives():
    membership = Membership()
    record = admit(membership, "a")
    assert membership.at("a") is record
    membership.remove(record.id)
    assert membership.at("a") is None


def test_members_are_listed_oldest_first_and_leaving_ones_are_active():
    membership = Membership()
    a, b, c = (admit(membership, address) for address in "abc")
    membership.remove(a.id)
    d = admit(membership, "d")
    for record, stage in ((d, "active"), (b, "active"), (c, "leaving")):
        membership.enter(record, stage)
    assert membership.working() == [b, c, d]
    assert membership.stage("active") == [b, d]
    assert membership.stage("spare") == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_cached_lists_match_the_members(steps):
    membership = Membership()
    for k, (step, which) in enumerate(steps):
        living = sorted(membership.members)
        if step == 0 or not living:
            taken = {m.slot for m in living}
            slot = which if step == 0 and which % 2 else None
            record = admit(membership, f"w{k}", slot=slot)
            free = [s for s in range(len(taken) + 1) if s not in taken]
            assert record.id.slot == (slot if slot is not None and slot not in taken else free[0])
        elif step == 1:
            membership.remove(living[which % len(living)])
        else:
            stage = ("spare", "active", "leaving")[(step + which) % 3]
            membership.enter(membership.members[living[which % len(living)]], stage)
        membership.check()
        expected = sorted(
            (m for m in membership.members.values() if m.stage != "spare"),
            key=lambda m: (m.id.incarnation, m.id.slot),
        )
        assert membership.working() == expected
        assert membership.n_working == len(expected)


def test_stage_changed_without_the_lists_is_noticed():
    membership = Membership()
    admit(membership, "a").stage = "active"
    with pytest.raises(LocalProtocolError, match="the list of"):
        membership.check()
