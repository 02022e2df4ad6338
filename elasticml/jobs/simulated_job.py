"""A simulated job with the interface of a job on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticml.data.source import Source
from elasticml.jobs.rpc import JobOutcome
from elasticml.protocol.job_record import job_record
from elasticml.sim.simulation import Simulation


class SimulatedJob:
    """Simulates a job while its story is iterated.

    Parameters
    ----------
    record : mapping
        The job record; its ``simulate`` section has the options of the simulation.
    source : Source, optional
        The data; None if the job is simulated from its costs.

    Raises
    ------
    ConfigError, DataError
        When record, options or data are invalid.
    """

    def __init__(self, record: Mapping[str, Any], source: Source | None) -> None:
        self.record = job_record(record)
        self._simulation = Simulation(record, source)

    def batches(self, since: int = 0) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Advance the simulation and yield its story in batches, from a record number.

        Raises
        ------
        JobFailedError
            When the job cannot make progress: all members are lost and none will return.
        """
        return self._simulation.run(since)

    def outcome(self) -> JobOutcome:
        """Return the job's results so far."""
        result = self._simulation.result()
        return JobOutcome(
            state=result.state,
            arrays={name: array.copy() for name, array in result.arrays.items()},
            snapshots={r: dict(arrays) for r, arrays in result.snapshots.items()},
            history=[dict(row) for row in result.rows],
            summary=dict(result.summary),
            facts=result.facts,
            error=result.error,
        )

    def cancel(self) -> None:
        """Cancel the job; its partial results remain available."""
        self._simulation.cancel()
