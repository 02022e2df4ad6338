"""Messages between members as one vector, whole or by rows."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import Mail
from elasticml.training.message_codec import message_values, pack_message, unpack_message

SHAPES = {"centres": (4, 3), "counts": (4,)}
ARRAYS = {"centres": np.arange(12.0).reshape(4, 3), "counts": np.arange(4.0)}


def test_a_whole_state_survives_encoding():
    vector = pack_message(Mail(arrays=ARRAYS), SHAPES)
    mail = unpack_message(vector, SHAPES, None)
    assert vector.size == message_values(SHAPES, None) == 16
    assert mail.rows is None
    assert all(np.array_equal(mail.arrays[name], ARRAYS[name]) for name in SHAPES)


def test_rows_are_sent_with_their_indices():
    rows = np.array([3, 1])
    sent = Mail(arrays={name: array[rows] for name, array in ARRAYS.items()}, rows=rows)
    vector = pack_message(sent, SHAPES)
    mail = unpack_message(vector, SHAPES, 2)
    assert vector.size == message_values(SHAPES, 2) == 2 + 2 * 4
    assert mail.rows.tolist() == [3, 1]
    assert np.array_equal(mail.arrays["centres"], ARRAYS["centres"][rows])
    assert mail.arrays["counts"].tolist() == [3.0, 1.0]


def test_a_message_of_another_length_is_refused():
    with pytest.raises(ValueError, match="mail of 15 values, wanted 16"):
        unpack_message(np.zeros(15), SHAPES, None)
