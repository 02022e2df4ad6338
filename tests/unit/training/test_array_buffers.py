"""Sums of vectors in place: the same bits in blocks, in threads, and one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.runtime.executors import parallel
from elasticml.training.array_buffers import (
    BLOCK_VALUES,
    THREAD_VALUES,
    Buffers,
    merge,
    merge_all,
    pack,
)

SIZES = [1, 1_000, BLOCK_VALUES, BLOCK_VALUES + 1, 3 * THREAD_VALUES + 17]


def one_after_the_other(inputs: list[np.ndarray], reduce: str) -> np.ndarray:
    total = inputs[0].copy()
    for other in inputs[1:]:
        merge(total, other, reduce)
    return total


@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("n_inputs", [1, 2, 3, 5])
@pytest.mark.parametrize("size", SIZES)
def test_sum_in_blocks_and_threads_has_the_same_bits(size, n_inputs, reduce):
    rng = np.random.default_rng(size + n_inputs)
    inputs = [rng.normal(size=size) * 10.0 ** rng.integers(-9, 9, size) for _ in range(n_inputs)]
    for array in inputs:
        array.flags.writeable = False  # they may be in another process
    expected = one_after_the_other(inputs, reduce).tobytes()
    threads = parallel(3)
    assert merge_all(inputs, reduce, np.full(size, np.nan)).tobytes() == expected
    assert merge_all(inputs, reduce, np.full(size, np.nan), threads).tobytes() == expected
    threads.close()


def test_foreign_array_is_dropped_and_not_reused():
    foreign = np.frombuffer(bytes(80))
    buffers = Buffers()
    buffers.free(buffers.bind(foreign))
    assert buffers.take(80) is not foreign
    own = buffers.take(80)
    buffers.free(buffers.bind(own))
    assert buffers.take(80) is own


def test_array_to_send_is_in_shared_memory_if_there_is_any():
    memory = {80: np.zeros(10)}
    buffers = Buffers(memory.get)
    assert buffers.take_to_send(80) is memory[80]
    assert buffers.take_to_send(88).size == 11


@pytest.mark.parametrize("values", [np.array([1j]), np.array([1.0], object), np.array(["1"])])
def test_a_partial_of_other_than_real_numbers_is_refused(values):
    with pytest.raises(ValueError, match="wanted real numbers"):
        pack({"w": values}, {"w": (1,)}, np.empty(1))
