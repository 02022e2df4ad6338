"""The virtual world of one job: driver, workers, faults, and the time that passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from elasticml.control.checkpoint_state import restore
from elasticml.control.driver_settings import settings_from_record
from elasticml.data.source import Source
from elasticml.errors import JobFailedError
from elasticml.protocol import events as ev
from elasticml.protocol.job_record import JobRecord
from elasticml.sim.environment import Environment
from elasticml.sim.fault_schedule import Faults
from elasticml.sim.virtual_driver import VirtualDriver
from elasticml.sim.virtual_member import VirtualMember
from elasticml.sim.virtual_worker import Workers
from elasticml.specification.simulator import WorldOptions
from elasticml.story.records import RoundEnded, records_of
from elasticml.training.checkpoint import Checkpoint
from elasticml.training.driver_session import DriverSession


class World:
    """One simulated job.

    Parameters
    ----------
    record : JobRecord
    source : Source
    options : WorldOptions
    check_every_event : bool
        Check all of the driver's invariants after every event (up to 64 members).
    resumed : Checkpoint, optional
        The checkpoint from which the job resumes, with new members, at its second.
    """

    def __init__(
        self,
        record: JobRecord,
        source: Source,
        options: WorldOptions,
        check_every_event: bool = False,
        resumed: Checkpoint | None = None,
    ) -> None:
        n_members = record.members.start
        chances = np.random.SeedSequence(options.seed).spawn(2)
        session = DriverSession(record, source, resumed, tells_chunks=options.costs is None)
        rng = np.random.default_rng(chances[0])
        self.environment = Environment(options, session, n_members, rng)
        n_blocks = self.environment.library.n_blocks
        settings = settings_from_record(record, n_blocks, source.needs_survey)
        rate = min(settings.copy_bytes_per_s, options.copy_bandwidth)
        settings = replace(settings, copy_bytes_per_s=rate, warms_up=options.warm_up_s > 0)
        self.driver = VirtualDriver(self.environment, settings, check_every_event)
        if resumed is not None:
            self.environment.clock.now_s = resumed.seconds
            restore(self.driver.machine, resumed.resume_point.machine, resumed.progress)
        self.workers = Workers(self.environment, self.driver.connect, VirtualMember)
        rng = np.random.default_rng(chances[1])
        self.faults = Faults(self.environment, self.driver, self.workers, rng)
        self.driver.cluster = self.faults
        self._n_members = n_members
        self._has_begun = False

    # --- running --------------------------------------------------------------------------------

    def run(self) -> Iterator[None]:
        """Run the job to its end, or continue it; yield when the story has grown.

        Raises
        ------
        JobFailedError
            When nothing happens any more and nothing is planned.
        """
        if not self._has_begun:
            self._begin()
        clock, driver = self.environment.clock, self.driver
        quiet_s_max = self.environment.options.quiet_s_max
        story, n_seen, seen_s = self.environment.session.journal.story, 0, clock.now_s
        while not driver.has_ended:
            clock.run(seen_s + quiet_s_max)
            if len(story) != n_seen:
                if not self._has_only_waited(story[n_seen:]):
                    seen_s = clock.now_s
                n_seen = len(story)
                yield
            if clock.now_s - seen_s > quiet_s_max and self._is_stuck():
                raise JobFailedError(
                    f"the simulated job is stuck since second {seen_s:g} in round "
                    f"{self.driver.machine.state.round}: no member will return, and nothing else "
                    "is planned; plan a return, or set stop.seconds"
                )

    def _begin(self) -> None:
        self._has_begun = True
        self.environment.session.open(self.environment.clock.now_s)
        for _ in range(self._n_members):
            self.workers.start()
        self.faults.start()
        self._tick()

    def _tick(self) -> None:
        if not self.driver.has_ended:
            self.driver.feed(ev.Ticked(cause="clock"))
            self.environment.clock.after(self.environment.options.tick_s, self._tick)

    def _has_only_waited(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the records are only idle rounds, in a job without a limit of rounds or time."""
        settings = self.driver.machine.state.settings
        if settings.rounds_max is not None or settings.seconds_max is not None:
            return False
        ended = list(records_of(RoundEnded, records))
        return len(ended) == len(records) and all(record.idle for record in ended)

    def _is_stuck(self) -> bool:
        """Whether only ticks are planned, and there is no member that could be pre-empted."""
        chance = self.faults.timers > 0 and bool(self.workers.serving())
        return self.environment.clock.waiting <= 1 + self.faults.timers and not chance
