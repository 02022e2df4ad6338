"""Parse svmlight text from bytes: one pass, without the GIL; numbers are exact or marked.

The most frequent tokens, ``index:value`` with an index of at most seven digits, are read from one
word or three without a loop over their bytes (``pair_at``, ``fraction_at``). Slower functions
handle all others. Numbers are parsed by :mod:`elasticml.data.readers.decimals`; Python's ``float``
parses the few that it leaves undecided.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticml.compiled import inlined_kernel, kernel
from elasticml.data.readers.decimals import (
    EXACT,
    INEXACT,
    INT_POWERS,
    MALFORMED,
    TEN_TO_8,
    ZEROS,
    byte_at,
    digits_at,
    eight_digits,
    no_digits,
    number_at,
    scaled,
    trailing_zeros,
    word_at,
)

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

_MINUS = 45
_SPACE_WORD: Final = np.uint64(32)
_NEWLINE_WORD: Final = np.uint64(10)
_COLON_WORD: Final = np.uint64(58)
#: A decimal point and a nine in ``word ^ ZEROS``.
_POINT: Final = np.uint64(46 ^ 48)
_DIGIT_MAX: Final = np.uint64(9)
_BYTE: Final = np.uint64(0xFF)

_NONE: Final = np.uint64(0)
_THREE: Final = np.uint64(3)
_EIGHT: Final = np.uint64(8)
_SIXTEEN: Final = np.uint64(16)
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
_PLUS, _ZERO, _NINE, _COLON = 43, 48, 57, 58
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


@kernel
def count_lines_and_colons(text: NDArray[np.uint8]) -> tuple[int, int]:
    """Count newlines and colons, which bound the numbers of rows and values in a text."""
    lines, colons = 0, 0
    for at in range(text.size):
        c = text[at]
        lines += 1 if c == _NEWLINE else 0
        colons += 1 if c == _COLON else 0
    return lines, colons


@kernel
def has_index_zero(text: NDArray[np.uint8]) -> bool:
    """Whether any feature in whole lines, outside comments, has the index 0."""
    n, at = text.size, 0
    while at < n:
        c = byte_at(text, at)
        if c == _HASH:
            while at < n and byte_at(text, at) != _NEWLINE:
                at += 1
        elif c in (_SPACE, _TAB):
            at += 1
            start = at
            while at < n and byte_at(text, at) == _ZERO:
                at += 1
            if at > start and at < n and byte_at(text, at) == _COLON:
                return True
        else:
            at += 1
    return False


@kernel
def sort_rows(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float64]
) -> int:
    """Sort every row by column, in place; return the first row with a repeated column, or -1."""
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        ascends = True
        for k in range(start + 1, stop):
            ascends = ascends and indices[k] > indices[k - 1]
        if ascends:
            continue
        order = np.argsort(indices[start:stop], kind="mergesort")
        indices[start:stop] = indices[start:stop][order]
        values[start:stop] = values[start:stop][order]
        for k in range(start + 1, stop):
            if indices[k] == indices[k - 1]:
                return row
    return -1


def as_bytes(text: bytes) -> NDArray[np.uint8]:
    """Return text as an array for the kernels; nothing is copied."""
    array: NDArray[Any] = np.frombuffer(text, np.uint8)
    return array
