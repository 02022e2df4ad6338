"""Slots are refilled, incarnations are never reused."""

from __future__ import annotations

from elasticml.control.membership import MemberRecord, Membership
from elasticml.terms import MemberId


def admit(membership: Membership, address: str, slot: int | None = None) -> MemberRecord:
    return membership.admit(address=address, host="h", pid=1, threads=1, slot=slot, now_s=0.0)


def test_newcomers_get_the_lowest_free_slot():
    membership = Membership()
    for address in "abc":
        admit(membership, address)
    membership.remove(MemberId(1, 1))
    assert admit(membership, "d").id == MemberId(1, 2)
    assert admit(membership, "e").id == MemberId(3, 1)


def test_former_slot_is_given_back_where_it_is_free():
    membership = Membership()
    admit(membership, "a")
    assert admit(membership, "b", slot=7).id == MemberId(7, 1)
    assert admit(membership, "c", slot=7).id == MemberId(1, 1)


def test_no_id_is_given_twice():
    membership, seen = Membership(), set()
    for k in range(20):
        record = admit(membership, f"w{k}", slot=k % 3)
        assert record.id not in seen
        seen.add(record.id)
        membership.remove(record.id)


def test_second_word_of_a_loss_finds_nobody():
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


def test_members_are_listed_oldest_first_and_the_leaving_still_work():
    membership = Membership()
    a, b, c = (admit(membership, address) for address in "abc")
    membership.remove(a.id)
    d = admit(membership, "d")
    d.stage, b.stage, c.stage = "active", "active", "leaving"
    assert membership.working() == [b, c, d]
    assert membership.stage("active") == [b, d]
    assert membership.stage("spare") == []
