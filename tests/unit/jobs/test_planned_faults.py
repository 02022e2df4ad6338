"""Consistency of planned faults: only present members are lost, only lost ones return."""

import pytest

from elasticml.errors import ConfigError
from elasticml.jobs.job_file import check_faults, read_faults


def test_faults_are_sorted_by_round_and_keep_their_order_within_one():
    raw = [{"round": 9, "lose": 1}, {"round": 2, "lose": 1}, {"round": 9, "return": 1}]
    faults = read_faults(raw)
    assert [(f.round, f.lose, f.returned) for f in faults] == [
        (2, 1, None),
        (9, 1, None),
        (9, None, 1),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        [{"round": 1, "lose": 4}],
        [{"round": 1, "lose": 3}, {"round": 2, "return": 3}, {"round": 3, "lose": 4}],
        [{"round": 1, "lose": [0, 3]}, {"round": 2, "return": 1}, {"round": 3, "lose": 3}],
    ],
)
def test_possible_faults_are_accepted(raw):
    check_faults(read_faults(raw), workers=4)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ([{"round": 1, "lose": 5}], "round 1: lose: 5, but 4 of 4 members are there"),
        (
            [{"round": 1, "lose": 2}, {"round": 2, "lose": 3}],
            "round 2: lose: 3, but 2 of 4 members are there",
        ),
        ([{"round": 7, "return": 1}], "round 7: return: 1, but 0 of 4 members have gone"),
        (
            [{"round": 1, "lose": [1, 2]}, {"round": 3, "return": 3}],
            "round 3: return: 3, but 2 of 4 members have gone",
        ),
        ([{"round": 1, "lose": [4]}], "slot 4 holds no member"),
        ([{"round": 1, "lose": [1]}, {"round": 2, "lose": [1]}], "slot 1 holds no member"),
    ],
)
def test_impossible_faults_are_refused(raw, text):
    with pytest.raises(ConfigError, match=text):
        check_faults(read_faults(raw), workers=4)


def test_an_entry_is_named_by_its_index():
    with pytest.raises(
        ConfigError, match=r"^faults\[1\]\.hwo is not a setting; did you mean 'how'"
    ):
        read_faults([{"round": 1, "lose": 1}, {"round": 2, "lose": 1, "hwo": "kill"}])


def test_faults_that_are_no_list_are_refused():
    with pytest.raises(ConfigError, match="wanted a list"):
        read_faults({"round": 1, "lose": 1})
