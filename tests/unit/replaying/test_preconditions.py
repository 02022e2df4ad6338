"""What cannot be computed again bit for bit is refused before anything is computed."""

from __future__ import annotations

import pytest

from elasticml.errors import ConfigError
from elasticml.replaying.replay_engine import check_devices, check_order


def test_a_run_that_computed_on_cuda_is_refused_with_the_reason():
    rounds = [{"event": "RoundEnded", "round": k} for k in range(4)]
    check_devices([{"event": "JobStarted"}, *rounds])
    rounds[2]["on_cuda"] = 16
    rounds[3]["on_cuda"] = 16
    with pytest.raises(ConfigError, match=r"first in round 2, .*algorithm.device: cpu") as caught:
        check_devices(rounds)
    assert "\n" not in caught.value.message


def test_only_passes_in_the_order_of_the_disk_are_refused():
    for algorithm in ("batch_gradient", "local_sgd", "async_sgd"):
        check_order({"member": "0.1"}, algorithm)
    with pytest.raises(ConfigError, match=r"member 0\.1 went out of core"):
        check_order({"member": "0.1"}, "cocoa")
