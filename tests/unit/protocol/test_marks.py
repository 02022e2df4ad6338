"""The store of marks: which releases answer a mark, and when marks expire."""

from __future__ import annotations

from typing import Any

import pytest

from elasticml.protocol.marks import LATE_S, MarkStore
from elasticml.protocol.notices import ContainerMarked, MarkLifted, life_of

GRACE_S = 10.0


def mark(number: int, negotiable: bool = True, **more: Any) -> ContainerMarked:
    """A mark on a container whose worker has registered."""
    return ContainerMarked(
        container=f"container_{number}",
        address=f"a{number}",
        grace_s=GRACE_S,
        negotiable=negotiable,
        **more,
    )


@pytest.fixture
def store() -> MarkStore:
    return MarkStore()


def answers(store: MarkStore, *containers: str, now_s: float = 1.0) -> list[bool]:
    return [store.answer(container, now_s) for container in containers]


def test_a_repeated_mark_needs_another_answer(store):
    store.add(mark(0), 0.0)
    assert answers(store, "container_1") == [True]
    store.add(mark(0, count=2), 2.0)
    assert answers(store, "container_2", "container_3") == [True, False]


def test_a_container_answers_its_own_mark_else_the_oldest(store):
    for number in (0, 1, 2):
        store.add(mark(number), float(number))
    assert answers(store, "container_1", "container_9") == [True, True]
    for number in (0, 1):
        store.remove(f"container_{number}", "", 2.0)
    assert answers(store, "container_8", "container_7", now_s=3.0) == [True, False]


def test_a_mark_that_has_just_ended_may_still_be_answered(store):
    store.add(mark(0), 0.0)
    store.remove("container_0", "a0", 4.0)
    assert answers(store, "container_1", now_s=4.0 + LATE_S) == [False]
    store.add(mark(0), 20.0)
    store.remove("container_0", "a0", 24.0)
    assert answers(store, "container_1", "container_2", now_s=23.9 + LATE_S) == [True, False]


@pytest.mark.parametrize(("grace_s", "life_s"), [(0.0, 60.0), (10.0, 70.0), (60.0, 180.0)])
def test_a_mark_whose_life_is_not_stated_is_void_in_the_end(store, grace_s, life_s):
    notice = ContainerMarked(address="a0", grace_s=grace_s)
    assert life_of(notice) == life_s
    store.add(notice, 0.0)
    assert store.expire(life_s - 1.0) == []
    assert store.expire(life_s) == [MarkLifted(address="a0", why="void")]
