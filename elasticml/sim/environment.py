"""What a virtual world provides to its processes: time, a network, and the costs of work.

Processes know this, and each other only through the network. So the world, which starts and stops
them, is imported by none of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from elasticml.algorithms.base import Exchange, Work
from elasticml.protocol.events import ExchangeHeader
from elasticml.sim.cost_only_job import UP_VALUES
from elasticml.sim.network import Network, NetworkCard
from elasticml.sim.processors import Processors
from elasticml.sim.virtual_loop import VirtualLoop
from elasticml.specification.simulator import WorldOptions
from elasticml.training.array_buffers import n_values
from elasticml.training.trainer_runner import TrainerRunner

#: What a trainer requests, or its header at a member.
Request = Exchange | ExchangeHeader[Any]
#: The operation of a mini-batch, for ``simulate.compute_s``.
BATCH = "batch"


class Environment:
    """The surroundings of the processes of a simulated job.

    Parameters
    ----------
    options : WorldOptions
    loop : VirtualLoop
    rng : Generator
        Draws the jitter of compute times.
    """

    def __init__(self, options: WorldOptions, loop: VirtualLoop, rng: np.random.Generator) -> None:
        self.options = options
        self.loop = loop
        self.processors = Processors(options.cores)
        self.network = Network(
            loop,
            options.latency_s,
            options.bandwidth,
            options.detect_s,
            options.message_s,
            self.processors,
        )
        #: The network cards of hosts whose processes share one.
        self._cards: dict[str, NetworkCard] = {}
        self._rng = rng

    def card_of(self, host: str) -> NetworkCard:
        """Return the network card of a process on a host."""
        if self.options.host_links and host:
            return self._cards.setdefault(host, NetworkCard())
        return NetworkCard()

    def _disturbed(self, slot: int, seconds: float) -> float:
        """Return the seconds that a member takes for work of so many on an ordinary one."""
        options = self.options
        if options.jitter:
            seconds *= math.exp(options.jitter * self._rng.standard_normal())
        return seconds * options.slow.get(slot, 1.0)

    def computing_s(self, slot: int, work: Work, rows: int, spent_s: float) -> float:
        """Return the seconds of a member's computation, which has really taken ``spent_s``."""
        if self.options.compute_s == "measured":
            return self._disturbed(slot, spent_s)
        # The examples that it visits, in one pass or several.
        examples = rows * float(work.parameters.get("local_epochs", 1.0))
        return self._disturbed(slot, self.options.compute_seconds(work.operation, examples))

    def batch_s(self, slot: int, examples: int, spent_s: float) -> float:
        """Return the seconds of a mini-batch, which has really taken ``spent_s``."""
        options, seconds = self.options, spent_s
        if options.compute_s != "measured":
            seconds = options.compute_seconds(BATCH, examples)
        return self._disturbed(slot, seconds) + options.overhead_seconds(BATCH)

    def merging_s(self, exchange: Request, n: int) -> float:
        """Return the seconds of adding ``n`` partials of an exchange."""
        return n * up_values(exchange) * self.options.merge_s

    def delivering_s(self, training: TrainerRunner, args: tuple[Any, ...]) -> float:
        """Return the seconds of adding the partials of an exchange at the driver."""
        _, inputs, anchor = args
        assert training.exchange is not None
        overhead = self.options.overhead_seconds(training.exchange.operation)
        return self.merging_s(training.exchange, len(inputs) + len(anchor)) + overhead

    def reading_s(self, source: Any, nbytes: int) -> float:
        """Return the seconds of reading from a source."""
        if getattr(source, "is_in_memory", False):
            return 0.0  # the driver has sent the data
        return nbytes / self.options.read_bandwidth


def up_values(exchange: Request) -> int:
    """Return how many doubles a partial has, or represents."""
    values = exchange.parameters.get(UP_VALUES)
    return n_values(exchange.returns) if values is None else int(values)
