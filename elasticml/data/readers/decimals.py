"""Parse decimal numbers from bytes, eight digits at a time; correctly rounded or marked inexact.

Eight bytes are loaded as one little-endian word. Finding which of them are digits, and the number
that they form, takes a dozen operations and no branch.

The decimal ``m * 10**p`` becomes the nearest double by one division or product of exact doubles
where both are small (Clinger, "How to read floating point numbers accurately", 1990), else from
the upper half of ``m`` times a 128-bit power of five (Lemire, "Number parsing at a gigabyte per
second", Software: Practice and Experience 51, 2021, section 6). Ties, subnormal numbers, and
numbers beyond the largest double are left to the caller.

Nothing here checks array bounds: callers pass offsets within the text.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from elasticml.compiled import inlined_kernel, kernel

_ZERO, _NINE = 48, 57

#: Eight times the digit zero.
ZEROS: Final = np.uint64(0x3030303030303030)
#: Added to a byte below 128, it sets the byte's highest bit if the byte is more than nine.
_PAST_NINE: Final = np.uint64(0x7676767676767676)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_EVEN_BYTES: Final = np.uint64(0x000000FF000000FF)
_HUNDREDS: Final = np.uint64(0x000F424000000064)
_UNITS: Final = np.uint64(0x0000271000000001)
TEN_TO_8: Final = np.uint64(10**8)
INT_POWERS: Final = np.array([10**k for k in range(9)], np.uint64)

_NONE: Final = np.uint64(0)
_EIGHT: Final = np.uint64(8)
_TEN: Final = np.uint64(10)
_SIXTEEN: Final = np.uint64(16)
_HALF_WORD: Final = np.uint64(32)


@intrinsic
def byte_at(_: Any, text: Any, at: Any) -> Any:
    """Return one byte of a contiguous uint8 array; the offset must not be negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte = builder.load(builder.gep(array.data, [arguments[1]]))
        return builder.zext(byte, context.get_value_type(types.int64))

    return types.int64(text, types.int64), generate


@intrinsic
def word_at(_: Any, text: Any, at: Any) -> Any:
    """Return eight bytes of a contiguous uint8 array as a little-endian word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        start = builder.gep(array.data, [arguments[1]])
        pointer = context.get_value_type(types.uint64).as_pointer()
        return builder.load(builder.bitcast(start, pointer), align=1)

    return types.uint64(text, types.int64), generate


@intrinsic
def trailing_zeros(_: Any, word: Any) -> Any:
    """Count trailing zero bits; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, 0))

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(_: Any, word: Any) -> Any:
    """Count leading zero bits; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, 0))

    return types.uint64(types.uint64), generate


@intrinsic
def double_of(_: Any, bits: Any) -> Any:
    """Return the double with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.uint64), generate


@inlined_kernel
def eight_digits(digits: np.uint64) -> np.uint64:
    """Return the number formed by eight digits, each a byte from 0 to 9, the first one lowest."""
    pairs = digits * _TEN + (digits >> _EIGHT)
    left = (pairs & _EVEN_BYTES) * _HUNDREDS
    right = ((pairs >> _SIXTEEN) & _EVEN_BYTES) * _UNITS
    return (left + right) >> _HALF_WORD


@inlined_kernel
def no_digits(digits: np.uint64) -> np.uint64:
    """Set the highest bit of the first byte of ``word ^ ZEROS`` that is not a digit.

    The bits of later bytes are undefined: a carry out of the first non-digit may change them.
    """
    return ((digits + _PAST_NINE) | digits) & _HIGH_BITS


@inlined_kernel
def digits_at(text: NDArray[np.uint8], at: int, n: int, total: np.uint64) -> tuple[np.uint64, int]:
    """Append the digits at ``at`` to ``total``; return the total, modulo 2**64, and their end."""
    while at + 8 <= n:
        digits = word_at(text, at) ^ ZEROS
        others = no_digits(digits)
        if others == _NONE:
            total = total * TEN_TO_8 + eight_digits(digits)
            at += 8
            continue
        k = trailing_zeros(others) >> 3
        # In two steps: for no digit the shift would be by 64 bits, which is undefined.
        shifted = (digits << _EIGHT) << np.uint64(56 - 8 * k)
        return total * INT_POWERS[np.uint64(k)] + eight_digits(shifted), at + k
    while at < n and _ZERO <= byte_at(text, at) <= _NINE:
        total = total * _TEN + np.uint64(byte_at(text, at) - _ZERO)
        at += 1
    return total, at


@intrinsic
def product(_: Any, a: Any, b: Any) -> Any:
    """Return the upper and lower 64 bits of ``a * b``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        x, y = (builder.zext(argument, wide) for argument in arguments)
        product = builder.mul(x, y)
        upper = builder.lshr(product, ir.Constant(wide, 64))
        halves = [builder.trunc(half, ir.IntType(64)) for half in (upper, product)]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), generate


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
