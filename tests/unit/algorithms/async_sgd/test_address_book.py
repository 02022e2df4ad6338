"""The address book of a member: known peers, and random choices among them."""

from __future__ import annotations

import pytest

from elasticml.algorithms.async_sgd.address_book import AddressBook
from elasticml.ids import MemberId

ME, FIRST, LAST = MemberId(1, 1), MemberId(0, 1), MemberId(2, 1)
ALL = {ME: "b", FIRST: "a", LAST: "c"}


def test_a_member_is_not_in_its_own_book_and_is_listed_while_others_send_to_it():
    book = AddressBook(ME, 0)
    assert not book.is_listed
    book.update(ALL, (), is_full=True)
    assert book.addresses == {FIRST: "a", LAST: "c"}
    assert book.is_listed
    book.update({}, (ME,), is_full=False)
    assert not book.is_listed
    book.update({FIRST: "a"}, (), is_full=True)
    assert (book.addresses, book.is_listed) == ({FIRST: "a"}, False)
    book.update({ME: "b"}, (), is_full=False)
    assert book.is_listed


def test_a_new_list_replaces_the_old_one():
    book = AddressBook(ME, 0)
    book.update(ALL, (), is_full=True)
    book.update({LAST: "d"}, (), is_full=True)
    assert (book.addresses, book.is_listed) == ({LAST: "d"}, False)


def test_the_first_is_the_smallest_listed_id():
    book = AddressBook(ME, 0)
    book.update(ALL, (), is_full=True)
    assert not book.is_first()
    book.update({}, (FIRST,), is_full=False)
    assert book.is_first()
    book.update({}, (ME,), is_full=False)
    assert not book.is_first()


@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_random_choices_are_distinct_and_reproducible_from_the_seed(n):
    def drawn():
        book = AddressBook(ME, 7)
        book.update({MemberId(k, 1): str(k) for k in range(30)}, (), is_full=True)
        return [book.choose(n) for _ in range(20)]

    result = drawn()
    assert result == drawn()
    assert all(len(set(some)) == len(some) == min(n, 29) for some in result)
    if 0 < n < 29:
        assert len({tuple(some) for some in result}) > 10


def test_a_choice_from_a_subset_stays_in_the_subset():
    book = AddressBook(ME, 7)
    book.update(ALL, (), is_full=True)
    assert {book.choose(1, {LAST})[0] for _ in range(5)} == {LAST}
