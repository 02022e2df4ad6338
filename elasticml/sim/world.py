"""The virtual world of one job: clock, network, workers, driver."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange, Solver, Work
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.control.driver_settings import settings_from_record
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.source import Source
from elasticml.errors import ElasticmlError, JobFailedError
from elasticml.ids import ExchangeId, MemberId
from elasticml.protocol import events as ev
from elasticml.sim.block_cache import BlockCache
from elasticml.sim.fault_schedule import Faults
from elasticml.sim.message_sizes import up_values
from elasticml.sim.network import Network
from elasticml.sim.virtual_clock import Clock
from elasticml.sim.virtual_driver import VirtualDriver
from elasticml.sim.virtual_member import VirtualMember
from elasticml.sim.virtual_worker import Worker
from elasticml.sim.world_options import WorldOptions
from elasticml.training.driver_session import DriverSession
from elasticml.training.fingerprint import blas_threads

#: More members than this: their single compute times are left out of the story.
COMPUTE_TIMES_MEMBERS_MAX = 1000


class World:
    """One simulated job.

    Parameters
    ----------
    record : mapping
        The job record.
    source : Source
    options : WorldOptions
    check_every_event : bool
        Re-derive all of the driver's invariants after every event (up to 64 members).
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        source: Source,
        options: WorldOptions,
        check_every_event: bool = False,
    ) -> None:
        self.options = options
        n_members = int((record.get("members") or {}).get("start") or 1)
        chances = np.random.SeedSequence(options.seed).spawn(2)
        self._rng = np.random.default_rng(chances[0])
        self.clock = Clock()
        self.network = Network(self.clock, options.latency_s, options.bandwidth, options.detect_s)
        self.library = BlockCache(source, record.get("chunk_bytes"), n_members, record.get("cache"))
        # Nobody replays what has only been reckoned.
        self.driver_session = DriverSession(record, source, tells_chunks=options.costs is None)
        settings = settings_from_record(record, self.library.n_blocks, source.needs_survey)
        self.driver = VirtualDriver(self, settings, check_every_event)
        self.faults = Faults(self, np.random.default_rng(chances[1]))
        self.workers: dict[str, Worker] = {}
        #: Numbers under which partials are known wherever they are.
        self.handles = itertools.count(1)
        self.blas_threads = blas_threads()
        self._n_members = n_members
        self._n_workers = 0
        self._has_begun = False
        self._parallel = Serial()
        self._tells_times = n_members <= COMPUTE_TIMES_MEMBERS_MAX

    # --- running --------------------------------------------------------------------------------

    def run(self) -> Iterator[None]:
        """Run the job, or run it on, to its end; yields when something has been told.

        Raises
        ------
        JobFailedError
            When nothing happens any more and nothing is planned.
        """
        if not self._has_begun:
            self._begin()
        story, told, told_s = self.driver_session.journal.story, 0, self.clock.now_s
        clock, driver, quiet_s_max = self.clock, self.driver, self.options.quiet_s_max
        while not driver.has_ended:
            clock.run(told_s + quiet_s_max)
            if len(story) != told:
                if not self._has_only_waited(story[told:]):
                    told_s = clock.now_s
                told = len(story)
                yield
            if clock.now_s - told_s > quiet_s_max and self._is_stuck():
                raise JobFailedError(
                    f"the simulated job stands still since second {told_s:g} in round "
                    f"{self.driver.machine.state.round}: nobody is to come back, and nothing else "
                    "is planned; plan a return, or give stop.seconds"
                )

    def _begin(self) -> None:
        self._has_begun = True
        self.driver_session.open(0.0)
        for _ in range(self._n_members):
            self.start_worker()
        self.faults.start()
        self._tick()

    def _tick(self) -> None:
        if not self.driver.has_ended:
            self.driver.feed(ev.Ticked(cause="clock"))
            self.clock.after(self.options.tick_s, self._tick)

    def _has_only_waited(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether nothing but idle rounds was told, of a job that counts them without end."""
        settings = self.driver.machine.state.settings
        if settings.rounds_max is not None or settings.seconds_max is not None:
            return False
        return all(record["event"] == "RoundEnded" and record["idle"] for record in records)

    def _is_stuck(self) -> bool:
        """Whether only ticks are left on the clock, and nobody whom a pre-emption could hit."""
        chance = self.faults.timers > 0 and bool(self.serving())
        return self.clock.waiting <= 1 + self.faults.timers and not chance

    # --- workers ----------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """Start a new process, which offers to serve."""
        worker = Worker(self, self._n_workers)
        self._n_workers += 1
        self.workers[worker.address] = worker
        worker.offer()

    def serving(self) -> list[Worker]:
        """List workers that have a member and no end planned, by slot."""
        found = [w for w in self.workers.values() if w.is_serving]
        return sorted(found, key=lambda w: w.slot or 0)

    def life_of(self, address: str, member: MemberId) -> VirtualMember | None:
        """Find a member's life; None when it is over."""
        worker = self.workers.get(address)
        life = None if worker is None or not worker.endpoint.is_alive else worker.life
        return life if life is not None and life.me == member and not life.is_over else None

    def worker_of(self, member: MemberId) -> Worker | None:
        """Find the living worker of a member."""
        record = self.driver.machine.state.membership.members.get(member)
        worker = None if record is None else self.workers.get(record.address)
        return worker if worker is not None and worker.endpoint.is_alive else None

    # --- what work takes --------------------------------------------------------------------------

    def make_solver(self) -> Solver:
        """Make a member's solver."""
        settings = dict(self.driver_session.record["algorithm"])
        assert self.driver_session.facts is not None
        return algorithm(settings.pop("name")).solver(settings, self.driver_session.facts)

    def solve(
        self, solver: Solver | None, work: Work, chunks: Sequence[Chunk]
    ) -> tuple[Arrays, float]:
        """Compute a member's share; return it and the seconds that it took here.

        Raises
        ------
        ElasticmlError
            When the solver fails.
        """
        assert solver is not None
        began_s = time.perf_counter()
        try:
            arrays = solver.compute(work, chunks, self._parallel)
        except ElasticmlError:
            raise
        except Exception as error:
            why = f"a solver failed: {type(error).__name__}: {error}"
            raise JobFailedError(why, reason=why) from error
        return arrays, time.perf_counter() - began_s

    def compute_seconds(
        self, slot: int, operation: str, examples: float, measured_s: float
    ) -> float:
        """Virtual seconds of a computation."""
        options = self.options
        is_measured = options.compute_s == "measured"
        seconds = measured_s if is_measured else options.compute_seconds(operation, examples)
        if options.jitter:
            seconds *= math.exp(options.jitter * self._rng.standard_normal())
        return seconds * options.slow.get(slot, 1.0)

    def merge_seconds(self, exchange: Exchange, n_inputs: int) -> float:
        """Virtual seconds of adding so many partials."""
        return n_inputs * up_values(exchange) * self.options.merge_s

    def summarised(self, summary: BlockSummary) -> None:
        """Take note of what a member has read of a block."""
        self.driver.summaries[summary.block] = summary

    def computed(self, exchange: ExchangeId, member: MemberId, seconds: float) -> None:
        """Take note of a computation and how long it took, for the story."""
        computations = self.driver.computations
        computations[member] = computations.get(member, 0) + 1
        if self._tells_times:
            times = self.driver.compute_s.setdefault(exchange, {})
            times[str(member.slot)] = round(seconds, 6)
