"""Stateless seeded randomness: choices that depend on integer keys only, equal in every process.

A choice is drawn from a hash of its keys (a seed, a round, a purpose), so it is repeatable and
independent of earlier choices.

Source: the mixing steps of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(word: int) -> int:
    """Mix the bits of a 64-bit word (a bijection): the output step of SplitMix64."""
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def hash64(*keys: int) -> int:
    """Return a 64-bit hash of the keys and their order."""
    word = _GOLDEN
    for key in keys:
        # Larger keys enter the hash word by word; a key's sign is in its low word.
        while True:
            word = splitmix64(word + _GOLDEN + splitmix64(key & _WORD))
            key >>= 64
            if key in (0, -1):
                break
    return word


def shuffled(items: Iterable[T], *keys: int) -> list[T]:
    """Return the items in a random order drawn from the keys, all orders being equally likely.

    The result depends on the order of the input: sort the elements of a set first.
    """
    drawn = list(items)
    word = hash64(*keys)
    for k in range(len(drawn) - 1, 0, -1):
        word = (word + _GOLDEN) & _WORD
        other = splitmix64(word) % (k + 1)
        drawn[k], drawn[other] = drawn[other], drawn[k]
    return drawn
