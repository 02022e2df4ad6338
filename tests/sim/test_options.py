"""The section ``simulate`` of a job file."""

from __future__ import annotations

import pytest

from elasticml.errors import ConfigError
from elasticml.sim.preemption_trace import options_from_section
from elasticml.specification.simulator import Costs, Granted, Preemption, Taken, WorldOptions


def test_an_empty_section_is_the_default_world():
    assert options_from_section(None) == options_from_section({}) == WorldOptions()


def test_a_full_section_is_read():
    section = {
        "seed": 3,
        "bandwidth": "1 GB",
        "compute_s": {"gradient": 1e-6, "other": 1e-8},
        "slow": {"2": 4},
        "preemption": {"rate": 0.1, "away": [5, 50], "how": "notice", "grace": 2},
        "overhead_s": {"pass": 0.05},
        "limit_bytes": "1 GB",
        "trace": [
            {"at": 10, "lose": [1, 2], "away": 5},
            {"at": 20, "lose": 3},
            {"at": 30, "grant": 2},
        ],
        "costs": {"rows": 10},
    }
    options = options_from_section(section)
    assert options.bandwidth == 1e9
    assert options.slow == {2: 4.0}
    assert options.preemption == Preemption(rate=0.1, away=(5.0, 50.0), how="notice", grace=2)
    taken = (Taken(at=10, lose=(1, 2), away=5), Taken(at=20, lose=3))
    assert options.trace == (*taken, Granted(at=30, grant=2))
    assert (options.overhead_seconds("pass"), options.overhead_seconds("certify")) == (0.05, 0.0)
    assert options.limit_bytes == 10**9
    assert options.costs == Costs(rows=10)
    assert options.compute_seconds("probe", 100) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"latency": 1}, "simulate.latency is not a setting; did you mean 'latency_s'?"),
        ({"latency_s": -1}, "simulate.latency_s: got -1, wanted at least 0"),
        ({"bandwidth": "fast"}, "simulate.bandwidth: got 'fast', wanted bytes per second"),
        ({"preemption": {}}, "simulate.preemption.rate is missing"),
        ({"preemption": {"rate": 1, "away": [9, 1]}}, "simulate.preemption.away: got [9, 1]"),
        ({"preemption": {"rate": 1, "how": "bang"}}, "simulate.preemption.how: got 'bang'"),
        ({"trace": {"at": 1}}, "simulate.trace: got {'at': 1}, wanted a list"),
        ({"trace": [{"at": 1}]}, "simulate.trace[0].lose is missing"),
        ({"trace": [{"at": 1, "grant": 0}]}, "simulate.trace[0].grant: got 0"),
        ({"costs": {"row": 1}}, "simulate.costs.row is not a setting; did you mean 'rows'?"),
    ],
)
def test_a_wrong_section_is_one_line_with_its_key(section, says):
    with pytest.raises(ConfigError) as caught:
        options_from_section(section)
    assert caught.value.message.startswith(says)
    assert "\n" not in caught.value.message
