"""Parse svmlight text from bytes: one pass, without the GIL; numbers are exact or marked.

The most frequent tokens, ``index:value`` with an index of at most seven digits, are read from one
word or three without a loop over their bytes (``pair_at``, ``fraction_at``). Slower functions
handle all others.

Decimals are parsed eight digits at a time: eight bytes are loaded as one little-endian word, and
finding which of them are digits, and the number that they form, takes a dozen operations and no
branch. The decimal ``m * 10**p`` becomes the nearest double by one division or product of exact
doubles where both are small (Clinger, "How to read floating point numbers accurately", 1990), else
from the upper half of ``m`` times a 128-bit power of five (Lemire, "Number parsing at a gigabyte
per second", Software: Practice and Experience 51, 2021, section 6). Ties, subnormal numbers, and
numbers beyond the largest double are left to Python's ``float``.

Nothing here checks array bounds: callers pass offsets within the text.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

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


BAD_LABEL: Final = 1
BAD_INDEX: Final = 2
NEGATIVE_INDEX: Final = 3
ZERO_INDEX: Final = 4
LARGE_INDEX: Final = 5
NO_COLON: Final = 6
BAD_VALUE: Final = 7

#: Indices into ``counters``: rows, stored values, inexact numbers, largest column, dropped values,
#: qid tokens, unsorted rows, values other than 0 and 1, error code and offset.
ROWS, STORED, SLOW, LAST_COLUMN, DROPPED, QID, UNSORTED, OTHERS, ERROR, ERROR_AT = range(10)
N_COUNTERS: Final = 10

INDEX_MAX: Final = 2**31 - 1


class Parsed(NamedTuple):
    """What parsing writes: room for one row per line and one value per colon."""

    #: (lines,)
    labels: NDArray[np.float64]
    #: (lines + 1,)
    indptr: NDArray[np.int64]
    #: (colons,). Explicit zeros are not stored.
    indices: NDArray[np.int32]
    values: NDArray[np.float64]
    #: (lines + colons, 3). Numbers left to Python: start and end of the token, and the destination:
    #: an index into ``values``, or ``-1 - row`` for a label.
    slow: NDArray[np.int64]
    #: (N_COUNTERS,), by the names above; ``ERROR_AT`` is the offset of the invalid token.
    counters: NDArray[np.int64]


#: Bytes that :func:`fraction_at` may access.
FRACTION_BYTES: Final = 27

_SPACE_WORD: Final = np.uint64(32)
_NEWLINE_WORD: Final = np.uint64(10)
_COLON_WORD: Final = np.uint64(58)
#: A decimal point and a nine in ``word ^ ZEROS``.
_POINT: Final = np.uint64(46 ^ 48)
_DIGIT_MAX: Final = np.uint64(9)
_BYTE: Final = np.uint64(0xFF)

_THREE: Final = np.uint64(3)
#: In bits.
_FIVE_BYTES: Final = np.uint64(40)
_SEVEN_BYTES: Final = np.uint64(56)
_WORD: Final = np.uint64(64)


@inlined_kernel
def pair_at(text: NDArray[np.uint8], at: int) -> tuple[int, int, int, int]:
    """Read ``number:digit`` from one word, including a space that ends it, but not a newline.

    Returns
    -------
    number : int
        At most seven digits.
    index_width : int
        Bytes of the number and the colon; 0 if the token has another form.
    digit : int
    width : int
        Bytes of the whole token, including a space; 0 if the value has another form, or the number
        has more than five digits.
    """
    word = word_at(text, at)
    digits = word ^ ZEROS
    bits = np.uint64(trailing_zeros(no_digits(digits)) & 56)
    digit = ((digits >> bits) >> _EIGHT) & _BYTE
    behind = word >> bits
    end = (behind >> _SIXTEEN) & _BYTE
    is_space = end == _SPACE_WORD
    is_index = (behind & _BYTE == _COLON_WORD) & (bits != _NONE)
    is_pair = (
        is_index
        & (digit <= _DIGIT_MAX)
        & (bits <= _FIVE_BYTES)
        & (is_space | (end == _NEWLINE_WORD))
    )
    # In two steps: for no digit the shift would be by 64 bits, which is undefined.
    number = eight_digits((digits << _EIGHT) << (_SEVEN_BYTES - bits))
    k = int(bits >> _THREE)
    width = (k + 3 if is_space else k + 2) if is_pair else 0
    return int(number), (k + 1 if is_index else 0), int(digit), width


@inlined_kernel
def fraction_at(text: NDArray[np.uint8], at: int) -> tuple[float, int, bool]:
    """Read a number with one digit before its point, and 9 to 18 after it, from three words.

    This is how programs print floats. There is no branch on the number of digits, which varies and
    would be mispredicted.

    Parameters
    ----------
    at : int
        Start of the number; at least ``FRACTION_BYTES`` of text follow.

    Returns
    -------
    value : float
    end : int
    is_read : bool
        False if the number has another form. If True, an exponent may still follow at ``end``.
    """
    negative = byte_at(text, at) == _MINUS
    at += int(negative)
    head = word_at(text, at) ^ ZEROS
    first = word_at(text, at + 2) ^ ZEROS
    second = word_at(text, at + 10) ^ ZEROS
    third = word_at(text, at + 18) ^ ZEROS
    is_plain = (head & _BYTE <= _DIGIT_MAX) & ((head >> _EIGHT) & _BYTE == _POINT)
    is_plain = is_plain & (no_digits(first) == _NONE)
    # Bits of the leading digits: 64 if all eight bytes are digits.
    bits = np.uint64(trailing_zeros(no_digits(second)) & 120)
    more = np.uint64(trailing_zeros(no_digits(third)) & 120)
    more = more if bits == _WORD else _NONE
    is_plain = is_plain & (bits >= _EIGHT) & (more <= _SIXTEEN)
    if not is_plain:
        return 0.0, at, False
    k, j = bits >> _THREE, more >> _THREE
    whole = (head & _BYTE) * TEN_TO_8 + eight_digits(first)
    # In two steps: for no digit the shift would be by 64 bits, which is undefined.
    tail = (
        eight_digits((second << _EIGHT) << (_SEVEN_BYTES - bits))
        if bits < _WORD
        else eight_digits(second)
    )
    whole = whole * INT_POWERS[k] + tail
    whole = whole * INT_POWERS[j] + eight_digits((third << _EIGHT) << (_SEVEN_BYTES - more))
    end = at + 10 + int(k) + int(j)
    value, is_sure = 0.0, True
    if whole != _NONE:
        value, is_sure = scaled(whole, -8 - int(k) - int(j))
    return (-value if negative else value), end, is_sure


#: Digits of an index that are read at once; any number of so few digits is below ``INDEX_MAX``.
_INDEX_DIGITS: Final = 8

_TAB, _NEWLINE, _RETURN, _SPACE, _HASH = 9, 10, 13, 32, 35  # white space is 9 to 13 and 32
_COLON = 58
#: Bytes that the fast path accesses: an index and its value.
_COMMON_BYTES: Final = 8 + FRACTION_BYTES


@inlined_kernel
def _is_blank(c: int) -> bool:
    """Whether a byte is white space, including a newline."""
    return c == _SPACE or _TAB <= c <= _RETURN


@inlined_kernel
def _is_end(text: NDArray[np.uint8], at: int) -> bool:
    """Whether a token ends here: at white space, a comment, or the end of the text."""
    return at >= text.size or byte_at(text, at) == _HASH or _is_blank(byte_at(text, at))


@kernel
def _skip_token(text: NDArray[np.uint8], at: int) -> int:
    while not _is_end(text, at):
        at += 1
    return at


@kernel
def _feature(text: NDArray[np.uint8], at: int, base: int) -> tuple[int, int, int]:
    """Parse ``index:`` at ``at``; return the column, the start of its value, and an error or 0."""
    n = text.size
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    index, start = 0, at
    while at < n and _ZERO <= text[at] <= _NINE:
        if index <= INDEX_MAX:
            index = 10 * index + (text[at] - _ZERO)
        at += 1
    if at == start:
        return 0, at, BAD_INDEX
    if at >= n or text[at] != _COLON:
        return 0, at, NO_COLON if _is_end(text, at) else BAD_INDEX
    if negative and index > 0:
        return 0, at, NEGATIVE_INDEX
    if index < base:
        return 0, at, ZERO_INDEX
    if index - base >= INDEX_MAX:
        return 0, at, LARGE_INDEX
    return index - base, at + 1, 0


@inlined_kernel
def _line_end(text: NDArray[np.uint8], at: int) -> int:
    while at < text.size and byte_at(text, at) != _NEWLINE:
        at += 1
    return at


@inlined_kernel
def _index(text: NDArray[np.uint8], at: int, base: int) -> tuple[int, int, int]:
    """Return what :func:`_feature` returns, fast if there is no sign and at most eight digits."""
    index, end = digits_at(text, at, text.size, _NONE)
    column = int(index) - base
    is_plain = 0 < end - at <= _INDEX_DIGITS and end < text.size and byte_at(text, end) == _COLON
    return (column, end + 1, 0) if is_plain and column >= 0 else _feature(text, at, base)


@kernel
def _is_qid(text: NDArray[np.uint8], at: int) -> bool:
    """Whether the token is a query number, ``qid:...``, which is ignored."""
    if at + 4 > text.size:
        return False
    q, i, d, colon = text[at], text[at + 1], text[at + 2], text[at + 3]
    return bool(q == 113 and i == 105 and d == 100 and colon == _COLON)


@inlined_kernel
def _value(text: NDArray[np.uint8], at: int) -> tuple[float, int, int]:
    """Parse a value as :func:`number_at` does; malformed if the token continues after it."""
    n = text.size
    if at + 1 < n and _is_blank(byte_at(text, at + 1)):
        digit = byte_at(text, at) - _ZERO
        if 0 <= digit <= 9:
            return float(digit), at + 1, EXACT
    value, end, how = number_at(text, at, n)
    return value, end, how if _is_end(text, end) else MALFORMED


@kernel
def parse(text: NDArray[np.uint8], base: int, limit: int, out: Parsed) -> None:
    """Parse whole lines into rows; stop at the first error.

    Parameters
    ----------
    text : ndarray, uint8
    base : int
        Index of the first column, 0 or 1.
    limit : int
        Columns from here on are dropped and counted; -1 for no limit.
    out : Parsed, written
    """
    labels, indptr, indices, values, slow, counters = out
    n, at, row, stored, n_slow = text.size, 0, 0, 0, 0
    counters[:] = 0
    counters[LAST_COLUMN] = -1
    while at < n:
        c = byte_at(text, at)
        if _is_blank(c):
            at += 1
            continue
        if c == _HASH:
            at = _line_end(text, at)
            continue
        value, end, how = _value(text, at)
        if how == MALFORMED:
            counters[ERROR], counters[ERROR_AT] = BAD_LABEL, at
            break
        labels[row] = value
        if how == INEXACT:
            slow[n_slow, 0], slow[n_slow, 1], slow[n_slow, 2] = at, end, -1 - row
            n_slow += 1
        at, stored, n_slow = _features(
            text, end, base, limit, stored, n_slow, indices, values, slow, counters
        )
        if counters[ERROR]:
            break
        row += 1
        indptr[row] = stored
    counters[ROWS], counters[STORED], counters[SLOW] = row, stored, n_slow


@inlined_kernel
def _features(
    text: NDArray[np.uint8],
    at: int,
    base: int,
    limit: int,
    stored: int,
    n_slow: int,
    indices: NDArray[np.int32],
    values: NDArray[np.float64],
    slow: NDArray[np.int64],
    counters: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Parse the rest of a row; return its end, and the new counts ``stored`` and ``n_slow``."""
    n, previous, ascends, others = text.size, -1, True, 0
    last = counters[LAST_COLUMN]
    while at < n:
        while at + _COMMON_BYTES < n:
            column, index_width, digit, width = pair_at(text, at)
            if index_width == 0 or column < base:
                break
            value, end = float(digit), at + width
            if width == 0:
                value, end, is_read = fraction_at(text, at + index_width)
                behind = byte_at(text, end)
                if not is_read or not _is_blank(behind):
                    break
                end += 1 if behind == _SPACE else 0
            column -= base
            at = end
            ascends = ascends and column > previous
            previous = column
            if 0 <= limit <= column:
                counters[DROPPED] += 1
                continue
            last = max(last, column)
            indices[stored], values[stored] = column, value
            stored += 1 if value != 0.0 else 0
            others += 1 if value != 1.0 and value != 0.0 else 0
        c = byte_at(text, at)
        if c in (_NEWLINE, _HASH):
            break
        if _is_blank(c):
            at += 1
            continue
        column, begin, error = _index(text, at, base)
        if error and _is_qid(text, at):
            counters[QID] += 1
            at = _skip_token(text, at)
            continue
        value, end, how = _value(text, begin)
        if error or how == MALFORMED:
            counters[ERROR], counters[ERROR_AT] = error or BAD_VALUE, at
            break
        at = end
        ascends = ascends and column > previous
        previous = column
        if limit >= 0 and column >= limit:
            counters[DROPPED] += 1
            continue
        last = max(last, column)
        if how == INEXACT:
            slow[n_slow, 0], slow[n_slow, 1], slow[n_slow, 2] = begin, end, stored
            n_slow += 1
        # Always written, but kept only if nonzero: a stored zero would cost memory, and would keep
        # rows of ones from becoming binary CSR.
        indices[stored], values[stored] = column, value
        stored += 1 if value != 0.0 else 0
        others += 1 if value != 1.0 and value != 0.0 else 0
    counters[LAST_COLUMN], counters[UNSORTED] = last, counters[UNSORTED] + (0 if ascends else 1)
    counters[OTHERS] += others
    return _line_end(text, at), stored, n_slow
