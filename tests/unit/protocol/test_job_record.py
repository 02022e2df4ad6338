"""The job record keeps its JSON, and its sections have the settings of the specification."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import elasticml as em
from elasticml.protocol.job_record import JobRecord, MemberLimits, job_record
from elasticml.specification.sections import Collective, Fault, Stop

DATA = em.from_arrays(np.eye(4), [0.0, 1.0, 0.0, 1.0])


def whole() -> dict[str, Any]:
    """Make a record in which every section has other values than the defaults."""
    job = em.Job(
        em.CoCoA(loss="hinge", l2=0.1),
        DATA,
        test=DATA,
        stop=em.Stop(rounds=7, seconds=60, gap=1e-3),
        seed=3,
        faults=[{"round": 1, "lose": [0, 2], "how": "notice", "grace": 2}],
        collective=em.settings.Collective(fan_out=4),
        members=em.settings.Members(start=4, min=2, max=9),
        evaluate=em.settings.Evaluate(every=2),
        checkpoint="/somewhere",
        threads=2,
        memory_limit="1 GiB",
        simulate={"latency_s": 1e-3},
        warm_start={"coef": np.zeros(4)},
    )
    return job.record("id-1", 4)


def test_a_record_is_written_as_it_was_read() -> None:
    for values in (whole(), {}, {"job": "j", "of_another_version": [1]}):
        record = job_record(values)
        assert list(record.fields_json().items()) == list(values.items())


def test_a_record_has_a_field_for_every_key() -> None:
    record = job_record(whole())
    assert record.extra.keys() == {"evaluate"}  # which the journal reads
    assert record.stop == Stop(rounds=7, seconds=60.0, gap=1e-3)
    assert record.members == MemberLimits(start=4, min=2, max=9)
    assert record.collective == Collective(fan_out=4)
    assert record.faults == (Fault(round=1, lose=[0, 2], how="notice", grace=2.0),)
    assert record.checkpoint is not None
    assert (record.checkpoint.path, record.checkpoint.every_s) == ("/somewhere", 5.0)
    assert (record.algorithm_name, record.algorithm_settings["loss"]) == ("cocoa", "hinge")
    assert record.evaluate == {"every": 2, "rounds": []}
    assert record.initial_model is not None
    assert "warm_start" not in record.without_arrays()["algorithm"]


def test_damaged_sections_have_their_defaults() -> None:
    values = {"stop": 3, "members": {"start": "x", "min": 2}, "seed": None, "faults": [{}]}
    record = job_record(json.loads(json.dumps(values)))
    assert record == JobRecord(json=values, members=MemberLimits(min=2))
    assert (record.stop.rounds, record.collective.topology) == (None, "auto")
    section = {"rounds": -1, "seconds": 3, "gap": "x", "of_another_version": 1}
    assert job_record({"stop": section}).stop.model_dump(exclude_none=True) == {"seconds": 3.0}


def test_a_changed_record_has_changed_json() -> None:
    record = job_record(whole()).with_start(2).changed(resume="/place", reached={"round": 3})
    assert (record.members.start, record.members.max) == (2, 9)
    assert (record.resume, record.reached.round, record.reached.seconds) == ("/place", 3, None)
    assert record.fields_json()["members"] == {"start": 2, "min": 2, "max": 9}
