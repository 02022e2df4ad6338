"""What a member finds around itself on its worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticml.algorithms.base import Parallel
from elasticml.collective.transport import Transport
from elasticml.runtime.execution import Runner


@dataclass(slots=True, kw_only=True)
class Environment:
    """The same for all jobs on a worker."""

    transport: Transport
    #: Runs the solver, one call at a time.
    compute: Runner
    #: Reads data, so that reading does not wait for computing.
    reading: Runner
    parallel: Parallel
    clock: Callable[[], float]
    host: str
    pid: int
    threads: int
