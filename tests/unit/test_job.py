"""A job before it starts: refusals, and its record."""

import json
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from distributed.comm import CommClosedError

import elasticml as em
from elasticml.data.readers.arrays import from_arrays
from elasticml.ids import VERSION


@pytest.fixture
def data():
    return from_arrays(np.eye(4), np.array([0.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"policies": [{"name": "kne"}]}, "there is no policy 'kne'; did you mean 'knee'"),
        (
            {"warm_start": {"coef": [1.0]}},
            "algorithm batch_gradient does not support it",
        ),
        ({"chunk_size": "a lot"}, "data.chunk_size: got 'a lot', wanted 'auto' or a size"),
        ({"chunk_size": 0}, "data.chunk_size: got 0"),
        (
            {"members": em.settings.Members(start=2), "faults": [{"round": 1, "lose": 3}]},
            "lose: 3, but 2 of 2 members are there",
        ),
    ],
)
def test_wrong_settings_are_refused_when_the_job_is_created(data, settings, text):
    with pytest.raises(em.ConfigError, match=text):
        em.Job(em.BatchGradient(), data, **settings)


def test_sections_are_objects_or_mappings(data):
    sections = {
        "stop": {"rounds": 3},
        "collective": {"topology": "star"},
        "members": {"min": 2},
        "evaluate": {"every": 10},
    }
    job = em.Job(em.BatchGradient(), data, **sections)
    assert job.stop == em.Stop(rounds=3)
    assert job.collective == em.settings.Collective(topology="star")
    assert job.members == em.settings.Members(min=2)
    assert job.evaluate == em.settings.Evaluate(every=10)


def test_a_chunk_must_fit_into_a_workers_memory(data):
    job = em.Job(em.BatchGradient(), data, chunk_size="700 MiB")
    job.check_memory(2 * 2**30)
    job.check_memory(None)
    with pytest.raises(em.ConfigError, match=r"got 700\.0 MiB, wanted at most 614\.4 MiB"):
        job.check_memory(2**30)


def test_missing_data_are_found_before_anything_starts(data, tmp_path):
    missing = em.read_svmlight(str(tmp_path / "none.svm"))
    with pytest.raises((em.ConfigError, em.DataError), match=r"none\.svm"):
        em.Job(em.BatchGradient(), data, test=missing).check_data()


def test_the_record_is_plain_json_and_complete(data):
    job = em.Job(
        em.BatchGradient(class_weight={0: 1, 1: 3}),
        data,
        test=data,
        name="toy",
        absent="stall",
        stop=em.Stop(rounds=5),
        faults=[{"round": 1, "lose": 1}],
        evaluate=em.settings.Evaluate(every=2, rounds=[3]),
    )
    record = job.record("toy-1", 3)
    assert json.loads(json.dumps(record)) == record
    assert (record["package"], record["job"], record["members"]) == (
        VERSION,
        "toy-1",
        {"start": 3, "min": 1, "max": None},
    )
    assert record["faults"] == [
        {"round": 1, "phase": "broadcast", "lose": 1, "how": "kill", "grace": 5.0}
    ]
    assert record["evaluate"] == {"every": 2, "rounds": [3]}
    assert record["data"] == {**data.spec(), "scored": {"test": data.spec()}}


def test_evaluation_can_be_declined(data):
    assert em.Job(em.BatchGradient(), data, evaluate=False).record("a", 1)["evaluate"] is False


def test_the_rows_of_a_small_file_are_checked_before_anything_is_started(tmp_path: Path) -> None:
    path = tmp_path / "bad.svm"
    path.write_text("1 1:2 3:4\n-1 2:1\nfoo 1:2\n")
    job = em.Job(em.CoCoA(loss="hinge", l2=0.01), em.read_svmlight(path))
    with pytest.raises(em.DataError, match=r"bad\.svm, line 3, column 1: label is 'foo'"):
        job.check_data()


def test_a_scheduler_that_is_lost_while_a_job_is_submitted_is_an_error_in_one_line(
    data, monkeypatch
):
    def closed(client, *rest):
        raise CommClosedError("in <TCP (closed)>")

    monkeypatch.setattr("elasticml.jobs.handle.prepare_scheduler", closed)
    with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        with pytest.raises(em.JobFailedError, match="was lost before the job had started") as lost:
            em.Job(em.BatchGradient(), data).start(client)
        assert client.scheduler.address in str(lost.value)
