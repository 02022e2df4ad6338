"""Parse a short svmlight text without compiled code, exactly as the kernels do.

The first rows of a job's data are checked before any process is started. That must not wait until
kernels are compiled, or numba is imported.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Longest text that is parsed in Python, bytes; it takes a tenth of a second.
SHORT_BYTES: Final = 2**19

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


#: Digits of an index that certainly fit.
_PLAIN_DIGITS: Final = 18
_NUMBER: Final = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
#: A number that may be too small for a float: it is stored as zero.
_NONZERO: Final = re.compile(rb"[^eE]*[1-9]")
_INDEX: Final = re.compile(rb"([+-]?)(\d+)(:?)")
_TOKEN: Final = re.compile(rb"[^\s#]+")
_INDEX_ZERO: Final = re.compile(rb"^[^#\n]*[ \t]0+:", re.M)


def has_index_zero(text: bytes) -> bool:
    """Whether any feature in whole lines, outside comments, has the index 0."""
    return _INDEX_ZERO.search(text) is not None


def parse(text: bytes, base: int, limit: int, out: Parsed) -> None:
    """Parse whole lines into rows; stop at the first error.

    Parameters and results are those of :func:`elasticml.data.readers.svmlight_kernels.parse`, but
    ``slow`` gets only the first number that is not finite.
    """
    labels, indptr, indices, values, slow, counters = out
    counters[:] = 0
    counters[LAST_COLUMN] = -1
    row, columns, numbers, at = 0, list[int](), list[float](), 0
    for line in text.split(b"\n"):
        tokens = line.partition(b"#")[0].split()
        if tokens:
            if _NUMBER.fullmatch(tokens[0]) is None:
                counters[ERROR], counters[ERROR_AT] = BAD_LABEL, _place(line, at, 0)
                break
            labels[row] = float(tokens[0])
            n_before = len(numbers)
            bad = _features(tokens, base, limit, columns, numbers, counters)
            if math.inf in (abs(labels[row]), max(map(abs, numbers[n_before:]), default=0.0)):
                _note_infinite(line, at, tokens, slow, counters)
            if bad:
                counters[ERROR_AT] = _place(line, at, bad)
                break
            row += 1
            indptr[row] = len(columns)
        at += len(line) + 1
    stored = len(columns)
    indices[:stored], values[:stored] = columns, numbers
    counters[ROWS], counters[STORED] = row, stored
    counters[OTHERS] = np.count_nonzero(values[:stored] != 1.0)


def _features(
    tokens: list[bytes],
    base: int,
    limit: int,
    columns: list[int],
    numbers: list[float],
    counters: NDArray[np.int64],
) -> int:
    """Append the features of a row; return the number of the first invalid token, or 0."""
    previous, ascends, last = -1, True, int(counters[LAST_COLUMN])
    for k in range(1, len(tokens)):
        index, _, number = tokens[k].partition(b":")
        if tokens[k].startswith(b"qid:"):
            counters[QID] += 1
            continue
        is_plain = len(index) <= _PLAIN_DIGITS and index.isdigit()
        column = int(index) - base if is_plain else _column(tokens[k], base)
        if not 0 <= column < INDEX_MAX or _NUMBER.fullmatch(number) is None:
            counters[ERROR] = _index_error(tokens[k], base) or BAD_VALUE
            return k
        ascends = ascends and column > previous
        previous = column
        if 0 <= limit <= column:
            counters[DROPPED] += 1
            continue
        last = max(last, column)
        value = float(number)
        if value != 0.0 or _NONZERO.match(number) is not None:
            columns.append(column)
            numbers.append(value)
    counters[LAST_COLUMN] = last
    counters[UNSORTED] += not ascends
    return 0


def _column(token: bytes, base: int) -> int:
    """Return the column of a token whose index has a sign; -1 if it is invalid."""
    match = _INDEX.match(token)
    return -1 if match is None or not match[3] else _whole(match) - base


def _index_error(token: bytes, base: int) -> int:
    """Return what is wrong with the index of a token, or 0."""
    match = _INDEX.match(token)
    if match is None:
        return BAD_INDEX
    if not match[3]:
        return NO_COLON if match.end() == len(token) else BAD_INDEX
    index = _whole(match)
    if index < 0:
        return NEGATIVE_INDEX
    if index < base:
        return ZERO_INDEX
    return LARGE_INDEX if index - base >= INDEX_MAX else 0


def _whole(match: re.Match[bytes]) -> int:
    """Return a matched index; one with many digits is only as large as it must be to be refused."""
    return int(match[1] + b"0" + match[2].lstrip(b"0")[:_PLAIN_DIGITS])


def _note_infinite(
    line: bytes,
    at: int,
    tokens: list[bytes],
    slow: NDArray[np.int64],
    counters: NDArray[np.int64],
) -> None:
    """Note where the first number of a row is that is not finite, if none was noted before."""
    if counters[SLOW]:
        return
    for k, token in enumerate(tokens):
        number = token.rpartition(b":")[2]
        if _NUMBER.fullmatch(number) is not None and math.isinf(float(number)):
            end = _place(line, at, k) + len(token)
            slow[0], counters[SLOW] = (end - len(number), end, -1), 1
            return


def _place(line: bytes, at: int, k: int) -> int:
    """Return the offset of token k of the line at offset ``at``."""
    return at + [match.start() for match in _TOKEN.finditer(line)][k]


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
