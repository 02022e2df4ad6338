"""Compiled, single-threaded kernels for products with a chunk and with its transpose.

Every kernel releases the GIL and sums in float64 in an order that depends only on the chunk: the
same chunk gives the same bits on any member, whatever else runs. Only :func:`dense_forward`
and :func:`dense_product` let the compiler reassociate one row's sum (for SIMD); their bits are the
same on one class of CPU, as reproducible runs require. A 1 MiB chunk takes well under 1 ms.

Arrays are indexed by unsigned integers, which avoids a test for negative indices and saves a third
of a sparse row's time. Indices are checked to be in ``[0, n_columns)`` once, when the chunk is
built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from elasticml.arrays import F64, I64
from elasticml.compiled import inlined_kernel, kernel, matrix_at, regrouping_kernel, vector_at

# The processor's prefetch instruction, for compiled loops.


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Prefetch ``array[index]`` into the first-level cache; an index beyond the end is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(builder.gep(view.data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Arguments: read access, highest locality, data cache.
        builder.call(hint, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


#: Type of indices into a chunk's arrays. Do not add signed integers: the result would be a float.
_Place = np.uint64
_1, _2, _3, _4, _5, _6, _7, _8 = (_Place(k) for k in range(1, 9))
#: Prefetch distance in stored values: a chunk's rows are contiguous, but the lookups in between
#: defeat the hardware prefetcher.
_AHEAD = _Place(384)

#: float64 or float32 values of a chunk.
Values = NDArray[np.float64] | NDArray[np.float32]
#: Values of sparse rows; None if all are one. A kernel is compiled for either.
Stored = Values | None
#: int64 or int32 row pointers.
Pointers = NDArray[np.int64] | NDArray[np.int32]

#: Sequence rows are processed in tiles of this many, so that a tile's codes stay in the L2 cache
#: while eight of its columns at a time pass through the L1 cache.
_TILE_ROWS = 2048


@regrouping_kernel
def dense_forward(values: Values, w: F64, out: F64) -> None:
    """Write ``values @ w[:k]`` into ``out``; values (n, k), w (d,) with d >= k, out (n,)."""
    n, k = values.shape
    for i in range(n):
        total = 0.0
        for j in range(k):
            total += values[i, j] * w[j]
        out[i] = total


@kernel
def dense_adjoint(values: Values, coefficients: F64, out: F64) -> None:
    """Add ``values.T @ coefficients`` to ``out[:k]``; values (n, k), coefficients (n,)."""
    n, k = values.shape
    for i in range(n):
        c = coefficients[i]
        if c != 0.0:
            for j in range(k):
                out[j] += c * values[i, j]


@inlined_kernel
def _times(values: Stored, j: Any, x: float) -> Any:
    """Return a stored value times ``x``; a value that is not stored is one."""
    if values is None:
        return x
    return values[j] * x


@inlined_kernel
def _prefetch_stored(values: Stored, indices: NDArray[np.int32], j: Any) -> None:
    if values is not None:
        prefetch(values, j + _AHEAD)
    prefetch(indices, j + _AHEAD)


@inlined_kernel
def csr_dot(
    indices: NDArray[np.int32], values: Stored, w: F64, begin: _Place, end: _Place
) -> float:
    """Return the dot product of a row and ``w``; four partial sums hide the additions' latency."""
    body = begin + (end - begin) // _8 * _8
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for j in range(begin, body, _8):
        _prefetch_stored(values, indices, j)
        s0 += _times(values, j, w[np.uint32(indices[j])])
        s1 += _times(values, j + _1, w[np.uint32(indices[j + _1])])
        s2 += _times(values, j + _2, w[np.uint32(indices[j + _2])])
        s3 += _times(values, j + _3, w[np.uint32(indices[j + _3])])
        s0 += _times(values, j + _4, w[np.uint32(indices[j + _4])])
        s1 += _times(values, j + _5, w[np.uint32(indices[j + _5])])
        s2 += _times(values, j + _6, w[np.uint32(indices[j + _6])])
        s3 += _times(values, j + _7, w[np.uint32(indices[j + _7])])
    if end - body >= _4:
        s0 += _times(values, body, w[np.uint32(indices[body])])
        s1 += _times(values, body + _1, w[np.uint32(indices[body + _1])])
        s2 += _times(values, body + _2, w[np.uint32(indices[body + _2])])
        s3 += _times(values, body + _3, w[np.uint32(indices[body + _3])])
        body += _4
    for j in range(body, end):
        s0 += _times(values, j, w[np.uint32(indices[j])])
    return (s0 + s1) + (s2 + s3)


