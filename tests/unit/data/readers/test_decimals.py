"""Decimals in bytes become the same doubles as with Python's ``float``, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticml.compiled import kernel
from elasticml.data.readers.decimals import EXACT, INEXACT, MALFORMED, number_at


@kernel
def numbers_at(text, starts, values, ends, hows):
    for i in range(starts.size):
        values[i], ends[i], hows[i] = number_at(text, starts[i], text.size)


def parse_words(words: list[str], end: str = " ") -> tuple[list[float], list[int], list[int]]:
    """Return value, length and outcome of each word, parsed from one text that ends with the
    last.
    """
    text = np.frombuffer(end.join(words).encode(), np.uint8)
    starts = np.cumsum([0, *(len(word) + len(end) for word in words[:-1])])
    values, ends = np.empty(len(words)), np.empty(len(words), np.int64)
    hows = np.empty(len(words), np.int64)
    numbers_at(text, starts, values, ends, hows)
    return values.tolist(), (ends - starts).tolist(), hows.tolist()


def check(words: list[str]) -> list[int]:
    """Assert that no number is wrong; return how each was parsed."""
    values, lengths, hows = parse_words(words)
    assert lengths == [len(word) for word in words]
    wrong = [
        (word, value)
        for word, value, how in zip(words, values, hows, strict=True)
        if how == MALFORMED or (how == EXACT and value.hex() != float(word).hex())
    ]
    assert wrong == []
    return hows


DIGITS = st.text("0123456789", min_size=1, max_size=45)
EXPONENTS = st.one_of(
    st.just(""),
    st.builds("{}{:+}".format, st.sampled_from("eE"), st.integers(-400, 400)),
    st.builds("e{}".format, st.text("0123456789", min_size=1, max_size=30)),
)


@settings(max_examples=500)
@given(st.sampled_from(["", "-", "+"]), DIGITS, st.integers(0, 45), EXPONENTS)
@example("-", "0", 1, "")
@example("", "9007199254740993", 16, "")
@example("", "24703282292062327208299690410708", 1, "e-324")
def test_any_decimal_is_exact_to_the_last_bit(sign, digits, point, exponent):
    check([f"{sign}{digits}{exponent}", f"{sign}{digits[:point]}.{digits[point:]}{exponent}"])


@settings(max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 25))
def test_printed_numbers_are_exact_to_the_last_bit(number, places):
    check([repr(number), f"{number:.{places}e}", f"{number:.{places}g}"])


@settings(max_examples=300)
@given(st.integers(2**52, 2**53 - 1), st.integers(-120, 60), st.sampled_from(["", "0", "1", "01"]))
def test_ties_round_to_even_and_beyond_rounds_up(mantissa, power, more):
    tie = Fraction(2 * mantissa + 1) * Fraction(2) ** power
    if power >= 0:
        words = [f"{int(tie)}.{more}", str(int(tie) - 1)]
    else:
        digits = str((2 * mantissa + 1) * 5**-power).rjust(1 - power, "0")
        words = [f"{digits[:power]}.{digits[power:]}{more}", f"{digits[:power]}.{digits[power:-1]}"]
    check(words)


def test_hardly_any_number_is_left_to_python():
    rng = np.random.default_rng(0)
    words = [repr(value) for value in rng.standard_normal(20_000).tolist()]
    words += [f"{value:.18e}" for value in rng.standard_normal(20_000).tolist()]
    words += [f"{value:.25f}" for value in rng.random(20_000).tolist()]
    words += [repr(value) for value in (10 ** rng.uniform(-300, 300, 20_000)).tolist()]
    assert np.mean(np.array(check(words)) == INEXACT) < 1e-3


@pytest.mark.parametrize("word", ["", "-", "+", ".", "-.", "e5", "1e", "1e+", "1e-", ".e1", "nan"])
def test_text_that_is_no_number_is_reported(word):
    assert parse_words([word])[2] == [MALFORMED]


@pytest.mark.parametrize("n", range(1, 40))
def test_a_number_ends_with_the_text_or_at_the_next_character(n):
    digits = ("1234567890" * 4)[:n]
    for word in (digits, f"{digits}.5", f".{digits}", f"-{digits}e-3"):
        check([word])
        values, lengths, hows = parse_words([f"{word}:", f"{word}/", f"{word}\x80"])
        assert lengths == [len(word)] * 3
        assert all(v == float(word) or h == INEXACT for v, h in zip(values, hows, strict=True))
