"""A job in a virtual world, followed like one on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticml.data.source import Source
from elasticml.jobs.wire import Outcome
from elasticml.sim.run import Simulation


class SimulatedJob:
    """Runs a job in a virtual world while its story is asked for.

    Parameters
    ----------
    record : mapping
        The job record; its ``simulate`` section describes the world.
    source, test : Source, optional
        The data trained on, and the test data.

    Raises
    ------
    ConfigError, DataError
        When record, world or data are wrong.
    """

    def __init__(
        self, record: Mapping[str, Any], source: Source | None, test: Source | None
    ) -> None:
        self.spec = record
        self.source = source
        self.test = test
        self._simulation = Simulation(record, source)

    def batches(self, since: int = 0) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Let the world live on, and yield its story as it grows, from a record on; virtual times.

        Raises
        ------
        JobFailedError
            When the job stands still: everybody is gone and nobody is to come.
        """
        return self._simulation.run(since)

    def outcome(self) -> Outcome:
        """Return what the job has come to so far."""
        result = self._simulation.result()
        return Outcome(
            state=result.state,
            arrays={name: array.copy() for name, array in result.arrays.items()},
            snapshots={r: dict(arrays) for r, arrays in result.snapshots.items()},
            history=[dict(row) for row in result.rows],
            summary=dict(result.summary),
            facts=result.facts,
            error=result.error,
        )

    def cancel(self) -> None:
        """End the job now; what it has reached stays as its result."""
        self._simulation.cancel()
