"""What cannot be computed again bit for bit is refused before anything is computed."""

from __future__ import annotations

import pytest

from elasticml.errors import ConfigError
from elasticml.replaying.checks import check_devices


def test_a_run_that_computed_on_cuda_is_refused_with_the_reason():
    rounds = [{"event": "RoundEnded", "round": k} for k in range(4)]
    check_devices([{"event": "JobStarted"}, *rounds])
    rounds[2]["on_cuda"] = 16
    rounds[3]["on_cuda"] = 16
    with pytest.raises(ConfigError, match=r"first in round 2, .*algorithm.device: cpu") as caught:
        check_devices(rounds)
    assert "\n" not in caught.value.message
