"""Fast paths for the most frequent svmlight tokens: one word or three, without a loop.

All other tokens are left to :func:`elasticml.data.decimals.number_at`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.decimals import scaled
from elasticml.data.digit_words import (
    INT_POWERS,
    TEN_TO_8,
    ZEROS,
    byte_at,
    eight_digits,
    no_digits,
    trailing_zeros,
    word_at,
)
from elasticml.data.kernels import inlined_kernel

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
