"""Read eight decimal digits at a time from a 64-bit word, and the machine instructions for it.

Eight bytes are loaded as one little-endian word. Finding which of them are digits, and the number
that they form, takes a dozen operations and no branch. Nothing here checks array bounds: callers
pass offsets within the text.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from elasticml.data.kernels import inlined_kernel

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
