"""The board: all listeners receive posted notices, and latecomers those still valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    MarkLifted,
    NodeChanged,
    Notice,
)
from elasticml.runtime.preemption_board import PreemptionBoard


def _mark(address: str, grace_s: float = 10.0, **more: Any) -> ContainerMarked:
    return ContainerMarked(address=address, grace_s=grace_s, negotiable=True, **more)


class Clock:
    """Virtual time with timers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((self.now_s + seconds, action))

    def advance(self, to_s: float) -> None:
        for at_s, action in sorted(self._timers, key=lambda timer: timer[0]):
            if self.now_s < at_s <= to_s:
                self.now_s = at_s
                action()
        self.now_s = to_s

    def board(self) -> PreemptionBoard:
        return PreemptionBoard(lambda: self.now_s, self.call_later)


def test_listeners_receive_notices_in_order_each_with_its_cause() -> None:
    board = PreemptionBoard(lambda: 0.0)
    heard: list[Notice] = []
    board.subscribe(heard.append)
    notices: list[Notice] = [
        _mark("a"),
        MarkLifted(address="a"),
        ContainerEnded(address="a", container="container_1", reason="preempted", status=-102),
        NodeChanged(node="n", state="decommissioning", grace_s=60.0, addresses=("a", "b")),
    ]
    for notice in notices:
        board.post(notice)
    causes = ["reclaim a", "restored a", "ended container_1", "node n"]
    assert heard == [
        replace(notice, cause=cause) for notice, cause in zip(notices, causes, strict=True)
    ]


def test_a_latecomer_receives_valid_notices_with_their_remaining_time() -> None:
    clock = Clock()
    board = clock.board()
    board.post(_mark("gone"))
    board.post(_mark("restored"))
    board.post(_mark("stays"))
    board.post(ContainerEnded(address="gone", container="container_1", reason="preempted"))
    board.post(MarkLifted(address="restored"))
    clock.advance(4.0)
    heard: list[Any] = []
    board.subscribe(heard.append)
    assert heard == [_mark("stays", 6.0, cause="reclaim stays")]


@pytest.mark.parametrize(
    ("life_s", "expires_s", "why"), [(23.0, 23.0, "withdrawn"), (None, 70.0, "void")]
)
def test_a_mark_expires_on_the_board_even_if_the_application_master_is_gone(
    life_s: float | None, expires_s: float, why: Any
) -> None:
    # The stream of notices had ended, so a job that started an hour later received the mark.
    clock = Clock()
    board = clock.board()
    heard: list[Notice] = []
    board.subscribe(heard.append)
    board.post(_mark("a", life_s=life_s))
    clock.advance(expires_s - 1.0)
    assert len(board.live()) == len(heard) == 1
    clock.advance(expires_s + 1.0)
    assert heard[1:] == [MarkLifted(cause="restored a", address="a", why=why)]
    late: list[Notice] = []
    board.subscribe(late.append)
    assert late == []


def test_a_mark_of_an_unregistered_worker_is_passed_on_when_it_registers() -> None:
    clock = Clock()
    board = clock.board()
    heard: list[Notice] = []
    board.subscribe(heard.append)
    board.post(ContainerMarked(container="container_7", grace_s=10.0))
    assert heard == board.live() == []
    clock.advance(4.0)
    board.registered("container_7", "a")
    board.registered("container_7", "a")
    mark = ContainerMarked(cause="reclaim a", container="container_7", address="a", grace_s=6.0)
    assert heard == board.live() == [mark]
