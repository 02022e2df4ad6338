"""Runs that cannot be replayed bit for bit are refused before anything is computed."""

from __future__ import annotations

import pytest

from elasticml.errors import ConfigError
from elasticml.replaying.replay_engine import check_devices, check_order
from elasticml.story.records import RoundEnded, WentOutOfCore


def test_a_run_that_computed_on_cuda_is_refused_with_the_reason():
    rounds = [RoundEnded(round=k, idle=False) for k in range(4)]
    check_devices(rounds)
    rounds[2:] = [RoundEnded(round=k, idle=False, extra={"on_cuda": 16}) for k in (2, 3)]
    with pytest.raises(ConfigError, match=r"first in round 2, .*algorithm.device: cpu") as caught:
        check_devices(rounds)
    assert "\n" not in caught.value.message


def test_only_passes_in_the_order_of_the_disk_are_refused():
    member = WentOutOfCore(member="0.1", nbytes=2, limit_bytes=1)
    for algorithm in ("batch_gradient", "local_sgd", "async_sgd"):
        check_order(member, algorithm)
    with pytest.raises(ConfigError, match=r"member 0\.1 went out of core"):
        check_order(member, "cocoa")
