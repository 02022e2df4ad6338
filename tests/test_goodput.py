"""What ``tests/bench/goodput.py`` concludes from the logs of a run."""

from __future__ import annotations

import numpy as np

from tests.bench import goodput
from tests.bench.peers import goodput_run


def test_steps_after_the_snapshot_of_a_restart_are_repeated_and_not_in_the_model():
    def ids(*numbers):
        return np.array(numbers, np.int32)

    # Two examples a step; a snapshot after step 1; killed after step 2; again from step 1 on.
    records = [
        (1.0, 0, 0, ids(0, 1)),
        (2.0, 1, 0, ids(2, 3)),
        (3.0, 2, 1, ids(3, 2)),
        (5.0, 1, 0, None),
        (6.0, 1, 0, ids(2, 3)),
        (7.0, 2, 1, ids(1, 1)),
        (8.0, 3, 1, ids(2, 0)),
        (9.0, 4, 2, ids(0, 1)),
    ]
    lineage = goodput.lineage_of(records)
    assert [lineage.examples(t) for t in (3.0, 5.0, 9.0)] == [6, 2, 10]
    counts = goodput.counts_of(lineage, 9.0, examples=4, parts=1)
    assert counts == {"epochs": 2, "lost": 1, "twice": 1, "repeated": 4}


def test_elasticmls_examples_are_counted_as_those_of_the_others(tmp_path, monkeypatch):
    """Two members, rounds of four examples of six. One is killed in the third round."""
    times = iter(range(100))
    monkeypatch.setattr(goodput_run.time, "time", lambda: float(next(times)))
    one, two = (goodput_run.Seen(tmp_path) for _ in range(2))

    def add_round(examples, **seen):
        for member, ids in ((one, seen.get("one")), (two, seen.get("two"))):
            if ids is not None:
                member.add(-1, -1, np.array(ids))
        if examples is not None:
            goodput_run.append(tmp_path, "rounds.jsonl", at=float(next(times)), examples=examples)

    add_round(4, one=[0, 1], two=[3, 4])
    add_round(6, one=[2], two=[5])
    # The first example of the killed member is in no sum, and the other one takes it over.
    add_round(None, two=[3, 4])
    goodput_run.append(tmp_path, "faults.jsonl", what="kill")
    add_round(8, one=[0, 1])
    add_round(12, one=[2, 3, 4, 5])
    add_round(14, one=[1, 1])
    add_round(18, one=[0, 2, 3, 4])
    add_round(20, one=[0, 2])
    add_round(None, one=[0])
    counts = goodput.own_counts(tmp_path, 99.0, examples=6)
    # Of the third epoch example 5 is missing, and 1 is there twice.
    assert counts == {"epochs": 3, "lost": 1, "twice": 1, "repeated": 2, "unexplained": 0}
