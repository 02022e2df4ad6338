"""Parse svmlight text from bytes: one pass, no GIL, exact numbers or a note to look again.

A decimal whose digits fit 2**53 and whose power of ten is at most 22 is the correctly rounded
quotient or product of two exact doubles (Clinger, "How to read floating point numbers accurately",
1990). With up to 19 digits it is worked out in twice the precision and taken where its rounding is
beyond doubt (Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded
last bit", 1991). Every other number is left to Python's ``float``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.kernels import kernel

BAD_LABEL: Final = 1
BAD_INDEX: Final = 2
NEGATIVE_INDEX: Final = 3
ZERO_INDEX: Final = 4
LARGE_INDEX: Final = 5
NO_COLON: Final = 6
BAD_VALUE: Final = 7

#: Places in ``counters``: sizes used, the largest column, what was dropped, and the error.
ROWS, STORED, SLOW, LAST_COLUMN, DROPPED, QID, UNSORTED, ERROR, ERROR_AT = range(9)
N_COUNTERS: Final = 9

_INDEX_MAX: Final = 2**31 - 1
_MANTISSA_MAX: Final = 2**53
#: Ten times this and a digit more still fit 63 bits.
_DIGITS_MAX: Final = 9 * 10**17
#: Relative error of the correction in twice the precision is below 2**-50.
_DOUBT: Final = 2.0**-49
_SPLIT: Final = 2.0**27 + 1.0
_POWER_MAX: Final = 22
_POWERS: Final = 10.0 ** np.arange(_POWER_MAX + 1)

_TAB, _NEWLINE, _RETURN, _SPACE, _HASH = 9, 10, 13, 32, 35  # white space is 9 to 13 and 32
_PLUS, _MINUS, _DOT, _ZERO, _NINE, _COLON = 43, 45, 46, 48, 57, 58
_BIG_E, _SMALL_E = 69, 101
_EXACT, _INEXACT, _MALFORMED = 0, 1, 2


@kernel
def _is_blank(c: int) -> bool:
    """Whether a byte is white space, a newline among it."""
    return c == _SPACE or _TAB <= c <= _RETURN


@kernel
def _is_end(text: NDArray[np.uint8], at: int) -> bool:
    """Whether a token ends here: a blank, a comment, or the end of the text."""
    return at >= text.size or text[at] == _HASH or _is_blank(text[at])


@kernel
def _product_error(a: float, b: float) -> float:
    """Return exactly what rounding ``a * b`` lost.

    Source: Dekker, "A floating-point technique for extending the available precision", 1971.
    """
    a_high = _SPLIT * a - (_SPLIT * a - a)
    b_high = _SPLIT * b - (_SPLIT * b - b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - a * b) + a_high * b_low + a_low * b_high) + a_low * b_low


@kernel
def _scaled(mantissa: int, power: int) -> tuple[float, bool]:
    """Return ``mantissa * 10**power`` and whether its rounding is beyond doubt; up to 63 bits."""
    high = float(mantissa)
    low = float(mantissa - int(high))
    scale = _POWERS[abs(power)]
    if power >= 0:
        value = high * scale
        correction = _product_error(high, scale) + low * scale
    else:
        value = high / scale
        rest = (high - value * scale) - _product_error(value, scale)
        correction = (rest + low) / scale
    doubt = abs(correction) * _DOUBT
    rounded = value + correction
    is_sure = value + (correction - doubt) == rounded and value + (correction + doubt) == rounded
    return rounded, is_sure


@kernel
def _number(text: NDArray[np.uint8], at: int) -> tuple[float, int, int]:
    """Read a decimal at ``at``: its value, where it ends, and whether the value is exact."""
    n = text.size
    negative = False
    if at < n and (text[at] == _MINUS or text[at] == _PLUS):
        negative = text[at] == _MINUS
        at += 1
    mantissa, power, digits, exact = 0, 0, 0, True
    seen_dot = False
    while at < n:
        c = text[at]
        if c == _DOT and not seen_dot:
            seen_dot = True
        elif _ZERO <= c <= _NINE:
            digits += 1
            if mantissa <= _DIGITS_MAX:
                mantissa = 10 * mantissa + (c - _ZERO)
                power -= 1 if seen_dot else 0
            else:
                exact = False
        else:
            break
        at += 1
    if digits == 0:
        return 0.0, at, _MALFORMED
    if at < n and (text[at] == _SMALL_E or text[at] == _BIG_E):
        at += 1
        sign = 1
        if at < n and (text[at] == _MINUS or text[at] == _PLUS):
            sign = -1 if text[at] == _MINUS else 1
            at += 1
        exponent, start = 0, at
        while at < n and _ZERO <= text[at] <= _NINE:
            if exponent < 100_000:
                exponent = 10 * exponent + (text[at] - _ZERO)
            at += 1
        if at == start:
            return 0.0, at, _MALFORMED
        power += sign * exponent
    if mantissa == 0:
        return 0.0, at, _EXACT
    if not exact or power > _POWER_MAX or power < -_POWER_MAX:
        return 1.0, at, _INEXACT
    if mantissa <= _MANTISSA_MAX:
        value = float(mantissa)
        value = value * _POWERS[power] if power >= 0 else value / _POWERS[-power]
    else:
        value, exact = _scaled(mantissa, power)
        if not exact:
            return 1.0, at, _INEXACT
    return (-value if negative else value), at, _EXACT


@kernel
def _skip_token(text: NDArray[np.uint8], at: int) -> int:
    while not _is_end(text, at):
        at += 1
    return at


@kernel
def _feature(text: NDArray[np.uint8], at: int, base: int) -> tuple[int, int, int]:
    """Read ``index:`` at ``at``: the column, where its value starts, and an error or 0."""
    n = text.size
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    index, start = 0, at
    while at < n and _ZERO <= text[at] <= _NINE:
        if index <= _INDEX_MAX:
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
    if index - base >= _INDEX_MAX:
        return 0, at, LARGE_INDEX
    return index - base, at + 1, 0


@kernel
def _is_qid(text: NDArray[np.uint8], at: int) -> bool:
    """Whether "qid:", a query number that we do not use, stands here."""
    if at + 4 > text.size:
        return False
    q, i, d, colon = text[at], text[at + 1], text[at + 2], text[at + 3]
    return bool(q == 113 and i == 105 and d == 100 and colon == _COLON)


@kernel
def parse(
    text: NDArray[np.uint8],
    base: int,
    limit: int,
    labels: NDArray[np.float64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    values: NDArray[np.float64],
    slow: NDArray[np.int64],
    counters: NDArray[np.int64],
) -> None:
    """Parse whole lines into rows; stop at the first error.

    Parameters
    ----------
    text : ndarray, uint8
    base : int
        Number of the first column, 0 or 1.
    limit : int
        Columns from here on are dropped and counted; -1 for no limit.
    labels, indptr, indices, values : ndarray, written
        Long enough for one row a line and one value a colon. Explicit zeros are not stored.
    slow : ndarray (labels + colons, 3), written
        Numbers left to Python: where the token starts and ends, and where the number goes: its
        place in ``values``, or ``-1 - row`` for a label.
    counters : ndarray (N_COUNTERS,), written
        See the names at the top; ``ERROR_AT`` is the start of the wrong token.
    """
    n, at, row, stored, n_slow = text.size, 0, 0, 0, 0
    counters[:] = 0
    counters[LAST_COLUMN] = -1
    while at < n:
        c = text[at]
        if _is_blank(c):
            at += 1
            continue
        if c == _HASH:
            while at < n and text[at] != _NEWLINE:
                at += 1
            continue
        value, end, how = _number(text, at)
        if how == _MALFORMED or not _is_end(text, end):
            counters[ERROR], counters[ERROR_AT] = BAD_LABEL, at
            break
        labels[row] = value
        if how == _INEXACT:
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


@kernel
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
    """Parse the rest of a row; returns where it ends, and the new numbers stored and left."""
    n, previous, ascends = text.size, -1, True
    while at < n and text[at] != _NEWLINE and text[at] != _HASH:
        if _is_end(text, at):
            at += 1
            continue
        if _is_qid(text, at):
            counters[QID] += 1
            at = _skip_token(text, at)
            continue
        column, value_at, error = _feature(text, at, base)
        if error:
            counters[ERROR], counters[ERROR_AT] = error, at
            return at, stored, n_slow
        value, end, how = _number(text, value_at)
        if how == _MALFORMED or not _is_end(text, end):
            counters[ERROR], counters[ERROR_AT] = BAD_VALUE, at
            return at, stored, n_slow
        at = end
        ascends = ascends and column > previous
        previous = column
        if limit >= 0 and column >= limit:
            counters[DROPPED] += 1
            continue
        counters[LAST_COLUMN] = max(counters[LAST_COLUMN], column)
        # A stored zero would only cost memory, and keep rows of ones from being binary.
        if how == _INEXACT:
            slow[n_slow, 0], slow[n_slow, 1], slow[n_slow, 2] = value_at, end, stored
            n_slow += 1
        elif value == 0.0:
            continue
        indices[stored], values[stored] = column, value
        stored += 1
    if not ascends:
        counters[UNSORTED] += 1
    while at < n and text[at] != _NEWLINE:
        at += 1
    return at, stored, n_slow


@kernel
def sort_rows(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float64]
) -> int:
    """Sort every row by column, in place; returns the first row with a repeated column, or -1."""
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
    """View text as the array that the kernels take; nothing is copied."""
    array: NDArray[Any] = np.frombuffer(text, np.uint8)
    return array
