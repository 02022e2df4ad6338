"""Garbage on the links of a running job has no effect on it: a slice of ``fuzzed_frames.py``."""

from __future__ import annotations

import pytest

from tests.bench.fuzzed_frames import attack, job

pytestmark = pytest.mark.cluster


@pytest.mark.slow
@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_fuzzed_frames_have_no_effect_on_a_job_and_find_no_secret(
    is_asynchronous: bool, has_tls: bool
) -> None:
    attacked = job(is_asynchronous, rounds=60, passes=100.0)
    seen = attack(11, 150, n_members=2, attacked_job=attacked, has_tls=has_tls)
    assert seen["frames"] >= 150
    assert (seen["states"] > 0) == is_asynchronous
    assert seen["effects"] == []
    assert seen["tracebacks"] == 0
