"""What a worker provides to its members: transport, executors, clock, hardware facts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.base import Parallel
from elasticml.collective.precise_sleep import precise_sleep
from elasticml.collective.transport import Transport
from elasticml.runtime.async_mode.async_loop import AsyncLoop, LoopContext
from elasticml.runtime.executors import Runner
from elasticml.runtime.fault_injection import FaultSlowdown
from elasticml.runtime.numa import node_cores
from elasticml.runtime.partitions import PartitionRequests
from elasticml.training.fingerprint import blas_threads, cpu_class


@dataclass(slots=True, kw_only=True)
class WorkerContext:
    """Shared by all jobs on a worker."""

    transport: Transport
    #: Runs the solver, one call at a time.
    compute: Runner
    #: Reads data, one block per thread, so that reading does not wait for computing.
    reading: Runner
    parallel: Parallel
    clock: Callable[[], float]
    host: str
    pid: int
    threads: int
    #: Gets partitions of Dask collections; None outside Dask.
    partitions: PartitionRequests | None = None
    #: Gets the objects of a job that cannot be imported here, pickled; None outside Dask.
    objects: Callable[[str], Awaitable[Mapping[str, bytes]]] | None = None
    #: The job whose solver runs now, if one does.
    computing: set[str] = field(default_factory=set)
    #: Number of cores on each NUMA node.
    node_cores: tuple[int, ...] = field(default_factory=node_cores)
    #: The bits of results depend on the processor's class and the number of BLAS threads.
    cpu: str = field(default_factory=cpu_class)
    blas_threads: int = field(default_factory=blas_threads)
    #: Sleeps for a number of seconds of ``clock``.
    pause: Callable[[float], Awaitable[None]] = precise_sleep
    #: Artificial slowdown for tests and studies; by default none.
    slowness: FaultSlowdown = field(default_factory=FaultSlowdown)
    #: Makes the training loop of a member of an asynchronous job.
    make_loop: Callable[[WorkerLoop, LoopContext], AsyncLoop] = AsyncLoop
