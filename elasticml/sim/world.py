"""The virtual world of one job: driver, workers, faults, and the time that passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elasticml.data.source import Source
from elasticml.errors import JobFailedError
from elasticml.protocol.job_record import JobRecord
from elasticml.sim.environment import Environment
from elasticml.sim.fault_schedule import Faults
from elasticml.sim.virtual_driver import DriverProcess
from elasticml.sim.virtual_links import FrameSizes
from elasticml.sim.virtual_loop import VirtualLoop
from elasticml.sim.virtual_process import VirtualProcess
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
    checkpoints : path, optional
        Where the job's checkpoints are written; by default none are written.
    """

    def __init__(
        self,
        record: JobRecord,
        source: Source,
        options: WorldOptions,
        check_every_event: bool = False,
        resumed: Checkpoint | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        chances = np.random.SeedSequence(options.seed).spawn(2)
        began_s = 0.0 if resumed is None else resumed.seconds
        self.loop = loop = VirtualLoop(began_s)  # type: ignore[abstract]
        self.environment = Environment(options, loop, np.random.default_rng(chances[0]))
        writes = record.checkpoint is not None and checkpoints is not None
        if record.checkpoint is not None:
            # A simulation does not touch the checkpoints of a real run.
            place = {**record.json["checkpoint"], "path": str(checkpoints)} if writes else None
            record = record.changed(checkpoint=place)
        processes: dict[str, VirtualProcess] = {}
        sizes = None if options.costs is None else FrameSizes()
        self.driver = DriverProcess(self.environment, processes, sizes)
        self.workers = Workers(
            self.environment,
            record.job,
            record.threads or 1,
            processes,
            sizes,
            self.driver.invite,
            self.driver.gone,
        )
        rng = np.random.default_rng(chances[1])
        self.faults = Faults(self.environment, self.driver, self.workers, rng)
        self.driver.start(
            record,
            source,
            self.faults,
            resumed=resumed,
            check_every_event=check_every_event,
            writes=writes,
        )
        self._n_members = record.members.start
        self._has_begun = False

    @property
    def session(self) -> DriverSession:
        """The job's story, history and results."""
        return self.driver.agent.driver_session

    # --- running --------------------------------------------------------------------------------

    def run(self) -> Iterator[None]:
        """Run the job to its end, or continue it; yield when the story has grown.

        Raises
        ------
        JobFailedError
            When nothing happens any more and nothing is planned.
        """
        if not self._has_begun:
            self._has_begun = True
            self.loop.after(0.0, self._begin)
        loop, driver = self.loop, self.driver
        quiet_s_max = self.environment.options.quiet_s_max
        story, n_seen, seen_s = self.session.journal.story, 0, loop.now_s
        while not driver.has_ended:
            loop.run(seen_s + quiet_s_max)
            if len(story) != n_seen:
                if not self._has_only_waited(story[n_seen:]):
                    seen_s = loop.now_s
                n_seen = len(story)
                yield
            if loop.now_s - seen_s > quiet_s_max:
                if self._is_stuck():
                    raise JobFailedError(
                        f"the simulated job is stuck since second {seen_s:g} in round "
                        f"{self.driver.machine.state.round}: no member will return, and nothing "
                        "else is planned; plan a return, or set stop.seconds"
                    )
                seen_s = loop.now_s

    def _begin(self) -> None:
        self.session.open(self.loop.now_s)
        self.loop.create_task(self._watch())
        for _ in range(self._n_members):
            self.workers.start()
        self.faults.start()
        self._tick()

    async def _watch(self) -> None:
        """Interrupt the loop whenever the story has grown."""
        grown = self.driver.agent.grown
        while True:
            await grown.wait()
            grown.clear()
            self.loop.interrupt()

    def _tick(self) -> None:
        if not self.driver.has_ended:
            self.driver.tick()
            self.loop.after(self.environment.options.tick_s, self._tick)

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
        return self.loop.waiting() <= 1 + self.faults.timers and not chance

    def perform(self, action: Any) -> None:
        """Let an action of the world take place now, and what follows at once."""
        self.loop.after(0.0, action)
        self.loop.run(-1.0)

    def close(self) -> None:
        """End all processes where they are."""
        self.loop.close()
