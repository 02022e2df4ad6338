"""Seconds per example of each member, as balancing policies see them."""

from elasticml.control.policy import MemberView
from elasticml.ids import MemberId
from elasticml.policies.load_balancing import seconds_per_row


def member(slot: int, *times: float) -> MemberView:
    return MemberView(id=MemberId(slot, 1), host="a", rows=10, seconds_per_row=times)


def costs(*members: MemberView) -> list[float]:
    return list(seconds_per_row(members, 4).values())


def test_a_member_that_is_slower_every_time_is_slow() -> None:
    assert costs(member(0, 1, 1, 1), member(1, 1, 1, 1), member(2, 1.5, 1.6, 1.4)) == [1, 1, 1.5]


def test_a_member_that_varies_is_neither_slow_nor_fast() -> None:
    # On a loaded host equal members seemed up to three times as fast as one another.
    noisy = member(2, 0.5, 3.0, 1.2, 0.9)
    assert costs(member(0, 1, 1, 1), member(1, 1, 1, 1), noisy) == [1, 1, 1]


def test_one_quick_round_does_not_hide_a_slow_member() -> None:
    # With two members the slow one was taken for normal, and its load stayed.
    assert costs(member(0, 1, 1, 1, 1), member(1, 1.5, 1.1, 1.6, 1.5)) == [1, 1.5]


def test_a_member_without_measurement_counts_as_the_median() -> None:
    assert costs(member(0, 2.0), member(1, 2.0), member(2)) == [2, 2, 2]
    assert costs(member(0), member(1)) == [1, 1]


def test_rounds_that_cost_every_member_more_hide_no_slow_member() -> None:
    # Every other round computes a certificate, too; the slow member's load stayed as it was.
    quick, slow = (1, 3, 1, 3, 1, 3, 1), (1.2, 3.6, 1.2, 3.6, 1.2, 3.6, 1.2)
    first, second = costs(member(0, *quick), member(1, *slow))
    assert round(second / first, 6) == 1.2


def test_a_newcomer_is_compared_in_the_rounds_that_it_took_part_in() -> None:
    long, short = member(0, 4, 4, 4, 1, 1), member(1, 2, 2)
    first, second = costs(long, short)
    assert round(second / first, 6) == 2
