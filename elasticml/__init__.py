"""Training that goes on while its workers vanish and return, on any Dask cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticml.clusters.local import LocalCluster
    from elasticml.data.arrays import from_arrays
    from elasticml.data.sequences import read_sequences
    from elasticml.data.svmlight import read_svmlight
    from elasticml.data.synthetic import make_splice
    from elasticml.data.tabular import read_csv, read_parquet
    from elasticml.errors import (
        ConfigError,
        DataError,
        ElasticmlError,
        JobFailedError,
        NotEnoughMembersError,
        ProtocolError,
        SubmissionError,
    )
    from elasticml.job import Job, attach
    from elasticml.jobs.handle import Handle
    from elasticml.jobs.job_file import JobFile, read_job_file
    from elasticml.jobs.result import Result
    from elasticml.jobs.settings import (
        BatchGradient,
        Collective,
        Evaluate,
        ImportedAlgorithm,
        Members,
        Stop,
    )
    from elasticml.jobs.status import JobStatus
    from elasticml.terms import VERSION as __version__

__all__ = [
    "BatchGradient",
    "Collective",
    "ConfigError",
    "DataError",
    "ElasticmlError",
    "Evaluate",
    "Handle",
    "ImportedAlgorithm",
    "Job",
    "JobFailedError",
    "JobFile",
    "JobStatus",
    "LocalCluster",
    "Members",
    "NotEnoughMembersError",
    "ProtocolError",
    "Result",
    "Stop",
    "SubmissionError",
    "__version__",
    "attach",
    "from_arrays",
    "make_splice",
    "read_csv",
    "read_job_file",
    "read_parquet",
    "read_sequences",
    "read_svmlight",
]

#: Where a public name is defined. Nothing is imported before it is asked for, so that the command
#: line answers at once and a worker loads only what it needs.
_HOMES = {
    "LocalCluster": "clusters.local",
    "from_arrays": "data.arrays",
    "make_splice": "data.synthetic",
    "read_csv": "data.tabular",
    "read_parquet": "data.tabular",
    "read_sequences": "data.sequences",
    "read_svmlight": "data.svmlight",
    "Job": "job",
    "attach": "job",
    "Handle": "jobs.handle",
    "JobFile": "jobs.job_file",
    "read_job_file": "jobs.job_file",
    "Result": "jobs.result",
    "JobStatus": "jobs.status",
    **dict.fromkeys(
        ("BatchGradient", "Collective", "Evaluate", "ImportedAlgorithm", "Members", "Stop"),
        "jobs.settings",
    ),
    **dict.fromkeys(
        (
            "ConfigError",
            "DataError",
            "ElasticmlError",
            "JobFailedError",
            "NotEnoughMembersError",
            "ProtocolError",
            "SubmissionError",
        ),
        "errors",
    ),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("elasticml.terms").VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'elasticml' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"elasticml.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