@kernel
def csr_forward(
    indptr: Pointers, indices: NDArray[np.int32], values: Stored, w: F64, out: F64
) -> None:
    """Write ``X @ w`` into ``out``."""
    for i in range(out.size):
        out[i] = csr_dot(indices, values, w, _Place(indptr[i]), _Place(indptr[i + 1]))


@inlined_kernel
def csr_add(
    indices: NDArray[np.int32], values: Stored, c: float, begin: _Place, end: _Place, out: F64
) -> None:
    """Add ``c`` times a row to ``out``."""
    body = begin + (end - begin) // _8 * _8
    for j in range(begin, body, _8):
        _prefetch_stored(values, indices, j)
        out[np.uint32(indices[j])] += _times(values, j, c)
        out[np.uint32(indices[j + _1])] += _times(values, j + _1, c)
        out[np.uint32(indices[j + _2])] += _times(values, j + _2, c)
        out[np.uint32(indices[j + _3])] += _times(values, j + _3, c)
        out[np.uint32(indices[j + _4])] += _times(values, j + _4, c)
        out[np.uint32(indices[j + _5])] += _times(values, j + _5, c)
        out[np.uint32(indices[j + _6])] += _times(values, j + _6, c)
        out[np.uint32(indices[j + _7])] += _times(values, j + _7, c)
    for j in range(body, end):
        out[np.uint32(indices[j])] += _times(values, j, c)


@kernel
def csr_adjoint(
    indptr: Pointers,
    indices: NDArray[np.int32],
    values: Stored,
    coefficients: F64,
    out: F64,
) -> None:
    """Add ``X.T @ coefficients`` to ``out``; a row with coefficient zero is skipped."""
    for i in range(coefficients.size):
        c = coefficients[i]
        if c != 0.0:
            csr_add(indices, values, c, _Place(indptr[i]), _Place(indptr[i + 1]), out)


@kernel
def sequence_forward(codes: NDArray[np.uint8], table: F64, out: F64) -> None:
    """Write ``out[i] = sum_p table[p, codes[i, p]]``; codes (n, length), table (length, 256).

    Eight positions at a time: their tables (16 KiB) and a tile's codes stay in cache, and the
    eight lookups of a row are independent.
    """
    n, length = codes.shape
    whole = length // 8 * 8
    for first in range(0, n, _TILE_ROWS):
        # Slices that start at zero avoid a test for negative row numbers.
        rows, sums = codes[first : first + _TILE_ROWS], out[first : first + _TILE_ROWS]
        for i in range(sums.size):
            total = 0.0
            for p in range(whole, length):
                total += table[p, rows[i, p]]
            sums[i] = total
        for p in range(0, whole, 8):
            t = table[p : p + 8]
            for i in range(sums.size):
                c = rows[i]
                left = (t[0, c[p]] + t[1, c[p + 1]]) + (t[2, c[p + 2]] + t[3, c[p + 3]])
                right = (t[4, c[p + 4]] + t[5, c[p + 5]]) + (t[6, c[p + 6]] + t[7, c[p + 7]])
                sums[i] += left + right


@kernel
def sequence_adjoint(codes: NDArray[np.uint8], coefficients: F64, table: F64) -> None:
    """Add ``coefficients[i]`` to ``table[p, codes[i, p]]`` for every row and position."""
    n, length = codes.shape
    whole = length // 8 * 8
    for first in range(0, n, _TILE_ROWS):
        rows = codes[first : first + _TILE_ROWS]
        coefficient = coefficients[first : first + _TILE_ROWS]
        for p in range(0, whole, 8):
            t = table[p : p + 8]
            for i in range(coefficient.size):
                v = coefficient[i]
                if v != 0.0:
                    c = rows[i]
                    t[0, c[p]] += v
                    t[1, c[p + 1]] += v
                    t[2, c[p + 2]] += v
                    t[3, c[p + 3]] += v
                    t[4, c[p + 4]] += v
                    t[5, c[p + 5]] += v
                    t[6, c[p + 6]] += v
                    t[7, c[p + 7]] += v
        for i in range(coefficient.size):
            v = coefficient[i]
            for p in range(whole, length):
                table[p, rows[i, p]] += v


# Products X' D X v: each row is multiplied and accumulated while it is in cache, so that the data
# are read once. ``offset`` is added to each row's product with v; ``products`` receives
# ``D (X v + offset)``.


@regrouping_kernel
def dense_product(
    values: Values, v: F64, offset: float, curvatures: F64, products: F64, out: F64
) -> None:
    """Add ``values.T @ products`` to ``out[:k]``; values (n, k), v (d,), curvatures (n,)."""
    n, k = values.shape
    for i in range(n):
        total = 0.0
        if curvatures[i] != 0.0:
            for j in range(k):
                total += values[i, j] * v[j]
            total = curvatures[i] * (total + offset)
            for j in range(k):
                out[j] += total * values[i, j]
        products[i] = total


