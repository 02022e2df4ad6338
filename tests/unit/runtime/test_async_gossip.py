"""States between members over socket pairs: recipients, and the loss of recipients."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.address_book import AddressBook
from elasticml.algorithms.async_sgd.base import Mail, Mailbox
from elasticml.ids import MemberId
from elasticml.protocol.commands import Peers
from elasticml.runtime.async_mode.async_gossip import (
    LINKS_MAX,
    SHUN_S,
    STUCK_S,
    TURN_S,
    AsyncGossip,
    SendQueue,
)
from elasticml.training.array_buffers import Vector
from tests.socket_pair import SocketTransport

TURNS = 200


class Post:
    """A member's gossip; the test controls its loop."""

    def __init__(self, world: World, slot: int, sends: int = 1, n_values: int = 3) -> None:
        self.me = MemberId(slot, 1)
        self.address = f"w{slot}"
        self.mailbox = Mailbox(slots=50)
        self.state: Vector | None = None
        self.began: list[Mail] = []
        self.errors: list[BaseException] = []
        self.shapes = {"w": (n_values,)}
        self.fail = self.errors.append
        self.transport = transport = SocketTransport(self.address, world.network)
        self.letters = AsyncGossip(
            AddressBook(self.me, slot),
            self,
            {"job": "j"},
            transport=transport,
            clock=lambda: world.now_s,
            pause=world.pause,
            sends=sends,
        )
        self.send_queue = self.letters.send_queue = SendQueue(8, lambda: None)
        transport.listen(self.letters.accept)

    def copy_state(self, give: Callable[[Vector | None], None]) -> None:
        give(self.state)

    def begin(self, mail: Mail) -> None:
        self.began.append(mail)

    def send(self, value: float) -> None:
        self.send_queue.post(np.full(self.shapes["w"], value), None)
        self.letters.pump()

    def got(self) -> list[float]:
        return [float(mail.arrays["w"][0]) for mail in self.mailbox.take()]


class World:
    """Members on one network, whose time advances when a task waits."""

    def __init__(self, n: int, **settings: Any) -> None:
        self.network: dict[str, SocketTransport] = {}
        self.now_s = 0.0
        self.posts = [Post(self, k, **settings) for k in range(n)]
        self.tell()

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def tell(self, **changes: Any) -> None:
        for post in self.posts:
            post.letters.know(
                Peers(
                    member=post.me,
                    came=tuple(p.me for p in self.posts),
                    addresses=tuple(p.address for p in self.posts),
                    is_full=True,
                )
            )

    async def settle(self, turns: int = TURNS) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    def close(self) -> None:
        for post in self.posts:
            post.letters.close()


def play(n: int, scene: Callable[[World], Any], **settings: Any) -> Any:
    async def run() -> Any:
        world = World(n, **settings)
        try:
            return await scene(world)
        finally:
            world.close()

    return asyncio.run(run())


def test_states_go_to_each_of_the_others_and_never_to_oneself():
    async def scene(world: World) -> Counter[int]:
        for k in range(60):
            world.posts[0].send(float(k))
            await world.settle()
        return Counter({p.me.slot: len(p.got()) for p in world.posts})

    actual = play(4, scene)
    assert actual[0] == 0
    assert sum(actual.values()) == 60
    assert min(actual[k] for k in (1, 2, 3)) >= 10


def test_a_state_goes_to_the_configured_number_of_different_peers():
    async def scene(world: World) -> list[list[float]]:
        world.posts[0].send(7.0)
        await world.settle()  # links open
        for p in world.posts:
            p.got()
        world.posts[0].send(8.0)
        await world.settle()
        return sorted(p.got() for p in world.posts)

    assert play(4, scene, sends=3) == [[], [8.0], [8.0], [8.0]]


