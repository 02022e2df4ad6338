"""Messages between client and driver of a submitted job."""

import json

import pytest

from elasticml.clusters.yarn.jobs.submission import FIRST, Submission, read_submission
from elasticml.clusters.yarn.jobs.submit import file_systems_of
from elasticml.errors import ConfigError
from elasticml.protocol.job_record import job_record

SUBMISSION = Submission(
    record=job_record({"name": "toy", "members": {"start": 2, "min": 1}}),
    cluster={"kind": "yarn"},
    place="hdfs://nn:8020/user/me/runs/toy",
    workers=2,
    workers_min=1,
)


def test_a_submission_is_read_as_it_was_written():
    assert read_submission(SUBMISSION.to_json()) == SUBMISSION


def test_a_driver_of_another_version_refuses_with_the_remedy():
    fields = {**json.loads(SUBMISSION.to_json()), "package": "0.0.7"}
    with pytest.raises(ConfigError, match=r"submitted by elasticml 0.0.7.*submit with --pack"):
        read_submission(json.dumps(fields).encode())


def futile_attempts(*lives):
    """Count futile attempts, given (round of the last checkpoint, is_ours) of each."""
    attempt = FIRST.after(container="", round=None, token="", is_ours=False)
    for round, is_ours in lives:
        attempt = attempt.after(container="", round=round, token="", is_ours=is_ours)
    return attempt.futile


@pytest.mark.parametrize(
    ("lives", "count"),
    [
        ([(None, True)], 1),
        ([(None, True), (None, True)], 2),
        ([(None, True), (3, True)], 0),
        ([(3, True), (3, True), (3, True)], 2),
        ([(3, True), (3, True), (4, True)], 0),
        ([(3, True), (3, False), (3, False)], 0),
        ([(3, True), (3, True), (3, False), (3, True)], 2),
    ],
)
def test_only_attempts_that_failed_by_themselves_without_progress_are_futile(lives, count):
    assert futile_attempts(*lives) == count


def test_containers_get_tokens_for_every_hdfs_that_a_job_uses():
    record = {
        "data": {"format": "svmlight", "path": "hdfs://one:8020/train.svm"},
        "test": {"format": "svmlight", "path": "/shared/test.svm"},
        "checkpoint": {"path": "hdfs:///user/me/checkpoint", "every_s": 5.0},
    }
    used = Submission(
        record=job_record(record),
        cluster={},
        place="hdfs://two:8020/runs/a",
        workers=1,
        workers_min=1,
    )
    assert file_systems_of(used) == {"hdfs://one:8020", "hdfs://two:8020"}
