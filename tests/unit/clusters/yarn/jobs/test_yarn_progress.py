"""A job's progress, as reported to YARN."""

import pytest

from elasticml.clusters.yarn.jobs.job_driver import ProgressReporter, progress_fraction
from elasticml.report.status import JobStatus


@pytest.mark.parametrize(
    ("status", "share"),
    [
        ({}, 0.0),
        ({"rounds_max": 10, "round": 3}, 0.3),
        ({"rounds_max": 10, "round": 3, "seconds_max": 10, "seconds": 8}, 0.8),
        ({"gap_target": 1e-4, "gap_first": 1.0, "gap": 1e-2}, 0.5),
        ({"rounds_max": 10, "round": 12}, 1.0),
        ({"state": "failed"}, 1.0),
    ],
)
def test_the_nearest_limit_determines_the_progress(status, share):
    assert progress_fraction(JobStatus(job="a", **status)) == pytest.approx(share)


def test_progress_is_reported_at_most_once_a_second_and_never_falls():
    values, now = [], [0.0]
    progress = ProgressReporter(values.append, clock=lambda: now[0])
    progress.on_records([{"event": "JobStarted", "spec": {"stop": {"rounds": 10}}}])
    for second, round in [(0.0, 0), (0.5, 1), (1.5, 2), (3.0, 1), (3.1, 5)]:
        now[0] = second
        progress.on_records([{"event": "RoundEnded", "round": round}])
    progress.on_records([{"event": "JobEnded", "state": "done"}])
    assert values == [pytest.approx(share) for share in (0.0, 0.3, 0.6, 1.0)]
