"""Convert the job record, which the scheduler receives, back to a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticml.data.source import unlisted
from elasticml.jobs.job_spec import SECTIONS
from elasticml.jobs.run_checkpoints import job_file_entry
from elasticml.protocol.job_record import JobRecord
from elasticml.specification.algorithms import LocalSGD

#: Sections that the record has in another form, or not at all.
_CONVERTED = ("name", "data", "algorithm", "cluster", "faults", "checkpoint")


def job_file_from_record(record: JobRecord) -> dict[str, Any]:
    """Return the sections of the job file for a record, without the cluster.

    Parameters
    ----------
    record : JobRecord
        Keys whose value is None or empty are omitted.
    """
    data = _given(unlisted(record.data))
    scored = data.pop("scored", None) or {}  # the section validate says the rest of it
    if "test" in scored:
        data["test"] = _given(scored["test"])
    if record.chunk_bytes:
        data["chunk_size"] = record.chunk_bytes
    if record.cache is not None:
        data["cache"] = record.cache
    job: dict[str, Any] = {
        "name": record.name,
        "data": data,
        "algorithm": _algorithm(record),
    }
    for key in SECTIONS:
        if key in _CONVERTED:
            continue
        value = record.json.get(key)
        value = _given(value) if isinstance(value, Mapping) else value
        if value is not None and value != [] and value != {}:
            job[key] = value
    if "checkpoint" in record.json:
        job["checkpoint"] = job_file_entry(record.checkpoint)
    if record.faults:
        job["faults"] = [dict(fault) for fault in record.json["faults"]]
    return job


def _algorithm(record: JobRecord) -> dict[str, Any]:
    """Return the section without the keys that other sections set: seed, epochs, warm start."""
    is_local_sgd = record.algorithm_name == LocalSGD.name
    left_out = {"warm_start", "epochs"} if is_local_sgd else {"warm_start"}
    section = _given(record.algorithm)
    return {
        name: value
        for name, value in section.items()
        if name not in left_out and (name != "seed" or value != record.seed)
    }


def _given(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}
