"""Products and updates with one row of a chunk by address, compiled: dot, add.

The serial loops are small enough for the compiler to inline them into the kernels that visit rows.
A row has ``count`` values at ``at_values`` and, if sparse, column numbers at ``at_indices``.
Sequence rows are codes, see :mod:`elasticml.data.chunks.ngrams`. Arithmetic is in the type of
``r``.

An address in a table is an integer; the owner of the table keeps the arrays alive.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from elasticml.compiled import regrouping_kernel, unchecked_kernel


@intrinsic
def pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Return a pointer to elements of the array ``like``'s type.

    Indexed as it is: an array made of it (``numba.carray``) takes several times as long to compile.
    """
    target = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(target))

    return target(address, like), generate


@intrinsic
def row_of(typing_context: Any, table: Any, i: Any) -> Any:
    """Return a pointer to row ``i`` of a table (any, any) in C order."""
    target = types.CPointer(table.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        width = builder.extract_value(array.shape, 1)
        return builder.gep(array.data, [builder.mul(arguments[1], width)])

    return target(table, types.int64), generate


@intrinsic
def start_of(typing_context: Any, array: Any) -> Any:
    """Return a pointer to the first element of a contiguous array."""
    target = types.CPointer(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return target(array), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the line of memory at an address into the second-level cache.

    Never fails, whatever the address. Not into the first level: it has few slots for pending lines,
    and the model's look-ups need them (a pass in random order took 1.3 times as long).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        where = builder.inttoptr(arguments[0], byte)
        # Read access, second level and above, data cache.
        builder.call(function, [where, flag(0), flag(2), flag(1)])
        return context.get_dummy_value()

    return types.void(address), generate


DENSE: Final = 0
CSR: Final = 1
BINARY: Final = 2
SEQUENCE: Final = 3
#: Kind of rows by the name of a chunk's layout.
KIND_CODES: Final = {"dense": DENSE, "csr": CSR, "binary_csr": BINARY, "sequence": SEQUENCE}

#: float64 or float32 vector.
Reals = NDArray[np.float64] | NDArray[np.float32]
_I4: Final = np.empty(0, np.int32)
_U1: Final = np.empty(0, np.uint8)


@unchecked_kernel
def locate(
    kind: int,
    i: int,
    width: int,
    at_indptr: int,
    at_indices: int,
    at_values: int,
    itemsize: int,
) -> Any:
    """Return the address of row ``i``'s indices, its number of values, and their address."""
    if kind == 1 or kind == 2:
        indptr = pointer(at_indptr, _I4)
        begin, end = np.int64(indptr[np.uint64(i)]), np.int64(indptr[np.uint64(i + 1)])
        return at_indices + begin * 4, end - begin, at_values + begin * itemsize
    return 0, width, at_values + np.int64(i) * width * (itemsize if kind == 0 else 1)


@regrouping_kernel
def dense_dot(at_values: int, count: int, like: Reals, r: Reals) -> Any:
    """Return ``x . r[:count]``."""
    x = pointer(at_values, like)
    total = r.dtype.type(0.0)
    for j in range(count):
        total += x[j] * r[j]
    return total


@unchecked_kernel
def dense_add(at_values: int, count: int, like: Reals, c: Any, r: Reals) -> None:
    """Add ``c x`` to ``r[:count]``."""
    x = pointer(at_values, like)
    for j in range(count):
        r[j] += c * x[j]


@unchecked_kernel
def sparse_dot(
    is_binary: bool, at_indices: int, at_values: int, count: int, like: Reals, r: Reals
) -> Any:
    """Return ``x . r``; four partial sums hide the latency of the additions.

    Callers give ``is_binary`` as a constant, so that no loop asks for it.
    """
    index, x = pointer(at_indices, _I4), pointer(at_values, like)
    zero, one = r.dtype.type(0.0), like.dtype.type(1.0)
    s0, s1, s2, s3 = zero, zero, zero, zero
    body = count // 4 * 4
    for j in range(0, body, 4):
        s0 += (one if is_binary else x[j]) * r[np.uint32(index[j])]
        s1 += (one if is_binary else x[j + 1]) * r[np.uint32(index[j + 1])]
        s2 += (one if is_binary else x[j + 2]) * r[np.uint32(index[j + 2])]
        s3 += (one if is_binary else x[j + 3]) * r[np.uint32(index[j + 3])]
    for j in range(body, count):
        s0 += (one if is_binary else x[j]) * r[np.uint32(index[j])]
    return (s0 + s1) + (s2 + s3)


@unchecked_kernel
def sparse_add(
    is_binary: bool,
    at_indices: int,
    at_values: int,
    count: int,
    like: Reals,
    c: Any,
    r: Reals,
) -> None:
    """Add ``c x`` to ``r``."""
    index, x = pointer(at_indices, _I4), pointer(at_values, like)
    for j in range(count):
        r[np.uint32(index[j])] += c if is_binary else c * x[j]


@unchecked_kernel
def sequence_dot(at_codes: int, length: int, grams: NDArray[np.int64], r: Reals) -> Any:
    """Return the sum of ``r`` over the row's n-grams.

    ``grams`` (hi - lo + 1, 259): see :func:`elasticml.algorithms.cocoa.chunk_pointers.grams_of`.
    """
    codes = pointer(at_codes, _U1)
    total = r.dtype.type(0.0)
    for g in range(grams.shape[0]):
        first, n_grams, places = grams[g, 0], grams[g, 1], grams[g, 2]
        for p in range(places):
            total += r[np.uint64(first + p * n_grams + grams[g, 3 + np.uint64(codes[p])])]
    return total


@unchecked_kernel
def sequence_add(at_codes: int, length: int, grams: NDArray[np.int64], c: Any, r: Reals) -> None:
    """Add ``c`` to ``r`` at the row's n-grams."""
    codes = pointer(at_codes, _U1)
    for g in range(grams.shape[0]):
        first, n_grams, places = grams[g, 0], grams[g, 1], grams[g, 2]
        for p in range(places):
            r[np.uint64(first + p * n_grams + grams[g, 3 + np.uint64(codes[p])])] += c


@unchecked_kernel
def dot(
    kind: int,
    at_indices: int,
    at_values: int,
    count: int,
    grams: NDArray[np.int64],
    like: Reals,
    r: Reals,
) -> Any:
    """Return ``x . r`` for a row of any kind."""
    if kind == 1:
        return sparse_dot(False, at_indices, at_values, count, like, r)
    if kind == 0:
        return dense_dot(at_values, count, like, r)
    if kind == 2:
        return sparse_dot(True, at_indices, at_values, count, like, r)
    return sequence_dot(at_values, count, grams, r)


@unchecked_kernel
def add(
    kind: int,
    at_indices: int,
    at_values: int,
    count: int,
    grams: NDArray[np.int64],
    like: Reals,
    c: Any,
    r: Reals,
) -> None:
    """Add ``c x`` to ``r`` for a row of any kind."""
    if kind == 1:
        sparse_add(False, at_indices, at_values, count, like, c, r)
    elif kind == 0:
        dense_add(at_values, count, like, c, r)
    elif kind == 2:
        sparse_add(True, at_indices, at_values, count, like, c, r)
    else:
        sequence_add(at_values, count, grams, c, r)
