"""A long list of records in little memory."""

from __future__ import annotations

import sys
from types import MappingProxyType

import pytest

from elasticml.ids import MemberId
from elasticml.story.compressed_records import BLOCK, RECENT, CompressedRecords
from elasticml.story.journal import Journal

N = RECENT + 5 * BLOCK + 7


def record(k: int) -> dict:
    return {"t": k / 7, "event": "RoundEnded", "round": k, "member": MemberId(k % 3, 1), "x": [k]}


@pytest.fixture(scope="module")
def both() -> tuple[list[dict], CompressedRecords]:
    made = [record(k) for k in range(N)]
    return made, CompressedRecords(made)


def test_records_equal_those_of_a_list_at_every_length():
    made, packed = [], CompressedRecords()
    for k in range(N):
        made.append(record(k))
        packed.append(record(k))
        if k % BLOCK in (0, 1, BLOCK - 1):
            assert (len(packed), packed[k], packed[-1]) == (k + 1, made[k], made[k])
    assert packed == made
    assert packed == CompressedRecords(made)
    assert packed != CompressedRecords(made[:-1])
    assert packed != [*made[:-1], {}]


@pytest.mark.parametrize(
    "start", [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK - 1, 5 * BLOCK, N - 1, N, N + 9]
)
@pytest.mark.parametrize("stop", [0, 1, BLOCK, BLOCK + 1, 4 * BLOCK, 5 * BLOCK + 1, N, None, -3])
def test_slices_equal_those_of_a_list(both, start, stop):
    made, packed = both
    assert packed[start:stop] == made[start:stop]
    view = packed.view(start, len(made) if stop is None else stop)
    assert (len(view), list(view)) == (len(made[start:stop]), made[start:stop])


def test_records_that_cannot_be_packed_are_kept_as_they_are():
    odd = {"event": "JobStarted", "spec": MappingProxyType({"a": 1})}
    packed = CompressedRecords([odd, *(record(k) for k in range(N))])
    assert packed[0] is odd
    assert packed[BLOCK] == record(BLOCK - 1)


def test_story_of_many_rounds_takes_a_fraction_of_its_objects():
    # A job of 500 rounds a second filled its scheduler's memory within minutes.
    journal = Journal({})
    for k in range(20_000):
        records = {
            "event": "ExchangeEnded",
            "round": k,
            "compute_s": {"0": k / 3},
            "cause": "reduce",
        }
        journal.story.append({"t": k / 500, **records})
    plain = sum(map(sys.getsizeof, ({}, 0.1, 0.1, {}, 1, ""))) * len(journal.story)
    journal.story.compact()
    assert journal.story.nbytes < plain / 5
    assert journal.story[12_345]["round"] == 12_345
