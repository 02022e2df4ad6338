"""Run a job in a virtual world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticml.algorithms.base import Arrays
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.source import Source, source_from_spec, survey_all
from elasticml.errors import ConfigError
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.sim.cost_only_job import NAME, CostSource, sums_of
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.world import World
from elasticml.specification.simulator import WorldOptions
from elasticml.training.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """The result of a simulated job; all times are virtual seconds."""

    #: "done", "failed" or "cancelled".
    state: str
    story: list[dict[str, Any]]
    #: The history: one row per round, and one for the final model.
    rows: list[dict[str, Any]]
    #: Models at the start of rounds, if the job keeps them.
    snapshots: dict[int, Arrays]
    #: The final model.
    arrays: Arrays
    summary: dict[str, Any]
    facts: DatasetStats | None
    #: The error of a failed job, from ``errors.error_to_dict``.
    error: dict[str, Any] | None
    #: Number of events and messages in the world.
    actions: int


class Simulation:
    """A job in a virtual world: the real machines, policies, trainer and solvers.

    The same record, source and options give the same story and the same model, bit for bit, unless
    ``compute_s`` is "measured": then times differ, and decisions that depend on them.

    Parameters
    ----------
    record : mapping
        The job record that a scheduler gets; its ``simulate`` has the world's options.
    source : Source, optional
        The data; by default those of the record. Not used if the options contain costs.
    options : WorldOptions, optional
        By default those of the record.
    check_every_event : bool
        Check the driver's invariants after every event, with up to 64 members.
    resumed : Checkpoint, optional
        The checkpoint from which the job resumes, with new members, at its second.
    checkpoints : path, optional
        Where the job's checkpoints are written; by default none are written.

    Raises
    ------
    ConfigError, DataError
        When the record, the options or the data are invalid.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        source: Source | None = None,
        *,
        options: WorldOptions | None = None,
        check_every_event: bool = False,
        resumed: Checkpoint | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        job = job_record(record)
        options = options_from_section(job.simulate) if options is None else options
        if options.costs is not None:
            job, source = _cost_job(job, options)
        if source is None:
            source = source_from_spec(job.data)
        if getattr(source, "is_in_memory", False) and getattr(source, "rows", None) is None:
            raise ConfigError(
                "rows in memory can be simulated only in their own process; pass their source"
            )
        if getattr(source, "is_in_memory", False):
            source = survey_all(source)
        self.world = World(job, source, options, check_every_event, resumed, checkpoints)

    def run(self, since: int = 0) -> Iterator[list[dict[str, Any]]]:
        """Run the job to its end, or continue it; yield the story in batches as it grows.

        Parameters
        ----------
        since : int
            Number of the first record to yield.

        Raises
        ------
        JobFailedError
            When the job is stuck: all members are gone and none will return.
        """
        story = self.world.session.journal.story
        for _ in self.world.run():
            if len(story) > since:
                yield story[since:]
                since = len(story)
        if len(story) > since:
            yield story[since:]

    def cancel(self) -> None:
        """End the job now; its last model becomes its result."""
        self.world.perform(self.world.driver.cancel)

    def close(self) -> None:
        """End the world's processes where they are; the results remain.

        Otherwise the garbage collector would end them, in any order.
        """
        self.world.close()

    def __del__(self) -> None:
        """Close the world."""
        with suppress(AttributeError):  # an invalid record
            self.close()

    def result(self) -> SimResult:
        """Return the job's result so far."""
        session = self.world.session
        return SimResult(
            state=session.state,
            story=list(session.journal.story),
            rows=list(session.journal.rows),
            snapshots=session.journal.snapshots,
            arrays=session.result_arrays(),
            summary={**session.summary, "simulated": True},
            facts=session.facts,
            error=session.error,
            actions=self.world.loop.performed,
        )


def simulate(
    record: Mapping[str, Any],
    source: Source | None = None,
    *,
    options: WorldOptions | None = None,
    check_every_event: bool = False,
) -> SimResult:
    """Run a job in a virtual world to its end; see :class:`Simulation`.

    A failed job has a result with ``state="failed"`` and its ``error``.

    Raises
    ------
    ConfigError, DataError
        When the record, the options or the data are invalid.
    JobFailedError
        When the job is stuck: all members are gone and none will return.
    """
    simulation = Simulation(record, source, options=options, check_every_event=check_every_event)
    for _ in simulation.run():
        pass
    return simulation.result()


def _cost_job(job: JobRecord, options: WorldOptions) -> tuple[JobRecord, CostSource]:
    """Replace a record's data and algorithm by those of a job that has costs only."""
    assert options.costs is not None
    source = CostSource(costs=options.costs, members=job.members.start)
    algorithm = {"name": NAME, "whole": sums_of(source), "probes": options.costs.probes}
    anchor = job.algorithm.get("anchor")
    if anchor is not None:
        algorithm["anchor"] = anchor
    # Rows that are not computed have no scores.
    without: dict[str, Any] = {"validate": None, "evaluate": False}
    return job.changed(data=source.spec(), algorithm=algorithm, **without), source
