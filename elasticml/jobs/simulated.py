"""A job in a virtual world, followed like one on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticml.data.source import Source
from elasticml.errors import JobFailedError
from elasticml.jobs.wire import Outcome
from elasticml.sim.run import SimResult, simulate


class SimulatedJob:
    """Runs a job in a virtual world when its story is asked for.

    Parameters
    ----------
    record : mapping
        The job record; its ``simulate`` section describes the world.
    source, test : Source, optional
        The data trained on, and the test data.
    """

    def __init__(
        self, record: Mapping[str, Any], source: Source | None, test: Source | None
    ) -> None:
        self.spec = record
        self.source = source
        self.test = test
        self._result: SimResult | None = None

    def batches(self, since: int = 0) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield the whole story at once; times in it are virtual."""
        if self._result is None:
            self._result = simulate(self.spec, self.source)
        yield self._result.story[since:]

    def outcome(self) -> Outcome:
        """Return what the job has come to.

        Raises
        ------
        JobFailedError
            When it was interrupted: a virtual world that has not ended leaves nothing.
        """
        result = self._result
        if result is None:
            raise JobFailedError("the simulation had not ended", reason="interrupted")
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
        """Do nothing: nobody waits for a virtual world."""
