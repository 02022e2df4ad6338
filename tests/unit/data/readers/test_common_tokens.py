"""Fast parsing of common tokens from whole words: exact values, and no guess for others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticml.compiled import kernel
from elasticml.data.readers.svmlight_kernels import FRACTION_BYTES, fraction_at, pair_at


@kernel
def fractions(text, starts, values, ends, are_read):
    for i in range(starts.size):
        values[i], ends[i], are_read[i] = fraction_at(text, starts[i])


@kernel
def pairs(text, starts, found):
    for i in range(starts.size):
        found[i, 0], found[i, 1], found[i, 2], found[i, 3] = pair_at(text, starts[i])


def parse_fraction(word: str, behind: str = " ") -> tuple[float, int] | None:
    """Return value and width of a number that the fast path parses, else None."""
    text = np.frombuffer(f"3{word}{behind}".encode() + b"7" * FRACTION_BYTES, np.uint8)
    value, end, is_read = np.empty(1), np.empty(1, np.int64), np.empty(1, np.bool_)
    fractions(text, np.array([1]), value, end, is_read)
    return (float(value[0]), int(end[0]) - 1) if is_read[0] else None


def pair(text: str) -> tuple[int, int, int, int]:
    result = np.empty((1, 4), np.int64)
    pairs(np.frombuffer(f"3{text}".encode().ljust(9, b"x"), np.uint8), np.array([1]), result)
    return tuple(result[0].tolist())


@settings(max_examples=500)
@given(
    st.sampled_from(["", "-"]),
    st.sampled_from("0123456789"),
    st.text("0123456789", min_size=1, max_size=24),
    st.sampled_from([" ", "\n", "\t", "#", "e", ":", "\xff"]),
)
@example("-", "0", "000000000", " ")
@example("", "9", "999999999999999999", " ")
@example("", "9", "007199254740993", " ")
def test_a_parsed_fraction_is_exact_to_the_last_bit(sign, whole, digits, behind):
    word = f"{sign}{whole}.{digits}"
    result = parse_fraction(word, behind)
    if result is not None:
        assert (result[0].hex(), result[1]) == (float(word).hex(), len(word))
    if not 9 <= len(digits) <= 18:
        assert result is None


@pytest.mark.parametrize("n", range(9, 19))
@pytest.mark.parametrize("sign", ["", "-"])
def test_common_printed_fractions_are_parsed(sign, n):
    rng = np.random.default_rng(n)
    for word in (f"{sign}{x:.{n}f}" for x in 10 * rng.random(50)):
        if len(word) == n + 2 + len(sign):
            assert parse_fraction(word) == (float(word), len(word))


@pytest.mark.parametrize(
    "word",
    [
        *(
            "12.345678901",
            "+1.234567890",
            ".1234567890",
            "1,234567890",
            "--1.23456789",
            "a.123456789",
        ),
        *("1.12345678", "1.2345678x9", "1.1234567890123456789", "", " 1.234567890", "-", "1e-5"),
    ],
)
def test_other_numbers_are_not_parsed(word):
    assert parse_fraction(word) is None


@pytest.mark.parametrize("digit", [0, 1, 9])
@pytest.mark.parametrize("number", [0, 7, 10, 409, 1234, 99999])
def test_pairs_of_a_number_and_a_digit_are_parsed(number, digit):
    index = f"{number}:"
    token = f"{index}{digit}"
    assert pair(f"{token} ") == (number, len(index), digit, len(token) + 1)
    # A newline ends a row: the reader of rows must see it.
    assert pair(f"{token}\n") == (number, len(index), digit, len(token))


@pytest.mark.parametrize(
    "text",
    ["7:12 ", "7:1.5 ", "7:1e3 ", "7:1#", "7:1\t", "7:1\r\n", "7:1", "7:-1 ", "7:a ", "7:/ "],
)
def test_other_values_are_not_parsed(text):
    number, index_width, _, width = pair(text)
    assert (number, index_width, width) == (7, 2, 0)


@pytest.mark.parametrize("number", [0, 123456, 9999999])
def test_indices_of_up_to_seven_digits_are_parsed(number):
    index = f"{number}:"
    assert pair(f"{index}2.5")[:2] == (number, len(index))


@pytest.mark.parametrize(
    "text",
    [":1 ", "1 :1 ", "-1:1 ", "+1:1 ", "a:1 ", "12345678:1 ", "qid:1 ", "/:1 ", "1;1 ", "\n1:1 "],
)
def test_other_indices_are_not_parsed(text):
    _, index_width, _, width = pair(text)
    assert (index_width, width) == (0, 0)
