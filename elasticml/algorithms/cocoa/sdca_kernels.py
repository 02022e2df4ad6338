"""The SDCA kernels of the local pass: the order of visits, squared norms, and the visits.

Rows are visited in buckets of consecutive rows of one chunk. A visit is one number, the chunk in
its upper and the first row in its lower 32 bits. During a bucket the next one's rows are
prefetched, and the row pointers and dual variables of the one after it, so that a random order
costs no more than a sequential one.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from elasticml.algorithms.cocoa import row_kernels
from elasticml.algorithms.cocoa.chunk_pointers import ChunkRows
from elasticml.algorithms.cocoa.row_kernels import Reals, pointer, prefetch, row_of
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import unchecked_kernel

#: Sums that a visit adds to: change of the dual, curvature, visited rows, the rows' contributions
#: to the duality gap as they are visited, and the weight seen.
N_SUMS: Final = 5

_I4: Final = np.empty(0, np.int32)
_F8: Final = np.empty(0, np.float64)
_U1: Final = np.empty(0, np.uint8)
_LINE: Final = 64
#: Maximum epochs for which a row is skipped: finite, so that the limit does not change.
_SKIP_MAX: Final = 64.0


class LocalDual(NamedTuple):
    """The local dual problem, and how its rows shrink."""

    #: The loss's record, see :mod:`elasticml.objectives.losses`.
    loss: Any
    l2_total: float
    #: Value of the constant column that the model's last coordinate belongs to; 0 for none.
    intercept: float
    #: Epochs to skip a row per unit of ``slack / |x|``, see :func:`_epochs_to_skip`; 0 for none.
    reach: float


@unchecked_kernel
def shuffle(visits: I32 | I64, seed: int) -> None:
    """Shuffle the visits; the order depends on the seed alone.

    Source: Snap ML, section 3, "Streaming Permutation Generation"; Marsaglia, Xorshift RNGs, 2003:
    64 bits, shifts 13, 7 and 17.
    """
    state = np.uint64(seed) | np.uint64(1)
    for i in range(visits.size - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        # The upper 32 bits, scaled to 0..i: fair within 2**-32 * i.
        j = np.int64(((state >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        visits[i], visits[j] = visits[j], visits[i]


@unchecked_kernel
def write_norms(t: I64, grams: I64, like: Reals) -> None:
    """Write the squared norms of the rows of the chunk with addresses ``t``."""
    norms = pointer(t[9], like)
    kind, width = t[0], t[2]
    places = 0
    for g in range(grams.shape[0]):
        places += grams[g, 2]
    indptr = pointer(t[3], _I4)
    for i in range(t[1]):
        if kind == 3:
            norms[i] = places
        elif kind == 2:
            norms[i] = indptr[i + 1] - indptr[i]
        else:
            begin, end = (i * width, (i + 1) * width) if kind == 0 else (indptr[i], indptr[i + 1])
            x = pointer(t[5] + begin * like.itemsize, like)
            total = 0.0
            for j in range(end - begin):
                total += float(x[j]) * float(x[j])
            norms[i] = total


@unchecked_kernel
def _prefetch_row_data(table: I64, visit: int, itemsize: int) -> None:
    """Prefetch the targets, dual variables, norms, skip counts and pointers of a bucket's rows."""
    t, first = row_of(table, visit >> 32), visit & 0xFFFFFFFF
    prefetch(t[6] + first * 8)
    prefetch(t[8] + first * 8)
    prefetch(t[9] + first * itemsize)
    prefetch(t[10] + first)
    if t[0] == 1 or t[0] == 2:
        prefetch(t[3] + first * 4)
    if t[7] != 0:
        prefetch(t[7] + first * 8)


@unchecked_kernel
def _extent(table: I64, visit: int, bucket: int, itemsize: int) -> Any:
    """Return the extent of the rows of a bucket that are not shrunk.

    Returns
    -------
    tuple of int
        Address and bytes of the indices, address and bytes of the values; bytes are 0 if there are
        none.
    """
    t, first = row_of(table, visit >> 32), visit & 0xFFFFFFFF
    kind, n_rows = t[0], t[1]
    stop = min(first + bucket, n_rows)
    skips = pointer(t[10], _U1)
    while first < stop and skips[first] != 0:
        first += 1
    while stop > first and skips[stop - 1] != 0:
        stop -= 1
    if kind == 1 or kind == 2:
        indptr = pointer(t[3], _I4)
        begin = np.int64(indptr[first])
        count = np.int64(indptr[stop]) - begin
        at_values, value_bytes = t[5] + begin * itemsize, count * itemsize
        return t[4] + begin * 4, count * 4, at_values, value_bytes if kind == 1 else 0
    row_bytes = t[2] * (itemsize if kind == 0 else 1)
    return 0, 0, t[5] + first * row_bytes, (stop - first) * row_bytes


