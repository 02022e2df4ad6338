"""Vectors in shared memory, announced by frames: who holds them, and for how long."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from elasticml.collective import shared_memory_link
from elasticml.collective.frames import Frame, Kind
from elasticml.collective.shared_memory_link import LOANS_MAX
from elasticml.collective.transport import LinkClosedError
from elasticml.errors import RemoteProtocolError
from tests.shared_memory_line import N, filled, framed, fresh, is_lent, line, return_loans, send

pytestmark = pytest.mark.asyncio


async def test_vector_is_read_without_a_copy():
    there = await line()
    vector = filled(there, "a", 3.0)
    arrived = await send(there, "ab", vector)
    assert is_lent(arrived)
    assert np.array_equal(arrived, vector)
    # Another mapping of the same memory: a write by the owner (which must not happen) would be
    # seen.
    vector[5] = 8.0
    assert arrived[5] == 8.0


async def test_slot_is_free_when_the_readers_last_view_is_gone():
    there = await line()
    vector = filled(there, "a", 1.0)
    place = vector.ctypes.data
    arrived = await send(there, "ab", vector)
    view = arrived[3:].reshape(1, -1)
    del vector, arrived
    await return_loans(there, "ab")
    assert filled(there, "a", 2.0).ctypes.data != place
    assert np.all(view == 1.0)
    del view
    await return_loans(there, "ab")
    assert filled(there, "a", 3.0).ctypes.data == place


async def test_borrowed_vector_is_forwarded_without_a_copy_and_held_until_the_last_reader_is_done():
    there = await line()
    vector = filled(there, "a", 6.0)
    place = vector.ctypes.data
    middle = await send(there, "ab", vector)
    last = await send(there, "bc", middle)
    assert is_lent(last)
    vector[0] = 7.0
    assert last[0] == 7.0
    del vector, middle
    await return_loans(there, "ab")
    assert filled(there, "a", 0.0).ctypes.data != place
    del last
    await return_loans(there, "bc")
    await return_loans(there, "ab")
    assert filled(there, "a", 0.0).ctypes.data == place


async def test_vectors_beyond_the_limit_of_loans_go_through_the_link():
    there = await line()
    arrived = [await send(there, "ab", filled(there, "a", k), k) for k in range(LOANS_MAX + 2)]
    assert [is_lent(array) for array in arrived] == [True] * LOANS_MAX + [False] * 2
    assert [array[0] for array in arrived] == list(range(LOANS_MAX + 2))


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (4, 0, "sequence 0, "),
        (5, 2, "exchange 2, "),
        (6, 8, " 8 bytes, wanted"),
    ],
)
async def test_slot_that_holds_anything_else_is_refused(word, value, message):
    there = await line()
    vector = filled(there, "a", 1.0)
    await there.ends["ab"].send(framed(vector))
    slot = there.pool("a").lease_of(memoryview(vector)).slot
    slot.words[word] = value
    with pytest.raises(RemoteProtocolError, match=message):
        await there.ends["ba"].receive(fresh)
    with pytest.raises(LinkClosedError):
        await there.ends["ba"].send(Frame(kind=Kind.CONTROL, prefix={}))


async def test_slot_closed_before_it_was_opened_is_a_closed_link():
    there = await line()
    vector = filled(there, "a", 1.0)
    await there.ends["ab"].send(framed(vector))
    there.pool("a").lease_of(memoryview(vector)).slot.words[3] = 77
    with pytest.raises(LinkClosedError, match=r"slot \d+ of process \d+ is closed"):
        await there.ends["ba"].receive(fresh)


def mapped_slots(there, way: str) -> list[int]:
    """Numbers of the slots that a link's end has mapped."""
    return sorted(struct.unpack("<16sQ", whose)[1] for whose in there.ends[way].maps)


async def test_mapped_bytes_stay_within_the_limit_of_a_process(monkeypatch):
    monkeypatch.setattr(shared_memory_link, "MAPS_BYTES_MAX", 40 * N)
    there = await line()
    vectors = [filled(there, "a", value) for value in (1.0, 2.0, 3.0)]
    for vector in vectors:
        await send(there, "ab", vector)
    assert mapped_slots(there, "ba") == [2, 3]
    # A longer one is mapped nevertheless, alone.
    longer = there.pool("a").take(80 * N)
    longer[:] = 4.0
    assert np.array_equal(await send(there, "ab", longer), longer)
    assert mapped_slots(there, "ba") == [4]


async def test_borrowed_vector_is_copied_once_its_owners_link_is_closed():
    there = await line()
    middle = await send(there, "ab", filled(there, "a", 6.0))
    there.ends["ab"].close()
    with pytest.raises(LinkClosedError):
        await there.ends["ba"].receive(fresh)
    last = await send(there, "bc", middle)
    assert not is_lent(last)
    assert np.all(last == 6.0)


async def test_loan_returned_twice_is_refused():
    there = await line()
    arrived = await send(there, "ab", filled(there, "a", 1.0))
    there.ends["ba"].returned.extend([1, 1])
    await there.ends["ba"].send(Frame(kind=Kind.CONTROL, prefix={}))
    with pytest.raises(RemoteProtocolError, match="gives back loan 1"):
        await there.ends["ab"].receive(fresh)
    assert arrived[0] == 1.0
