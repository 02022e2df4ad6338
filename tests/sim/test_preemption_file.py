"""Pre-emptions read from a file."""

from __future__ import annotations

import pytest

from elasticml.errors import ConfigError
from elasticml.sim.preemption_trace import options_from_section, read_preemptions
from elasticml.specification.simulator import Preemption, Taken


def written(folder, text: str) -> str:
    path = folder / "trace.csv"
    path.write_text(text)
    return str(path)


def test_lines_with_one_time_and_one_duration_are_one_preemption(tmp_path):
    path = written(tmp_path, "time,slot,away\n1.5,3,20\n1.5,1,20\n\n2,0,\n1.5,2,7\n")
    assert read_preemptions(path) == [
        {"at": 1.5, "lose": [1, 3], "away": 20.0},
        {"at": 2.0, "lose": [0], "away": None},
        {"at": 1.5, "lose": [2], "away": 7.0},
    ]


def test_members_are_named_by_incarnation_or_counted(tmp_path):
    by_life = read_preemptions(written(tmp_path, "member,time,away\n4.2,1,3\n"))
    assert by_life == [{"at": 1.0, "lose": [4], "away": 3.0}]
    by_count = read_preemptions(written(tmp_path, "time,count,away\n1,2,3\n1,2,3\n"))
    assert by_count == [{"at": 1.0, "lose": 2, "away": 3.0}] * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: got the columns"),
        ("time,away\n1,2\n", "wanted time, away and one of"),
        ("time,slot,away\n1,2,3\nx,2,3\n", "line 3: time: got 'x'"),
        ("time,slot,away\n1,-2,3\n", "line 2: slot: got '-2'"),
        ("time,slot,away\n1,2,-3\n", "line 2: away: got '-3'"),
        ("time,count,away\n1,0,3\n", "line 2: count: got '0'"),
        ("time,slot,away\n1,²,3\n", "line 2: slot: got '²'"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        read_preemptions(written(tmp_path, text))


def test_file_random_losses_and_entries_are_combined(tmp_path):
    path = written(tmp_path, "time,slot,away\n1,2,3\n")
    section = {"preemption": {"trace": path, "how": "notice"}, "trace": [{"at": 9, "lose": 1}]}
    options = options_from_section(section)
    assert options.preemption is None
    assert options.trace == (
        Taken(at=9, lose=1),
        Taken(at=1.0, lose=(2,), how="notice", away=3.0),
    )
    section["preemption"]["rate"] = 0.5
    assert options_from_section(section).preemption == Preemption(rate=0.5, how="notice")
