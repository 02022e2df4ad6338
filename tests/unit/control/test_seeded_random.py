"""Random numbers from integers: reproducible, uniform, and permutations are complete."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from elasticml.control.seeded_random import shuffled, splitmix64


def test_mixing_gives_the_numbers_of_the_published_generator():
    # The first outputs of SplitMix64 with state 0: mixed(state + k * golden ratio).
    golden = 0x9E3779B97F4A7C15
    assert [splitmix64(golden * k) for k in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_same_keys_give_the_same_order_and_others_another():
    items = list(range(50))
    assert shuffled(items, 7, 3) == shuffled(items, 7, 3)
    assert len({tuple(shuffled(items, *keys)) for keys in [(7, 3), (3, 7), (7,), (7, 3, 0)]}) == 4
    assert sorted(shuffled(items, 7, 3)) == items


def test_every_order_is_as_likely_as_any_other():
    n = 6000
    counts = Counter(tuple(shuffled("abc", 1, k)) for k in range(n))
    assert set(counts) == set(permutations("abc"))
    # Five standard deviations of a count with p = 1/6.
    assert all(abs(count - n / 6) < 5 * (n * 5 / 36) ** 0.5 for count in counts.values())
