"""A job's progress, as reported to YARN."""

import pytest

from elasticml.clusters.yarn.jobs.job_driver import progress_fraction
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
