"""Parse decimal numbers from bytes, eight digits at a time; correctly rounded or marked inexact.

The decimal ``m * 10**p`` becomes the nearest double by one division or product of exact doubles
where both are small (Clinger, "How to read floating point numbers accurately", 1990), else from
the upper half of ``m`` times a 128-bit power of five (Lemire, "Number parsing at a gigabyte per
second", Software: Practice and Experience 51, 2021, section 6). Ties, subnormal numbers, and
numbers beyond the largest double are left to the caller.

Nothing here checks array bounds: callers pass offsets within the text.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.digit_words import (
    _NINE,
    _NONE,
    _TEN,
    _ZERO,
    byte_at,
    digits_at,
    double_of,
    leading_zeros,
    product,
)
from elasticml.data.kernels import inlined_kernel, kernel

#: Result of parsing: correctly rounded, left to the caller, or not a number.
EXACT: Final = 0
INEXACT: Final = 1
MALFORMED: Final = 2

_PLUS, _MINUS, _DOT = 43, 45, 46
_CASE_BIT, _SMALL_E = 32, 101

_ONE: Final = np.uint64(1)
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)

#: Any number of at most this many digits fits 64 bits.
_DIGITS_MAX: Final = 19
_EXPONENT_MAX: Final = 100_000
_MANTISSA_MAX: Final = np.uint64(2**53)
_POWER_MAX: Final = 22
_POWERS: Final = 10.0 ** np.arange(_POWER_MAX + 1)

#: Powers of ten whose product with a 64-bit integer may be a normal double.
_TEN_MIN: Final = -342
_TEN_MAX: Final = 308
#: Powers of five that 128 bits represent exactly, or as an inverse of sufficient precision.
_FIVE_MIN: Final = -27
_FIVE_MAX: Final = 55
#: The lowest bits of the upper half, through which a carry from the omitted product may propagate.
_CARRY_BITS: Final = np.uint64(0x1FF)
_HIDDEN_BIT: Final = np.uint64(2**52)
_FRACTION: Final = np.uint64(2**52 - 1)


def _powers_of_five() -> NDArray[np.uint64]:
    """Return the leading 128 bits of ``5**p`` for p from -342 to 308, as (upper, lower) 64 bits.

    Truncated, except inverses from -27 on, which are rounded up.
    """
    rows = []
    for power in range(_TEN_MIN, _TEN_MAX + 1):
        five = 5 ** abs(power)
        if power >= 0:
            shift = 128 - five.bit_length()
            leading = five << shift if shift >= 0 else five >> -shift
        else:
            leading = (1 << (five.bit_length() + 127)) // five + (power >= _FIVE_MIN)
        rows.append((leading >> 64, leading & (2**64 - 1)))
    return np.array(rows, np.uint64)


_FIVES: Final = _powers_of_five()


@inlined_kernel
def _rounded(mantissa: np.uint64, power: int) -> tuple[float, bool]:
    """Return the double nearest to ``mantissa * 10**power``, and whether it is certain."""
    if mantissa <= _MANTISSA_MAX and -_POWER_MAX <= power <= _POWER_MAX:
        value = float(np.int64(mantissa))
        return (value * _POWERS[power] if power >= 0 else value / _POWERS[-power]), True
    if mantissa == _NONE:
        return 0.0, True
    if power < _TEN_MIN or power > _TEN_MAX:
        return 1.0, False
    return scaled(mantissa, power)


@inlined_kernel
def scaled(mantissa: np.uint64, power: int) -> tuple[float, bool]:
    """Return what :func:`_rounded` returns, for a mantissa above 0 and a power in the table."""
    zeros = leading_zeros(mantissa)
    shifted = mantissa << zeros
    row = power - _TEN_MIN
    upper, lower = product(shifted, _FIVES[row, 0])
    if upper & _CARRY_BITS == _CARRY_BITS:
        carry, _ = product(shifted, _FIVES[row, 1])
        lower += carry
        upper += _ONE if lower < carry else _NONE
        if lower == _ALL_BITS and not _FIVE_MIN <= power <= _FIVE_MAX:
            return 1.0, False
    top = upper >> np.uint64(63)
    shift = top + np.uint64(9)
    # 54 bits: those of a double, and the rounding bit.
    bits = upper >> shift
    exponent = ((217706 * power) >> 16) + 1086 + np.int64(top) - np.int64(zeros)
    is_tie = lower <= _ONE and bits & np.uint64(3) == _ONE and bits << shift == upper
    if is_tie or exponent <= 0 or exponent >= 2046:
        return 1.0, False
    bits = (bits + (bits & _ONE)) >> _ONE
    if bits >= _HIDDEN_BIT << _ONE:
        bits = _HIDDEN_BIT
        exponent += 1
    return double_of((np.uint64(exponent) << np.uint64(52)) | (bits & _FRACTION)), True


@kernel
def _long_number(text: NDArray[np.uint8], at: int, power: int) -> tuple[float, bool]:
    """Return what :func:`_rounded` returns, for any number of digits starting at ``at``.

    ``power`` is that of the last digit. If the first 19 digits, and the same plus one unit in the
    last place, round to the same double, then so does every number between them.
    """
    mantissa, kept, dropped, is_cut, n = _NONE, 0, 0, False, text.size
    while at < n:
        c = byte_at(text, at)
        if _ZERO <= c <= _NINE:
            if kept < _DIGITS_MAX:
                mantissa = mantissa * _TEN + np.uint64(c - _ZERO)
                kept += 1 if mantissa != _NONE else 0
            else:
                dropped += 1
                is_cut = is_cut or c != _ZERO
        elif c != _DOT:
            break
        at += 1
    value, is_sure = _rounded(mantissa, power + dropped)
    if is_cut and is_sure:
        above, is_sure = _rounded(mantissa + _ONE, power + dropped)
        is_sure = is_sure and above == value
    return value, is_sure


@inlined_kernel
def number_at(text: NDArray[np.uint8], at: int, n: int) -> tuple[float, int, int]:
    """Parse a decimal: its value, its end, and ``EXACT``, ``INEXACT`` or ``MALFORMED``.

    Parameters
    ----------
    text : ndarray, uint8, contiguous
    at : int
        Start of the number, including its sign; at most n.
    n : int
        Size of the text.

    Returns
    -------
    value : float
        The nearest double, ties to even. If inexact, 1.0 stands in for a nonzero value.
    end : int
        Offset past the number. The caller checks what follows.
    how : int
    """
    negative = at < n and byte_at(text, at) == _MINUS
    if negative or (at < n and byte_at(text, at) == _PLUS):
        at += 1
    begin = at
    mantissa, at = digits_at(text, at, n, _NONE)
    digits, power = at - begin, 0
    if at < n and byte_at(text, at) == _DOT:
        at += 1
        point = at
        mantissa, at = digits_at(text, at, n, mantissa)
        power = point - at
        digits -= power
    if digits == 0:
        return 0.0, at, MALFORMED
    if at < n and byte_at(text, at) | _CASE_BIT == _SMALL_E:
        at += 1
        minus = at < n and byte_at(text, at) == _MINUS
        if minus or (at < n and byte_at(text, at) == _PLUS):
            at += 1
        exponent, start = 0, at
        while at < n and _ZERO <= byte_at(text, at) <= _NINE:
            exponent = min(10 * exponent + byte_at(text, at) - _ZERO, _EXPONENT_MAX)
            at += 1
        if at == start:
            return 0.0, at, MALFORMED
        power += -exponent if minus else exponent
    if digits <= _DIGITS_MAX:
        value, is_sure = _rounded(mantissa, power)
    else:
        value, is_sure = _long_number(text, begin, power)
    return (-value if negative else value), at, (EXACT if is_sure else INEXACT)