def test_among_many_members_links_are_few_and_change_over_time():
    opened: list[str] = []

    async def scene(world: World) -> tuple[int, int, int]:
        post = world.posts[0]
        connect = post.transport.connect

        async def counted(address: str, hello: Any) -> Any:
            opened.append(address)
            return await connect(address, hello)

        post.transport.connect = counted  # type: ignore[method-assign]
        for k in range(400):
            post.send(float(k))
            for _ in range(20):
                await asyncio.sleep(0)
        soon = len(opened)
        for k in range(400):
            world.now_s += 0.5
            post.send(float(k))
            for _ in range(20):
                await asyncio.sleep(0)
        actual = sum(len(p.got()) for p in world.posts)
        return soon, len(opened), actual

    soon, later, actual = play(60, scene)
    assert (soon, actual) == (LINKS_MAX + 1, 800)
    # One for every two seconds of 200, if the drawn peer has none.
    assert LINKS_MAX + 50 <= later <= LINKS_MAX + 1 + 200 / TURN_S
    assert len(set(opened)) >= 50


def test_no_state_is_sent_to_a_lost_member():
    async def scene(world: World) -> list[int]:
        first, second, third = world.posts
        for _ in range(10):
            first.send(1.0)
            await world.settle()
        before = len(second.got()) > 0
        first.letters.know(Peers(member=first.me, gone=(second.me,)))
        for _ in range(10):
            first.send(2.0)
            await world.settle()
        return [before, len(second.got()), third.got().count(2.0)]

    assert play(3, scene) == [True, 0, 10]


def test_a_dead_peer_costs_one_state_at_most_and_is_excluded_from_the_choice():
    async def scene(world: World) -> tuple[int, int, int]:
        first, second, third = world.posts
        for _ in range(10):
            first.send(1.0)
            await world.settle()
        third.got()
        second.transport.close()
        for _ in range(20):
            first.send(2.0)
            await world.settle()
        return len(third.got()), first.letters.n_undelivered, round(first.send_queue.fill)

    assert play(3, scene) == (20, 0, 0)


def test_states_without_recipients_are_counted_and_take_no_slot():
    async def scene(world: World) -> tuple[int, float, int]:
        first, second = world.posts
        second.transport.close()
        for _ in range(5):
            first.send(1.0)
            await world.settle()
        undelivered = first.letters.n_undelivered
        # It is back at its address, and is tried again in time.
        world.now_s += SHUN_S
        again = SocketTransport(second.address, world.network)
        again.listen(second.letters.accept)
        first.send(2.0)
        await world.settle()
        return undelivered, first.send_queue.fill, len(second.got())

    assert play(2, scene) == (5, 0.0, 1)


def test_a_stopped_peer_takes_a_slot_for_a_second_and_is_then_excluded():
    async def scene(world: World) -> tuple[float, ...]:
        first, second = world.posts
        second.transport.listen(lambda link: asyncio.sleep(3600.0))  # it never reads
        first.send(1.0)
        await world.settle()
        waiting = first.send_queue.fill
        while first.send_queue.fill and world.now_s < 9.0:
            await world.settle()
        waited_s = world.now_s
        first.send(2.0)
        await world.settle()
        return waiting, waited_s, first.send_queue.fill, first.letters.n_undelivered

    # More than the kernel takes.
    seen = play(2, scene, n_values=2**18)
    assert seen == (1 / 8, pytest.approx(STUCK_S, abs=0.3), 0.0, 1)


def test_a_newcomer_starts_with_the_state_of_a_peer_that_has_one():
    async def scene(world: World) -> tuple[list[float], bool]:
        newcomer = world.posts[3]
        for post in world.posts[:3]:
            post.state = np.full(3, 10.0 + post.me.slot)
        newcomer.letters.ask()
        for _ in range(20):
            await world.settle()
        return [float(m.arrays["w"][0]) for m in newcomer.began], newcomer.letters.has_asked

    began, has_asked = play(4, scene)
    assert len(began) == 1
    assert began[0] in (10.0, 11.0, 12.0)
    assert not has_asked


def test_a_newcomer_without_answers_reports_it():
    async def scene(world: World) -> tuple[list[Mail], bool]:
        newcomer = world.posts[2]
        newcomer.letters.ask()
        for _ in range(60):
            await world.settle()
        return newcomer.began, newcomer.letters.has_asked

    assert play(3, scene) == ([], True)
