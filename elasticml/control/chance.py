"""Chance without a generator: choices that depend on integers alone, the same in every process.

A choice is drawn from a hash of its keys (a seed, a round, a purpose), so that it can be repeated,
and does not depend on what was chosen before it or by whom.

Source: the mixing steps of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(word: int) -> int:
    """Spread the bits of a 64-bit word: a bijection without visible pattern."""
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def hashed(*keys: int) -> int:
    """Return 64 bits that depend on all keys and on their order."""
    word = _GOLDEN
    for key in keys:
        # Keys beyond a word count in full; a key's sign is in its low word.
        while True:
            word = mixed(word + _GOLDEN + mixed(key & _WORD))
            key >>= 64
            if key in (0, -1):
                break
    return word


def shuffled(items: Iterable[T], *keys: int) -> list[T]:
    """Return the items in an order drawn from the keys; every order is as likely as any other.

    Which one it is depends on the order in which they are given: sort what comes from a set.
    """
    drawn = list(items)
    word = hashed(*keys)
    for k in range(len(drawn) - 1, 0, -1):
        word = (word + _GOLDEN) & _WORD
        other = mixed(word) % (k + 1)
        drawn[k], drawn[other] = drawn[other], drawn[k]
    return drawn


def pick(items: Sequence[T], *keys: int) -> T:
    """Return one of the items, drawn from the keys.

    Raises
    ------
    IndexError
        When there are none.
    """
    if not items:
        raise IndexError("nothing to pick from")
    return items[hashed(*keys) % len(items)]
