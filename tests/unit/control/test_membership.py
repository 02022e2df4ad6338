"""Slots are refilled, incarnations are never reused."""

from __future__ import annotations

from elasticml.control.membership import MemberRecord, Membership
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
