"""Digests of arrays depend on every bit, every position and the order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from elasticml.data.chunks.checksums import digest_of, digest_of_arrays

values = arrays(np.float64, st.integers(1, 11), elements=st.floats(allow_nan=False))


@given(values, st.data())
def test_a_single_bit_changes_the_digest(array, data):
    other = array.copy()
    at = data.draw(st.integers(0, array.size - 1))
    other.view(np.uint64)[at] ^= np.uint64(1 << data.draw(st.integers(0, 63)))
    assert digest_of(other) != digest_of(array)


def test_the_order_of_arrays_counts_and_that_of_names_does_not():
    one, two = np.ones(3), np.arange(5.0)
    assert digest_of(two, digest_of(one)) != digest_of(one, digest_of(two))
    assert digest_of_arrays({"a": one, "b": two}) == digest_of_arrays({"b": two, "a": one})


def test_the_digest_is_the_same_in_every_process():
    assert f"{digest_of(np.arange(7.0)):016x}" == "3b18aa68320a20cc"