@kernel
def csr_product(
    indptr: Pointers,
    indices: NDArray[np.int32],
    values: Stored,
    v: F64,
    offset: float,
    curvatures: F64,
    products: F64,
    out: F64,
) -> None:
    """Add ``X.T @ products`` to ``out``; a row with curvature zero is skipped."""
    for i in range(products.size):
        begin, end = _Place(indptr[i]), _Place(indptr[i + 1])
        c = curvatures[i]
        if c != 0.0:
            c *= csr_dot(indices, values, v, begin, end) + offset
            for j in range(begin, end):
                out[np.uint32(indices[j])] += _times(values, j, c)
        products[i] = c


@kernel
def sequence_product(
    codes: NDArray[np.uint8],
    table: F64,
    offset: float,
    curvatures: F64,
    products: F64,
    out: F64,
) -> None:
    """Add ``products[i]`` to ``out[p, codes[i, p]]``, tile by tile of the rows."""
    for first in range(0, products.size, _TILE_ROWS):
        rows = codes[first : first + _TILE_ROWS]
        product = products[first : first + _TILE_ROWS]
        sequence_forward(rows, table, product)
        for i in range(product.size):
            product[i] = curvatures[first + i] * (product[i] + offset)
        sequence_adjoint(rows, product, out)


@kernel
def fold_weights(
    w: F64, sigma: int, lo: int, hi: int, length: int, first: NDArray[np.int64], table: F64
) -> None:
    """Write the (length, 256) table with ``onehot(codes) * table == X @ w``.

    ``table[p, code]`` is the sum of ``w`` over the n-grams of lengths lo..hi that begin at position
    p and fit into the sequence. They are the leading letters of the hi-gram ``code``, so the
    padding letters of a truncated code near the end of the sequence have no weight.
    ``first[n - lo]`` is the first column of the n-grams of length n.
    """
    table[:] = 0.0
    for n in range(lo, hi + 1):
        drop = sigma ** (hi - n)
        n_grams = sigma**n
        for p in range(length - n + 1):
            begin = first[n - lo] + p * n_grams
            for gram in range(n_grams):
                weight = w[begin + gram]
                for code in range(gram * drop, (gram + 1) * drop):
                    table[p, code] += weight


@kernel
def unfold_table(
    table: F64, sigma: int, lo: int, hi: int, length: int, first: NDArray[np.int64], out: F64
) -> None:
    """Add the transpose of :func:`fold_weights`, applied to ``table``, to ``out`` (d,)."""
    for n in range(lo, hi + 1):
        drop = sigma ** (hi - n)
        n_grams = sigma**n
        for p in range(length - n + 1):
            begin = first[n - lo] + p * n_grams
            for gram in range(n_grams):
                total = 0.0
                for code in range(gram * drop, (gram + 1) * drop):
                    total += table[p, code]
                out[begin + gram] += total


# The same products for many chunks in one call: of thousands of small chunks the calls took ten
# times as long as the sums. ``rows`` (m,) are the chunks' numbers of rows; the other int64 arrays
# (m,) are the addresses of their arrays. ``like`` has the type of the values; None if all are one.


@inlined_kernel
def _add_offset(out: F64, offset: float) -> None:
    if offset != 0.0:
        for i in range(out.size):
            out[i] += offset


@kernel
def dense_forwards(
    rows: I64, at_values: I64, width: int, like: Values, w: F64, offset: float, at_out: I64
) -> None:
    """Write ``values @ w[:width] + offset`` of each chunk."""
    for c in range(rows.size):
        out = vector_at(at_out[c], rows[c], w)
        dense_forward(matrix_at(at_values[c], rows[c], width, like), w, out)
        _add_offset(out, offset)


@kernel
def dense_adjoints(
    rows: I64, at_values: I64, width: int, like: Values, at_coefficients: I64, out: F64
) -> None:
    """Add ``values.T @ coefficients`` of each chunk to ``out[:width]``."""
    for c in range(rows.size):
        coefficients = vector_at(at_coefficients[c], rows[c], out)
        dense_adjoint(matrix_at(at_values[c], rows[c], width, like), coefficients, out)


def _stored_at(at: Any, n: Any, like: Any) -> Any:
    """Return the values at an address; None if ``like`` is."""
    return None if like is None else vector_at(at, n, like)