@unchecked_kernel
def visit(
    visits: I64,
    rows: ChunkRows,
    dual: LocalDual,
    unit: float,
    share: float,
    r: Reals,
    sums: F64,
) -> None:
    """Maximise the local dual problem over one row after another.

    Parameters
    ----------
    visits : ndarray (n,), int64
    rows : ChunkRows
    dual : LocalDual
    unit : float
        ``sigma' / (l2 S)``: the growth of a row's multiple in ``r`` per unit of its dual variable.
    share : float
        In the very first pass, from zero, the weight of all rows of these visits; else 0. ``r`` is
        then scaled as if the rows seen so far were all there are: a model that is still small does
        not push the first rows to the ends of their intervals.
    r : ndarray (D,)
        ``v + sigma' u``, where u is the change of the model so far.
    sums : ndarray (N_SUMS,)
        Added to.
    """
    table, grams, like, bucket = rows
    loss, _, intercept, reach = dual
    itemsize, last, end = like.itemsize, r.size - 1, visits.size
    rise, curvature, visited, gap, seen = 0.0, 0.0, 0, 0.0, sums[4]
    for k in range(end):
        t, first = row_of(table, visits[k] >> 32), visits[k] & 0xFFFFFFFF
        kind, n_rows, width = t[0], t[1], t[2]
        at_indptr, at_indices, at_values = t[3], t[4], t[5]
        stop, is_weighted = min(first + bucket, n_rows), t[7] != 0
        if k + 2 < end:
            _prefetch_row_data(table, visits[k + 2], itemsize)
        ahead = _extent(table, visits[k + 1], bucket, itemsize) if k + 1 < end else (0, 0, 0, 0)
        # Prefetch the next bucket's lines in equal shares, one with each row of this one.
        near, far, lines = ahead[0], ahead[2], _lines(max(ahead[1], ahead[3]), stop - first)
        near_step = ahead[1] // max(1, lines * (stop - first))
        far_step = ahead[3] // max(1, lines * (stop - first))
        targets = pointer(t[6], _F8)
        weights = pointer(t[7], _F8)
        alpha = pointer(t[8], _F8)
        norms = pointer(t[9], like)
        skips, offsets = pointer(t[10], _U1), pointer(t[11], _F8)
        for i in range(first, stop):
            for _ in range(lines):
                prefetch(near)
                prefetch(far)
                near, far = near + near_step, far + far_step
            if skips[i] != 0:
                skips[i] -= np.uint8(1)
                continue
            at, count, values_at = row_kernels.locate(
                kind, i, width, at_indptr, at_indices, at_values, itemsize
            )
            z = float(row_kernels.dot(kind, at, values_at, count, grams, like, r))
            y, s, old = targets[i], weights[i] if is_weighted else 1.0, alpha[i]
            fold = loss.fold(y)
            seen += s
            swell = max(1.0, share / seen) if share > 0.0 and seen > 0.0 else 1.0
            shift = fold * offsets[i] if t[11] != 0 else 0.0
            z = swell * fold * (z + intercept * float(r[last])) + shift
            norm = float(norms[i]) + intercept * intercept
            new = loss.step(old, z, y, swell * unit * s * norm) if s > 0.0 else old
            visited += 1
            gap += s * loss.gap(old, z, y)
            if new == old:
                if reach > 0.0:
                    skips[i] = _epochs_to_skip(loss.slack(old, z), reach, norm)
                continue
            alpha[i] = new
            rise += s * (loss.minus(new, y) - loss.minus(old, y) - shift * (new - old))
            curvature += 0.5 * loss.minus_curvature(old, new) * s * (new - old) * (new - old)
            change = r.dtype.type(unit * s * fold * (new - old))
            row_kernels.add(kind, at, values_at, count, grams, like, change, r)
            r[last] += r.dtype.type(intercept) * change
    sums[0] += rise
    sums[1] += curvature
    sums[2] += visited
    sums[3] += gap
    sums[4] = seen


@unchecked_kernel
def _lines(nbytes: int, n_rows: int) -> Any:
    """Return the lines to prefetch with each row."""
    return (nbytes // _LINE + n_rows) // n_rows if nbytes > 0 else 0


@unchecked_kernel
def _epochs_to_skip(slack: float, reach: float, norm: float) -> Any:
    """Return the epochs for which to skip a row whose dual variable stayed at a bound.

    The margin must change by ``slack`` before the dual variable can leave its bound. While the
    model moves as far per epoch as it did in the last one, the margin changes by at most ``|x|``
    times that, and usually by much less.
    """
    if slack <= 0.0:
        return np.uint8(0)
    return np.uint8(min(slack * reach / math.sqrt(norm + 1e-300), _SKIP_MAX))
