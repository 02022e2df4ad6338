"""The board: all listeners receive posted notices, and latecomers those still valid."""

from __future__ import annotations

from typing import Any

from elasticml.runtime.preemption_board import (
    Ended,
    NodeTold,
    PreemptionBoard,
    Reclaim,
    Restored,
    reclaims_of,
)


def _mark(address: str, grace_s: float = 10.0) -> Reclaim:
    return Reclaim(address=address, grace_s=grace_s, negotiable=True)


def test_listeners_receive_notices_in_order() -> None:
    board = PreemptionBoard(lambda: 0.0)
    heard: list[Any] = []
    board.subscribe(heard.append)
    words = [
        _mark("a"),
        Restored(address="a"),
        Ended(address="a", container="container_1", reason="preempted", status=-102),
        NodeTold(node="n", state="decommissioning", grace_s=60.0, addresses=("a", "b")),
    ]
    for word in words:
        board.post(word)
    assert heard == words


def test_a_latecomer_receives_valid_notices_with_their_remaining_time() -> None:
    now = [0.0]
    board = PreemptionBoard(lambda: now[0])
    board.post(_mark("gone"))
    board.post(_mark("restored"))
    board.post(_mark("stays"))
    board.post(Ended(address="gone", container="container_1", reason="preempted"))
    board.post(Restored(address="restored"))
    now[0] = 4.0
    heard: list[Any] = []
    board.subscribe(heard.append)
    assert heard == [_mark("stays", 6.0)]


def test_an_unsubscribed_listener_receives_nothing() -> None:
    board = PreemptionBoard(lambda: 0.0)
    heard: list[Any] = []
    unsubscribe = board.subscribe(heard.append)
    unsubscribe()
    unsubscribe()
    board.post(_mark("a"))
    assert heard == []


def test_there_is_one_board_per_scheduler() -> None:
    extensions: dict[str, Any] = {}
    assert reclaims_of(extensions) is reclaims_of(extensions)
