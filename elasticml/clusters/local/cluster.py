"""``LocalCluster``: a scheduler process and worker processes on this machine.

Unlike Dask's class of the same name it has no nannies, so a lost worker stays lost until another is
requested. Every process has a session of its own, so that Ctrl-C reaches the client only. All
processes end with the client, unless ``keep`` is set.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from elasticml.clusters.local.control_pipe import ControlPipe
from elasticml.clusters.local.process_options import ClusterOptions
from elasticml.errors import ConfigError, SubmissionError
from elasticml.ids import parse_size

if TYPE_CHECKING:
    from distributed.core import Status

    from elasticml.runtime.fault_injection import How


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorker:
    """One worker process; ``state`` is ``standby``, ``starting``, ``running`` or ``leaving``."""

    name: str
    address: str | None
    pid: int | None
    state: str


class _Done:
    """A completed awaitable: Dask's client may await ``close()``."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class LocalCluster:
    """Start a Dask scheduler and worker processes on this machine.

    A job's ``faults`` may kill its workers and start new ones. Nothing is started before
    ``start()`` or ``with``. ``distributed.Client(cluster)`` connects.

    Parameters
    ----------
    workers : int, at least 1
        Initial number of worker processes.
    threads : int, at least 1
        Compute threads per worker, for Dask, OpenMP, BLAS and numba alike.
    memory_limit : "auto" or size
        Memory per worker, such as ``"2 GiB"`` or bytes; ``"auto"`` divides the machine's memory
        among the workers.
    keep : bool
        Whether the cluster outlives its client; end it with ``shutdown()``, or by its address.
    name : str
        Display name; also the prefix of the log folder's name.
    grace_s : float, seconds
        Longest time that a worker takes from SIGTERM to its exit.
    dashboard_address : str or None
        Such as ``"127.0.0.1:8787"``; None for no dashboard.
    start_timeout_s : float, seconds
        Longest time for workers to register; the first start compiles kernels.
    log_dir : path or None
        Folder for the logs of all processes. None is a temporary one, which is removed with the
        cluster unless something failed.
    workers_max : int or None
        Most workers that a job's policies may request; None is ``workers``.
    slowdown : mapping of int to float
        Factor by which a worker's computations are slowed, by the worker's index in start order;
        the extra time is spent on real work. For tests and studies.
    algorithms : sequence of str or None
        Algorithms that the cluster will run, such as ``["cocoa"]``: workers compile their kernels
        before they register, which takes some seconds the first time. None compiles all.
    layout : (str, str), optional
        Kind and type of values of the only chunks whose kernels they compile then, such as
        ``("csr", "float64")``. Others are compiled when they are first used.

    Raises
    ------
    ConfigError
        When an argument is out of range.

    Examples
    --------
    >>> with em.LocalCluster(workers=1, algorithms=["cocoa"]) as cluster:
    ...     with Client(cluster.scheduler_address) as other:
    ...         em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop).run(other).summary["examples"]
    200
    """

    def __init__(
        self,
        workers: int = 4,
        threads: int = 1,
        memory_limit: str | int = "auto",
        keep: bool = False,
        name: str = "elasticml",
        *,
        grace_s: float = 5.0,
        dashboard_address: str | None = None,
        start_timeout_s: float = 120.0,
        log_dir: str | Path | None = None,
        workers_max: int | None = None,
        slowdown: Mapping[int, float] | None = None,
        algorithms: Sequence[str] | None = None,
        layout: tuple[str, str] | None = None,
    ) -> None:
        _check_count("workers", workers)
        _check_count("workers_max", workers if workers_max is None else workers_max)
        _check_count("threads", threads)
        _check_seconds("grace_s", grace_s)
        _check_seconds("start_timeout_s", start_timeout_s)
        self.name = name
        self._workers = workers
        self._workers_max = workers if workers_max is None else workers_max
        self._slowdown = _slowdown(slowdown or {})
        self._algorithms = None if algorithms is None else list(algorithms)
        self._layout = layout
        self._threads = threads
        self._memory_limit = _memory_bytes(memory_limit)
        self._keep = keep
        self._grace_s = grace_s
        self._dashboard_address = dashboard_address
        self._start_timeout_s = start_timeout_s
        self._given_log_dir = None if log_dir is None else Path(log_dir).absolute()
        self._own_dir: Path | None = None
        self._pipe: ControlPipe | None = None
        self._address: str | None = None
        self._has_closed = False

    # Lifecycle.

    def launch(self) -> Self:
        """Start the cluster in the background; ``start()`` waits until it is ready."""
        if self._has_closed:
            raise ConfigError("the cluster is closed; make a new LocalCluster")
        if self._pipe is None:
            self._pipe = ControlPipe(self._options())
        return self

    def start(self) -> Self:
        """Start the cluster; return when all workers have registered.

        Raises
        ------
        SubmissionError
            When the scheduler or a worker does not start; the message holds its last log line.
        """
        self.launch()
        assert self._pipe is not None
        if self._address is None:
            try:
                self._address = self._pipe.first_answer(self._start_timeout_s)["address"]
            except BaseException as error:
                self._end(keep_logs=isinstance(error, SubmissionError))
                raise
        return self

    def close(self) -> _Done:
        """End all processes and wait for them; with ``keep``, only disconnect."""
        if self._keep and self._address is not None and self._pipe is not None:
            self._pipe.detach()
            self._pipe = None
            self._has_closed = True
        else:
            self.shutdown()
        return _Done()

    def shutdown(self) -> None:
        """End all processes, even with ``keep``, and wait for them."""
        self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self

    # Queries.

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler, for ``distributed.Client``.

        Raises
        ------
        ConfigError
            When the cluster has not been started.
        """
        if self._address is None:
            raise _not_running()
        return self._address

    @property
    def status(self) -> Status:
        """State of the cluster as Dask's client asks for it."""
        from distributed.core import Status

        if self._has_closed:
            return Status.closed
        return Status.created if self._address is None else Status.running

    @property
    def scheduler_pid(self) -> int:
        """Process id of the scheduler process."""
        if self._pipe is None:
            raise _not_running()
        return self._pipe.pid

    @property
    def log_dir(self) -> Path:
        """Folder of ``scheduler.log``, ``worker-N.log`` and ``forkserver.log``."""
        if self._given_log_dir is not None:
            return self._given_log_dir
        if self._own_dir is None:
            raise ConfigError("the cluster has no logs yet; call start() first")
        return self._own_dir

    def workers(self) -> list[LocalWorker]:
        """List the workers and standbys that have not ended, oldest first."""
        return [LocalWorker(**row) for row in self._ask(op="workers")["workers"]]

    def scale(self, n: int) -> None:
        """Start or end workers until there are ``n``; the youngest leave first, after a notice."""
        _check_count("workers", n)
        self._ask(self._start_timeout_s + self._grace_s, op="scale", n=n)

    def prepare(self, n: int) -> None:
        """Ensure at least ``n`` standby processes, which ``bring_back`` uses first."""
        self._ask(op="prepare", n=n)

    def bring_back(self, n: int) -> None:
        """Start ``n`` workers, standbys first; return when they have registered."""
        self._ask(self._start_timeout_s, op="bring_back", n=n)

    def lose(self, workers: Sequence[str], how: How = "kill", grace_s: float = 5.0) -> None:
        """End workers as a planned fault does.

        Parameters
        ----------
        workers : sequence of str
            Names or addresses.
        how : {"kill", "terminate", "notice"}
            SIGKILL; or SIGTERM, then SIGKILL after the grace; or the same after a notice.
        grace_s : float, seconds
            The grace; unused by ``"kill"``.
        """
        self._ask(grace_s, op="lose", workers=list(workers), how=how, grace_s=grace_s)

    def slow(self, workers: Sequence[str], factor: float) -> None:
        """Slow down workers' computations by ``factor``, with real work; 1 restores full speed."""
        self._ask(op="slow", workers=list(workers), factor=factor)

    # Internals.

    def _options(self) -> ClusterOptions:
        prefix = re.sub(r"[^\w.-]", "-", self.name) + "-"
        own_dir = self._own_dir = Path(tempfile.mkdtemp(prefix=prefix))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        scratch_dir = own_dir / "scratch"
        scratch_dir.mkdir()
        return ClusterOptions(
            name=self.name,
            workers=self._workers,
            workers_max=self._workers_max,
            slowdown=self._slowdown,
            algorithms=self._algorithms,
            layout=self._layout,
            threads=self._threads,
            memory_limit=self._memory_limit,
            keep=self._keep,
            grace_s=self._grace_s,
            dashboard_address=self._dashboard_address,
            start_timeout_s=self._start_timeout_s,
            log_dir=str(self.log_dir),
            scratch_dir=str(scratch_dir),
            own_dir=str(own_dir),
        )

    def _ask(self, takes_s: float = 0.0, **command: Any) -> dict[str, Any]:
        if self._address is None or self._pipe is None:
            raise _not_running()
        return self._pipe.ask(takes_s, **command)

    def _end(self, *, keep_logs: bool = False) -> None:
        pipe, self._pipe, self._has_closed = self._pipe, None, True
        if pipe is not None:
            # Keep the logs of a scheduler that did not shut down cleanly: they are evidence.
            keep_logs = pipe.end() != 0 or keep_logs
        if self._own_dir is not None and not (keep_logs and self._given_log_dir is None):
            shutil.rmtree(self._own_dir, ignore_errors=True)


