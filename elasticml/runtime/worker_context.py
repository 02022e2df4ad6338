"""What a member finds around itself on its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from elasticml.algorithms.base import Parallel
from elasticml.collective.precise_sleep import precise_sleep
from elasticml.collective.transport import Transport
from elasticml.runtime.executors import Runner
from elasticml.runtime.fault_injection import FaultSlowdown
from elasticml.runtime.numa import node_cores
from elasticml.training.fingerprint import blas_threads, cpu_class


@dataclass(slots=True, kw_only=True)
class WorkerContext:
    """The same for all jobs on a worker."""

    transport: Transport
    #: Runs the solver, one call at a time.
    compute: Runner
    #: Reads data, so that reading does not wait for computing; as many blocks at once as it has
    #: threads.
    reading: Runner
    parallel: Parallel
    clock: Callable[[], float]
    host: str
    pid: int
    threads: int
    #: Cores on each NUMA node.
    node_cores: tuple[int, ...] = field(default_factory=node_cores)
    #: What the bits of its results depend on: its processor's class, its linear algebra's threads.
    cpu: str = field(default_factory=cpu_class)
    blas_threads: int = field(default_factory=blas_threads)
    #: Waits for so many seconds, on the clock's time.
    pause: Callable[[float], Awaitable[None]] = precise_sleep
    #: Made slower on purpose, for tests and studies; 1 times as slow where nobody asked for it.
    slowness: FaultSlowdown = field(default_factory=FaultSlowdown)
