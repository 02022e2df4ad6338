"""What ``tests/bench/goodput.py`` concludes from the logs of a run."""

from __future__ import annotations

import itertools

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


def test_records_of_a_killed_process_are_read_up_to_the_last_whole_one(tmp_path):
    seen = goodput_run.Seen(tmp_path, start=3)
    seen.add(3, 0, np.array([5, 6]))
    seen.add(4, 0, np.array([7]))
    (path,) = tmp_path.glob("seen-*.bin")
    path.write_bytes(path.read_bytes()[:-2])
    _, *steps = [(step, ids) for _, step, _, ids in goodput_run.read_seen(path)]
    assert [(step, ids.tolist()) for step, ids in steps] == [(3, [5, 6])]


def test_traces_keep_both_cores_busy():
    for name, losses in (("steady", 3), ("spot", 6)):
        trace = goodput.trace_of(name, 40.0)
        sizes = [goodput.WORKERS, *(n for _, n in trace)]
        assert min(sizes) >= 2
        assert sum(max(0, a - b) for a, b in itertools.pairwise(sizes)) == losses