def _not_running() -> ConfigError:
    return ConfigError("the cluster is not running; use it in `with` or call start() first")


def _check_count(what: str, n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"{what}: got {n!r}, wanted a whole number of at least 1; set {what}=1")


def _slowdown(factors: Mapping[int, float]) -> dict[str, float]:
    """Return the factors by worker name."""
    for index, factor in factors.items():
        if not (isinstance(index, int) and index >= 0 and factor >= 1.0 and math.isfinite(factor)):
            raise ConfigError(
                f"slowdown: got {{{index!r}: {factor!r}}}, wanted the index of a worker, "
                "counted from 0, and a factor of at least 1"
            )
    return {f"worker-{index}": float(factor) for index, factor in factors.items()}


def _check_seconds(what: str, seconds: float) -> None:
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ConfigError(f"{what}: got {seconds!r}, wanted seconds above 0")


def _memory_bytes(limit: str | int) -> int | None:
    """Return a memory limit in bytes; None for ``"auto"``."""
    if limit == "auto":
        return None
    try:
        size = parse_size(limit)
    except ValueError as error:
        raise ConfigError(
            f"memory_limit: got {limit!r}, wanted 'auto', bytes or a size such as '2 GiB'"
        ) from error
    if size < 1:
        raise ConfigError(f"memory_limit: got {limit!r}, wanted more than 0 bytes")
    return size
