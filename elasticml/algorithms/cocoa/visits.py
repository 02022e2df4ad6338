"""The kernels of the local pass: the order of visits, squared norms, and the visits themselves.

Rows are visited in buckets of consecutive rows of one chunk; a visit is one number, the chunk in
its upper and the first row in its lower 32 bits. While a bucket is worked on, the next one's rows
are asked for from memory, and the row pointers and dual variables of the one after it, so that a
random order costs no more than one from front to back.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import carray
from numpy.typing import NDArray

from elasticml.algorithms.cocoa import rows
from elasticml.algorithms.cocoa.raw_memory import pointer, prefetch
from elasticml.algorithms.cocoa.rows import Vector
from elasticml.data.kernels import kernel
from elasticml.objectives.dual_kernels import minus_conjugate_of, stepped

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Sums that a visit adds to: change of the dual, curvature, rows visited, stored values visited.
N_SUMS: Final = 4

_I4: Final = np.empty(0, np.int32)
_F8: Final = np.empty(0, np.float64)
_U1: Final = np.empty(0, np.uint8)
_LINE: Final = 64
#: Lines asked for ahead of one row; the processor sees by itself where longer rows go on.
_LINES_MAX: Final = 16
#: Bits of a ``calm`` byte that count the visits left out; the others count visits without change.
_REST: Final = 31
_CALM_MAX: Final = 5


@kernel
def shuffle(visits: I64, seed: int) -> None:
    """Put the visits into a random order that depends on the seed alone (splitmix64)."""
    state = np.uint64(seed)
    for i in range(visits.size - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = state
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        # The upper 32 bits, scaled to 0..i: fair within 2**-32 * i.
        j = np.int64(((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        visits[i], visits[j] = visits[j], visits[i]


@kernel
def weight_of_visits(visits: I64, bucket: int, table: I64) -> float:
    """Sum of the weights of the rows that the visits cover."""
    total = 0.0
    for k in range(visits.size):
        t = table[visits[k] >> 32]
        first = visits[k] & 0xFFFFFFFF
        stop = min(first + bucket, t[1])
        if t[7] == 0:
            total += stop - first
        else:
            weights = carray(pointer(t[7], _F8), (t[1],), np.float64)
            for i in range(first, stop):
                total += weights[i]
    return total


@kernel
def write_norms(t: I64, grams: I64, like: Vector) -> None:
    """Write the squared norms of the rows of the chunk with addresses ``t``."""
    norms = carray(pointer(t[9], like), (t[1],), like.dtype)
    kind, width = t[0], t[2]
    places = 0
    for g in range(grams.shape[0]):
        places += grams[g, 3]
    indptr = carray(pointer(t[3], _I4), (t[1] + 1,), np.int32)
    for i in range(t[1]):
        if kind == 3:
            norms[i] = places
        elif kind == 2:
            norms[i] = indptr[i + 1] - indptr[i]
        else:
            begin, end = (i * width, (i + 1) * width) if kind == 0 else (indptr[i], indptr[i + 1])
            x = carray(pointer(t[5] + begin * like.itemsize, like), (end - begin,), like.dtype)
            total = 0.0
            for j in range(end - begin):
                total += float(x[j]) * float(x[j])
            norms[i] = total


@kernel
def _ask_for_row(t: Any, i: int, itemsize: int) -> None:
    kind = t[0]
    if kind == 0 or kind == 3:
        nbytes = t[2] * itemsize if kind == 0 else t[2]
        start = t[5] + i * nbytes
        for n in range(min(nbytes // _LINE + 1, _LINES_MAX)):
            prefetch(start + n * _LINE)
        return
    indptr = carray(pointer(t[3], _I4), (t[1] + 1,), np.int32)
    begin, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
    for n in range(min((end - begin) * 4 // _LINE + 1, _LINES_MAX)):
        prefetch(t[4] + begin * 4 + n * _LINE)
    if kind == 1:
        for n in range(min((end - begin) * itemsize // _LINE + 1, _LINES_MAX)):
            prefetch(t[5] + begin * itemsize + n * _LINE)


@kernel
def _ask_for_facts(t: I64, first: int, itemsize: int) -> None:
    prefetch(t[6] + first * 8)
    prefetch(t[8] + first * 8)
    prefetch(t[9] + first * itemsize)
    prefetch(t[10] + first)
    if t[0] == 1 or t[0] == 2:
        prefetch(t[3] + first * 4)
    if t[7] != 0:
        prefetch(t[7] + first * 8)


@kernel
def visit(
    visits: I64,
    begin: int,
    end: int,
    bucket: int,
    table: I64,
    grams: I64,
    like: Vector,
    code: int,
    scale: float,
    sigma: float,
    intercept: float,
    shrink: bool,
    quadratic: float,
    r: Vector,
    sums: F64,
) -> None:
    """Maximise the local dual problem over one row after another.

    Parameters
    ----------
    visits : ndarray (n,), int64
        Those from ``begin`` to ``end`` are made.
    table : ndarray (chunks, N_FIELDS), int64
    grams : ndarray (any, 4), int64
    like : ndarray (0,)
        Of the type of the chunks' values.
    code : int
        The loss.
    scale : float
        ``1 / (l2 S)``.
    sigma : float
        How much more a step counts in ``r`` than in the model, at least 1.
    intercept : float
        Value of the constant column that the last coordinate of ``r`` belongs to; 0 for none.
    quadratic : float
        ``-minus''`` where it is a constant, else 0.
    r : ndarray (D,)
        ``v + sigma u``, where u is the change of the model so far.
    sums : ndarray (N_SUMS,)
        Added to.
    """
    itemsize = like.itemsize
    last = r.size - 1
    dual, curvature, visited, stored = 0.0, 0.0, 0, 0
    for k in range(begin, end):
        t = table[visits[k] >> 32]
        first = visits[k] & 0xFFFFFFFF
        # What the next bucket's row pointers tell was asked for one bucket ago.
        t1 = table[visits[min(k + 1, end - 1)] >> 32]
        first1 = visits[min(k + 1, end - 1)] & 0xFFFFFFFF
        stop1 = min(first1 + bucket, t1[1]) if k + 1 < end else 0
        if k + 2 < end:
            _ask_for_facts(table[visits[k + 2] >> 32], visits[k + 2] & 0xFFFFFFFF, itemsize)
        calm1 = carray(pointer(t1[10], _U1), (t1[1],), np.uint8)
        targets = carray(pointer(t[6], _F8), (t[1],), np.float64)
        weights = carray(pointer(t[7], _F8), (t[1],), np.float64)
        alpha = carray(pointer(t[8], _F8), (t[1],), np.float64)
        norms = carray(pointer(t[9], like), (t[1],), like.dtype)
        calm = carray(pointer(t[10], _U1), (t[1],), np.uint8)
        for i in range(first, min(first + bucket, t[1])):
            ahead = first1 + (i - first)
            if ahead < stop1 and (calm1[ahead] & _REST) == 0:
                _ask_for_row(t1, ahead, itemsize)
            if (calm[i] & _REST) != 0:
                calm[i] -= np.uint8(1)
                continue
            at_indices, at_values, count = _row(t, i, itemsize)
            z = float(rows.dot(t[0], at_indices, at_values, count, grams, like, r))
            z += intercept * float(r[last])
            y, s, old = targets[i], weights[i] if t[7] != 0 else 1.0, alpha[i]
            fold = y if code != 1 else 1.0
            q = sigma * s * scale * (float(norms[i]) + intercept * intercept)
            new = stepped(code, old, fold * z, y, q) if s > 0.0 else old
            visited += 1
            stored += count
            if new == old:
                calm[i] = _calmer(calm[i]) if shrink else np.uint8(0)
                continue
            calm[i] = 0
            alpha[i] = new
            dual += s * (minus_conjugate_of(code, new, y) - minus_conjugate_of(code, old, y))
            curvature += 0.5 * quadratic * s * (new - old) * (new - old)
            c = r.dtype.type(sigma * scale * s * fold * (new - old))
            rows.add(t[0], at_indices, at_values, count, grams, like, c, r)
            r[last] += r.dtype.type(intercept) * c
    sums[0] += dual
    sums[1] += curvature
    sums[2] += visited
    sums[3] += stored


@kernel
def _row(t: I64, i: int, itemsize: int) -> Any:
    """Return where row ``i``'s indices and values begin, and how many there are."""
    kind, width = t[0], t[2]
    if kind == 1 or kind == 2:
        indptr = carray(pointer(t[3], _I4), (t[1] + 1,), np.int32)
        begin = np.int64(indptr[i])
        return t[4] + begin * 4, t[5] + begin * itemsize, np.int64(indptr[i + 1]) - begin
    return 0, t[5] + i * width * (itemsize if kind == 0 else 1), width


@kernel
def _calmer(calm: Any) -> Any:
    """Note one more visit without change: from the second on, the row rests 2, 4, 8, 16 epochs.

    Rests are finite, so that what a pass converges to does not change.
    """
    count = min((calm >> 5) + 1, _CALM_MAX)
    rest = 0 if count < 2 else 1 << (count - 1)
    return np.uint8((count << 5) | rest)
