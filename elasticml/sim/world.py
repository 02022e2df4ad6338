"""The virtual world of one job: clock, network, workers, driver."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays, Solver, Work
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
from elasticml.sim.message_sizes import ExchangeSizes, sizes_of
from elasticml.sim.network import Network
from elasticml.sim.virtual_clock import Clock
from elasticml.sim.virtual_driver import VirtualDriver
from elasticml.sim.virtual_member import VirtualMember
from elasticml.sim.virtual_worker import Worker
from elasticml.specification.simulator import WorldOptions
from elasticml.story.records import RoundEnded, records_of
from elasticml.training.driver_session import DriverSession
from elasticml.training.fingerprint import blas_threads

#: With more members, the story does not contain their individual compute times.
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
        Check all of the driver's invariants after every event (up to 64 members).
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
        # A run that is simulated from costs cannot be replayed.
        self.driver_session = DriverSession(record, source, tells_chunks=options.costs is None)
        settings = settings_from_record(record, self.library.n_blocks, source.needs_survey)
        rate = min(settings.copy_bytes_per_s, options.copy_bandwidth)
        settings = replace(settings, copy_bytes_per_s=rate)
        self.driver = VirtualDriver(self, settings, check_every_event)
        self.faults = Faults(self, np.random.default_rng(chances[1]))
        self.workers: dict[str, Worker] = {}
        #: Handles of partials, unique in the world.
        self.handles = itertools.count(1)
        self.blas_threads = blas_threads()
        self._n_members = n_members
        self._n_workers = 0
        self._has_begun = False
        self._parallel = Serial()
        #: The header whose sizes were asked for last, and they.
        self._sized: Work | None = None
        self._sizes = ExchangeSizes(0, 0, 0, 0)
        self._tells_times = n_members <= COMPUTE_TIMES_MEMBERS_MAX

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
        story, n_seen, seen_s = self.driver_session.journal.story, 0, self.clock.now_s
        clock, driver, quiet_s_max = self.clock, self.driver, self.options.quiet_s_max
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
        """Whether the records are only idle rounds, in a job without a limit of rounds or time."""
        settings = self.driver.machine.state.settings
        if settings.rounds_max is not None or settings.seconds_max is not None:
            return False
        ended = list(records_of(RoundEnded, records))
        return len(ended) == len(records) and all(record.idle for record in ended)

    def _is_stuck(self) -> bool:
        """Whether only ticks are planned, and there is no member that could be pre-empted."""
        chance = self.faults.timers > 0 and bool(self.serving())
        return self.clock.waiting <= 1 + self.faults.timers and not chance

    # --- workers ----------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """Start a new worker, which offers itself to the driver."""
        worker = Worker(self, self._n_workers)
        self._n_workers += 1
        self.workers[worker.address] = worker
        worker.offer()

    def serving(self) -> list[Worker]:
        """Return the workers with a member that are not about to end, by slot."""
        serving = [w for w in self.workers.values() if w.is_serving]
        return sorted(serving, key=lambda w: w.slot or 0)

    def life_of(self, address: str, member: MemberId) -> VirtualMember | None:
        """Return a living member; None if it is gone."""
        worker = self.workers.get(address)
        life = None if worker is None or not worker.endpoint.is_alive else worker.life
        return life if life is not None and life.me == member and not life.is_over else None

    def worker_of(self, member: MemberId) -> Worker | None:
        """Return the living worker of a member, or None."""
        record = self.driver.machine.state.membership.members.get(member)
        worker = None if record is None else self.workers.get(record.address)
        return worker if worker is not None and worker.endpoint.is_alive else None

    # --- work and its duration --------------------------------------------------------------------

    def make_solver(self) -> Solver:
        """Create a member's solver."""
        settings = dict(self.driver_session.record["algorithm"])
        assert self.driver_session.facts is not None
        return algorithm(settings.pop("name")).solver(settings, self.driver_session.facts)

    def solve(
        self, solver: Solver | None, work: Work, chunks: Sequence[Chunk]
    ) -> tuple[Arrays, float]:
        """Compute a member's partial; return it and the real seconds of the computation.

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
        """Return the virtual seconds of a computation."""
        options = self.options
        is_measured = options.compute_s == "measured"
        seconds = measured_s if is_measured else options.compute_seconds(operation, examples)
        if options.jitter:
            seconds *= math.exp(options.jitter * self._rng.standard_normal())
        return seconds * options.slow.get(slot, 1.0)

    def merge_seconds(self, n_values: int, n_inputs: int) -> float:
        """Return the virtual seconds of adding ``n_inputs`` partials of ``n_values``."""
        return n_inputs * n_values * self.options.merge_s

    def sizes(self, header: Work) -> ExchangeSizes:
        """Return the sizes of an exchange's messages, which all members share."""
        if self._sized is not header:
            self._sized, self._sizes = header, sizes_of(header)
        return self._sizes

    def summarised(self, summary: BlockSummary) -> None:
        """Record the summary of a block that a member has read."""
        self.driver.summaries[summary.block] = summary

    def computed(self, exchange: ExchangeId, member: MemberId, seconds: float) -> None:
        """Record a computation and its duration for the story."""
        computations = self.driver.computations
        computations[member] = computations.get(member, 0) + 1
        if self._tells_times:
            times = self.driver.compute_s.setdefault(exchange, {})
            times[str(member.slot)] = round(seconds, 6)
