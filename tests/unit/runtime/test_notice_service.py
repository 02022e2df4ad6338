"""Announced ends of workers: whom they name, what becomes of them, and who polls for many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.protocol.notices import ContainerMarked, MarkLifted, Notice
from elasticml.runtime.notice_service import NoticeService
from elasticml.runtime.preemption_board import PreemptionBoard

pytestmark = pytest.mark.asyncio

ADDRESSES = {"tcp://h1:1": "a", "tcp://h1:2": 7, "tcp://h2:1": "c"}


class Scene:
    """Three workers on two hosts, a board, and what its listener has received."""

    def __init__(self) -> None:
        workers = {
            address: SimpleNamespace(name=name, host=address.split("/")[2].partition(":")[0])
            for address, name in ADDRESSES.items()
        }
        self.scheduler: Any = SimpleNamespace(workers=workers)
        self.board = PreemptionBoard(lambda: 0.0)
        self.received: list[Notice] = []
        self.board.subscribe(self.received.append)
        self.service = NoticeService(self.scheduler, self.board)


@pytest.mark.parametrize(
    ("workers", "addresses"),
    [
        (["tcp://h2:1"], ["tcp://h2:1"]),
        (["7", "a"], ["tcp://h1:2", "tcp://h1:1"]),
        (["h1", "a"], ["tcp://h1:1", "tcp://h1:2"]),
    ],
)
async def test_workers_are_named_by_address_by_name_or_by_host(workers, addresses) -> None:
    scene = Scene()
    reply = await scene.service.notice(workers, 60.0, "maintenance", negotiable=True)
    assert reply == {"workers": addresses}
    assert scene.received == [
        ContainerMarked(
            cause=f"reclaim {address}",
            address=address,
            grace_s=60.0,
            reason="maintenance",
            negotiable=True,
        )
        for address in addresses
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": ["b"]}, "got 'b', wanted addresses, names or hosts of workers: 7 at tcp"),
        ({"workers": ["tcp://h1:3"]}, "did you mean 'tcp://h1:"),
        ({"workers": []}, "workers: got none"),
        ({"workers": "a"}, "wanted a list"),
        ({"grace_s": -1.0}, "grace_s: got -1.0, wanted seconds"),
        ({"grace_s": float("inf")}, "grace_s: got inf"),
        ({"reason": "because"}, "reason: got 'because', wanted one of preempted"),
    ],
)
async def test_what_cannot_be_announced_is_an_error_in_one_line(change, message) -> None:
    scene = Scene()
    reply = await scene.service.notice(**{"workers": ["a"], "grace_s": 1.0, **change})
    assert message in reply["error"]["message"]
    assert "\n" not in reply["error"]["message"]
    assert scene.received == []


async def test_a_withdrawn_notice_lifts_the_mark_of_its_worker_alone() -> None:
    scene = Scene()
    await scene.service.notice(["a", "c"], 60.0)
    assert await scene.service.withdraw(["h1"]) == {"workers": ["tcp://h1:1"]}
    assert scene.received[2:] == [MarkLifted(cause="restored tcp://h1:1", address="tcp://h1:1")]
    assert [mark.address for mark in scene.board.live()] == ["tcp://h2:1"]


async def test_the_mark_of_a_worker_that_is_gone_does_not_hold_for_the_next_one_there() -> None:
    scene = Scene()
    await scene.service.notice(["a"], 60.0)
    scene.service.removed("tcp://h1:1")
    assert scene.board.live() == []
    scene.board.post(ContainerMarked(container="c1", address="tcp://h2:1", grace_s=60.0))
    scene.service.removed("tcp://h2:1")
    assert [mark.container for mark in scene.board.live()] == ["c1"]