@overload(_stored_at, jit_options={"forceinline": True}, strict=False)
def _choose_stored(at: Any, n: Any, like: Any) -> Any:
    if isinstance(like, types.NoneType):
        return lambda at, n, like: None
    return lambda at, n, like: vector_at(at, n, like)


@kernel
def csr_forwards(
    rows: I64,
    at_indptr: I64,
    at_indices: I64,
    at_values: I64,
    of_index: NDArray[np.int32],
    like: Stored,
    w: F64,
    offset: float,
    at_out: I64,
) -> None:
    """Write ``X @ w + offset`` of each chunk."""
    for c in range(rows.size):
        indptr, out = (
            vector_at(at_indptr[c], rows[c] + 1, of_index),
            vector_at(at_out[c], rows[c], w),
        )
        stored = np.int64(indptr[rows[c]])
        indices = vector_at(at_indices[c], stored, of_index)
        csr_forward(indptr, indices, _stored_at(at_values[c], stored, like), w, out)
        _add_offset(out, offset)


@kernel
def csr_adjoints(
    rows: I64,
    at_indptr: I64,
    at_indices: I64,
    at_values: I64,
    of_index: NDArray[np.int32],
    like: Stored,
    at_coefficients: I64,
    out: F64,
) -> None:
    """Add ``X.T @ coefficients`` of each chunk to ``out``."""
    for c in range(rows.size):
        indptr = vector_at(at_indptr[c], rows[c] + 1, of_index)
        stored = np.int64(indptr[rows[c]])
        indices = vector_at(at_indices[c], stored, of_index)
        coefficients = vector_at(at_coefficients[c], rows[c], out)
        csr_adjoint(indptr, indices, _stored_at(at_values[c], stored, like), coefficients, out)


@kernel
def sequence_forwards(
    rows: I64, at_codes: I64, of_code: NDArray[np.uint8], table: F64, offset: float, at_out: I64
) -> None:
    """Write ``X @ w + offset`` of each chunk of sequences."""
    for c in range(rows.size):
        out = vector_at(at_out[c], rows[c], table)
        sequence_forward(matrix_at(at_codes[c], rows[c], table.shape[0], of_code), table, out)
        _add_offset(out, offset)


@kernel
def sequence_adjoints(
    rows: I64, at_codes: I64, of_code: NDArray[np.uint8], at_coefficients: I64, table: F64
) -> None:
    """Add the coefficients of each chunk's rows to the table."""
    for c in range(rows.size):
        codes = matrix_at(at_codes[c], rows[c], table.shape[0], of_code)
        sequence_adjoint(codes, vector_at(at_coefficients[c], rows[c], table), table)


@kernel
def _sum_of(values: F64, low: int, high: int) -> float:
    """Return the sum of at most 128 numbers as NumPy adds them."""
    if high - low < 8:
        total = 0.0
        for i in range(low, high):
            total += values[i]
        return total
    s0, s1, s2, s3 = values[low], values[low + 1], values[low + 2], values[low + 3]
    s4, s5, s6, s7 = values[low + 4], values[low + 5], values[low + 6], values[low + 7]
    whole = low + (high - low) // 8 * 8
    for i in range(low + 8, whole, 8):
        s0 += values[i]
        s1 += values[i + 1]
        s2 += values[i + 2]
        s3 += values[i + 3]
        s4 += values[i + 4]
        s5 += values[i + 5]
        s6 += values[i + 6]
        s7 += values[i + 7]
    total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    for i in range(whole, high):
        total += values[i]
    return float(total)


@kernel
def add_sums(rows: I64, at_values: I64, total: F64) -> None:
    """Add the sum of each chunk's numbers to ``total`` (1,), bit for bit as ``ndarray.sum`` does.

    NumPy halves what has more than 128 numbers, at a multiple of eight, and adds both sums.
    """
    # The sums to form: their ends, and -1 for "add the last two"; a stack instead of recursion.
    begins, ends, sums = np.empty(128, np.int64), np.empty(128, np.int64), np.empty(128)
    for c in range(rows.size):
        values = vector_at(at_values[c], rows[c], total)
        begins[0], ends[0], open_, done = 0, rows[c], 1, 0
        while open_ > 0:
            open_ -= 1
            low, high = begins[open_], ends[open_]
            if low < 0:
                done -= 1
                sums[done - 1] += sums[done]
            elif high - low <= 128:
                sums[done] = _sum_of(values, low, high)
                done += 1
            else:
                half = (high - low) // 2
                middle = low + half - half % 8
                begins[open_] = -1
                begins[open_ + 1], ends[open_ + 1] = middle, high
                begins[open_ + 2], ends[open_ + 2] = low, middle
                open_ += 3
        total[0] += sums[0]
