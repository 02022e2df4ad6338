"""Garbage on the links of a running job has no effect on it: a slice of ``fuzzed_frames.py``."""

from __future__ import annotations

import pytest

from tests.bench.fuzzed_frames import attack

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_fuzzed_frames_change_no_bit_of_a_job_and_find_no_secret() -> None:
    seen = attack(seed=11, frames=150, n_members=2, rounds=60)
    assert seen["frames"] >= 150
    assert seen["effects"] == []
    assert seen["tracebacks"] == 0
