"""Shared memory under random sends, forwards, drops and closes: no reader sees another vector."""

from __future__ import annotations

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.collective.transport import LinkClosedError
from tests.shared_memory_line import Line, filled, is_lent, line, send

WAYS = ["ab", "ba", "bc", "cb"]
STEP = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(WAYS), st.booleans()),
    st.tuples(st.just("relay"), st.sampled_from(["abc", "cba"]), st.booleans()),
    st.tuples(st.just("through"), st.sampled_from(["abc", "cba"])),
    st.tuples(st.just("drop"), st.integers(0, 30)),
)
STEPS = st.lists(STEP, min_size=4, max_size=25)


class Holders:
    """All ends' arrays, with the content that each must keep as long as it is held."""

    def __init__(self, there: Line) -> None:
        self.there = there
        self.held: list[tuple[str, np.ndarray, float]] = []
        self.n_values = 0.0

    async def send(self, way: str, vector: np.ndarray, value: float, keeps: bool) -> None:
        """Send on a link, which may be closed; the reader keeps what arrives, or drops it."""
        try:
            arrived = await send(self.there, way, vector, int(value))
        except LinkClosedError:
            return
        if keeps:
            self.held.append((way[1], arrived, value))

    async def take(self, step: tuple) -> None:
        """Do one step."""
        match step:
            case ("send", way, keeps):
                self.n_values += 1
                vector = filled(self.there, way[0], self.n_values)
                await self.send(way, vector, self.n_values, keeps)
            case ("relay", path, keeps):
                for name, array, value in list(self.held):
                    if name == path[1] and is_lent(array):
                        await self.send(path[1:], array, value, keeps)
                        break
            case ("through", path):
                await self.take(("send", path[:2], True))
                if self.held and self.held[-1][0] == path[1]:
                    _, array, value = self.held.pop()
                    await self.send(path[1:], array, value, True)
            case ("drop", number):
                if self.held:
                    del self.held[number % len(self.held)]
            case ("close", way):
                self.there.ends[way].close()

    def wrong(self) -> list[tuple[str, float]]:
        """List the arrays that differ from what was sent."""
        return [(name, value) for name, array, value in self.held if not np.all(array == value)]


@settings(max_examples=100)
@given(before=STEPS, closed=st.sampled_from(WAYS), after=STEPS, seed=st.integers(0, 5))
def test_held_vectors_always_read_as_they_were_sent(before, closed, after, seed):
    async def play() -> None:
        holders = Holders(await line())
        for step in (*before, ("close", closed), *after):
            await holders.take(step)
            assert holders.wrong() == []

    asyncio.run(play())
