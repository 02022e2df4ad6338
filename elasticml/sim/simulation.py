"""Run a job in a virtual world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elasticml.algorithms.base import Arrays
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.source import Source, source_from_spec
from elasticml.errors import ConfigError
from elasticml.sim.cost_only_job import NAME, CostSource, sums_of
from elasticml.sim.world import World
from elasticml.sim.world_options import WorldOptions, options_from_section


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """What a simulated job has come to; all times are virtual seconds."""

    #: "done", "failed" or "cancelled".
    state: str
    story: list[dict[str, Any]]
    #: The history: one row a round, and one for the final model.
    rows: list[dict[str, Any]]
    #: Models at the beginning of rounds, where the job asked for them.
    snapshots: dict[int, Arrays]
    #: The final model.
    arrays: Arrays
    summary: dict[str, Any]
    facts: DatasetStats | None
    #: What made the job fail, as ``errors.error_to_dict`` writes it.
    error: dict[str, Any] | None
    #: Events and messages that the world has lived through.
    actions: int


class Simulation:
    """A job in a virtual world: the real machines, policies, trainer and solvers.

    The same record, source and options give the same story and the same model, bit for bit (unless
    ``compute_s`` is "measured": then times differ, and what follows from them).

    Parameters
    ----------
    record : mapping
        The job record, as a scheduler gets it; ``record["simulate"]`` holds the world's options.
    source : Source, optional
        The data; by default what ``record["data"]`` names. Not used where options name costs.
    options : WorldOptions, optional
        By default those of ``record["simulate"]``.
    check_every_event : bool
        Re-derive the driver's invariants after every event, up to 64 members.

    Raises
    ------
    ConfigError, DataError
        When the record, the options or the data are wrong.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        source: Source | None = None,
        *,
        options: WorldOptions | None = None,
        check_every_event: bool = False,
    ) -> None:
        options = options_from_section(record.get("simulate")) if options is None else options
        if options.costs is not None:
            record, source = _cost_job(record, options)
        if source is None:
            source = source_from_spec(record["data"])
        if getattr(source, "is_in_memory", False) and getattr(source, "rows", None) is None:
            raise ConfigError(
                "arrays in memory can be simulated only where they are; give their source, too"
            )
        self.world = World(record, source, options, check_every_event)

    def run(self, since: int = 0) -> Iterator[list[dict[str, Any]]]:
        """Run the job, or run it on; yield the story in batches as it is told, to its end.

        Parameters
        ----------
        since : int
            Number of the first record to yield.

        Raises
        ------
        JobFailedError
            When the job stands still: everybody is gone and nobody is to come.
        """
        story = self.world.driver_session.journal.story
        for _ in self.world.run():
            if len(story) > since:
                yield story[since:]
                since = len(story)
        if len(story) > since:
            yield story[since:]

    def cancel(self) -> None:
        """End the job now; what it has reached stays as its result."""
        self.world.driver.cancel()

    def result(self) -> SimResult:
        """Return what the job has reached so far."""
        world, driver_session = self.world, self.world.driver_session
        return SimResult(
            state=driver_session.state,
            story=list(driver_session.journal.story),
            rows=list(driver_session.journal.rows),
            snapshots=driver_session.journal.snapshots,
            arrays={} if driver_session.training is None else driver_session.training.last_arrays(),
            summary={**driver_session.summary, "simulated": True},
            facts=driver_session.facts,
            error=driver_session.error,
            actions=world.clock.performed,
        )


def simulate(
    record: Mapping[str, Any],
    source: Source | None = None,
    *,
    options: WorldOptions | None = None,
    check_every_event: bool = False,
) -> SimResult:
    """Run a job in a virtual world to its end; see :class:`Simulation`.

    A job that fails is a result with ``state="failed"`` and its ``error``.

    Raises
    ------
    ConfigError, DataError
        When the record, the options or the data are wrong before anything has run.
    JobFailedError
        When the job stands still: everybody is gone and nobody is to come.
    """
    simulation = Simulation(record, source, options=options, check_every_event=check_every_event)
    for _ in simulation.run():
        pass
    return simulation.result()


def _cost_job(record: Mapping[str, Any], options: WorldOptions) -> tuple[dict[str, Any], Any]:
    """Put the stand-ins for data and algorithm into a record."""
    assert options.costs is not None
    members = int((record.get("members") or {}).get("start") or 1)
    source = CostSource(costs=options.costs, members=members)
    algorithm = {"name": NAME, "whole": sums_of(source), "probes": options.costs.probes}
    anchor = (record.get("algorithm") or {}).get("anchor")
    if anchor is not None:
        algorithm["anchor"] = anchor
    return {**record, "data": source.spec(), "algorithm": algorithm}, source
