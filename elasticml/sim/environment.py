"""What a virtual world provides to its processes: time, a network, data, and the costs of work.

Processes know this, and each other only through the network. So the world, which starts and stops
them, is imported by none of them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np

from elasticml.algorithms.base import Arrays, Solver, Work
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary
from elasticml.errors import ElasticmlError, fault_of
from elasticml.evaluation.validation import make_solver
from elasticml.ids import ExchangeId, MemberId
from elasticml.sim.block_cache import BlockCache
from elasticml.sim.message_sizes import SharedExchange, shared_exchange
from elasticml.sim.network import Network, NetworkCard
from elasticml.sim.virtual_clock import Clock, Processors
from elasticml.specification.simulator import WorldOptions
from elasticml.training.driver_session import DriverSession
from elasticml.training.fingerprint import blas_threads

#: With more members, the story does not contain their individual compute times.
COMPUTE_TIMES_MEMBERS_MAX = 1000


class Environment:
    """The surroundings of the processes of a simulated job.

    Parameters
    ----------
    options : WorldOptions
    session : DriverSession
        The job's; it has the record and the source.
    n_members : int
        Members at the start.
    rng : Generator
        Draws the jitter of compute times.
    """

    def __init__(
        self,
        options: WorldOptions,
        session: DriverSession,
        n_members: int,
        rng: np.random.Generator,
    ) -> None:
        self.options = options
        self.session = session
        self.clock = Clock()
        self.processors = Processors(options.cores)
        self.network = Network(
            self.clock,
            options.latency_s,
            options.bandwidth,
            options.detect_s,
            options.message_s,
            self.processors,
        )
        #: The network cards of hosts whose processes share one.
        self._cards: dict[str, NetworkCard] = {}
        record = session.record
        self.library = BlockCache(session.source, record.chunk_bytes, n_members, record.cache)
        self.blas_threads = blas_threads()
        #: Handles of partials, unique in the world.
        self.handles = itertools.count(1)
        #: Summaries of the blocks that members have read.
        self.summaries: dict[int, BlockSummary] = {}
        #: Seconds that each slot's member computed in the current exchanges.
        self.compute_s: dict[ExchangeId, dict[str, float]] = {}
        #: Number of computations of each member; more than its exchanges would be repeated work.
        self.computations: dict[MemberId, int] = {}
        self._rng = rng
        self._parallel = Serial()
        self._tells_times = n_members <= COMPUTE_TIMES_MEMBERS_MAX
        #: The last header, and what all members share of its exchange.
        self._shared_header: Work | None = None
        self._shared: SharedExchange | None = None

    def card_of(self, host: str) -> NetworkCard:
        """Return the network card of a process on a host."""
        if self.options.host_links:
            return self._cards.setdefault(host, NetworkCard())
        return NetworkCard()

    def make_solver(self) -> Solver:
        """Create a member's solver."""
        record = self.session.record
        assert self.session.facts is not None
        return make_solver(record.algorithm, self.session.facts, record.validate)

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
            raise fault_of(error, "a solver") from error
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

    def shared(self, header: Work) -> SharedExchange:
        """Return what all members share of an exchange."""
        if self._shared is None or self._shared_header is not header:
            self._shared_header, self._shared = header, shared_exchange(header)
        return self._shared

    def summarised(self, summary: BlockSummary) -> None:
        """Record the summary of a block that a member has read."""
        self.summaries[summary.block] = summary

    def computed(self, exchange: ExchangeId, member: MemberId, seconds: float) -> None:
        """Record a computation and its duration for the story."""
        self.computations[member] = self.computations.get(member, 0) + 1
        if self._tells_times:
            times = self.compute_s.setdefault(exchange, {})
            times[str(member.slot)] = round(seconds, 6)
