"""The bytes of a checkpoint: complete, or reported as damaged; never unpickled."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest

from elasticml.errors import ConfigError
from elasticml.runtime.checkpoints.checkpoint_format import (
    DamagedError,
    decode,
    decode_lines,
    encode,
    encode_lines,
)

ARRAYS = {"w": np.arange(5.0) / 3.0, "empty": np.zeros((0, 2)), "X": np.ones((2, 3)), "s": np.pi}
VALUES = {"round": 7, "gap": 0.1 + 0.2, "never": math.inf, "words": ["a", "ü"], "none": None}


def test_a_checkpoint_is_read_back_to_the_last_bit():
    values, arrays = decode(encode(VALUES, ARRAYS), "c")
    assert values == VALUES
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].flags.writeable


@pytest.mark.parametrize("nbytes", [b"1e999", b"-Infinity", b"[" * 100_000])
def test_a_hostile_first_line_is_noticed(nbytes):
    # An OverflowError or a RecursionError hid the older checkpoint.
    line = b'{"elasticml": "checkpoint", "format": 3, "package": "1", "nbytes": ' + nbytes + b"}\n"
    with pytest.raises(DamagedError):
        decode(line.replace(b"{", b'{"sha256": "", ', 1), "c")


def test_another_version_is_reported():
    content = encode(VALUES, ARRAYS).replace(b'"package": "', b'"package": "9.', 1)
    with pytest.raises(ConfigError, match=r"c was written by elasticml 9\..*install the same"):
        decode(content, "c")


def test_lines_keep_kinds_and_order():
    entries = {"story": [{"t": 0.1}, {"t": np.float64(0.2)}], "row": [{"gap": math.nan}]}
    result = decode_lines(encode_lines(entries))
    assert result["story"] == [{"t": 0.1}, {"t": 0.2}]
    assert math.isnan(result["row"][0]["gap"])


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("arrays"),
        lambda values: values["arrays"]["w"].pop("shape"),
        lambda values: values["arrays"]["w"].update(offset=2**70),
        lambda values: values["arrays"]["w"].update(shape=None),
        lambda values: values.update(arrays=[]),
    ],
)
def test_values_under_a_forged_digest_are_damaged(change):
    seal, _, rest = encode(VALUES, ARRAYS).partition(b"\n")
    head, _, arrays = rest.partition(b"\n")
    values = json.loads(head)
    change(values)
    rest = json.dumps(values).encode() + b"\n" + arrays
    digest = hashlib.sha256(rest).hexdigest()
    forged = json.dumps(json.loads(seal) | {"nbytes": len(rest), "sha256": digest}).encode()
    with pytest.raises(DamagedError, match="its values are not those of a checkpoint"):
        decode(forged + b"\n" + rest, "c")
