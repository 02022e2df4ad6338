"""Executors: threads for blocking work, an inline runner for tests, thread pools for kernels."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, InvalidStateError, ThreadPoolExecutor, wait
from typing import Any, Final, Protocol

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import Serial, shares
from elasticml.errors import ControlFlowError, users_place
from elasticml.runtime.numa import node_cores, numa_nodes, pin_thread, spanned

#: Interpreter's thread switch interval in processes with members: a busy Python thread delays a
#: frame by half a millisecond instead of five (measured in the prototypes of the collective).
SWITCH_INTERVAL_S: Final = 5e-4
#: Longest processor time of a brief call.
BRIEF_S: Final = 2e-3
#: Longest wall time of a brief call: one that sleeps or waits for a disk is not brief.
BRIEF_WALL_S: Final = 2e-2
#: Brief calls, in the thread, after which a function runs on the event loop.
BRIEF_MIN: Final = 16
#: What a call that was not brief takes from the count of those that were: one in ten may be longer,
#: as when memory is touched for the first time.
NOT_BRIEF: Final = 10
#: More brief calls than this do not count.
BRIEF_MAX: Final = 64
#: Longest processor time of a call that takes no more than that; after a longer one, or one that
#: waited, a function needs ``BRIEF_AGAIN`` further brief calls.
NEARLY_BRIEF_S: Final = 5e-3
BRIEF_AGAIN: Final = 1000


class Runner(Protocol):
    """Runs calls in order, at most as many at a time as it has threads."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function and return its result; exceptions propagate."""
        ...

    def place(self) -> str:
        """Return where the running call is, such as ``huber.py:42 in compute``; "" if unknown."""
        ...

    def close(self) -> None:
        """Accept no more calls."""
        ...


#: Exceptions that a future of asyncio refuses, or replaces by its own.
_CONVERTED: Final = (StopIteration, CancelledError, InvalidStateError)


def contained(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that users may have written, so that its exceptions can be awaited.

    Raises
    ------
    ControlFlowError
        When it raises what would end the process, or the caller, and not only the call.
    """
    try:
        return function(*args)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, _CONVERTED):
            raise
        raise ControlFlowError from error


class ThreadRunner:
    """Runs calls in its own threads, one by default, and leaves the event loop free."""

    def __init__(self, name: str, n_threads: int = 1) -> None:
        self._idents: list[int] = []
        self._executor = ThreadPoolExecutor(
            n_threads, name, initializer=lambda: self._idents.append(threading.get_ident())
        )
        self._is_closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in a thread; after ``close`` the call is cancelled."""
        if self._is_closed:
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, contained, function, *args)

    def place(self) -> str:
        """Return where the call of the first thread is."""
        frame = sys._current_frames().get(self._idents[0]) if self._idents else None
        return "" if frame is None else users_place(traceback.extract_stack(frame))

    def close(self) -> None:
        """End the threads after their current calls; cancel queued calls."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)


class Long:
    """A call that may take long although earlier calls of the same function were brief."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.function(*args)


class Repeated:
    """A function that is called again and again; counts its brief calls for a BriefRunner.

    Parameters
    ----------
    function : callable
    """

    __slots__ = ("function", "n_brief")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        #: Brief calls, less what calls that were not brief have taken.
        self.n_brief = 0

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.function(*args)

    def count(self, processor_s: float, wall_s: float) -> None:
        """Record how long a call took."""
        if processor_s <= BRIEF_S and wall_s <= BRIEF_WALL_S:
            self.n_brief = min(self.n_brief + 1, BRIEF_MAX)
        elif processor_s <= NEARLY_BRIEF_S and wall_s <= BRIEF_WALL_S:
            self.n_brief -= NOT_BRIEF
        else:
            self.n_brief = -BRIEF_AGAIN


def _never_called(*args: Any) -> None:
    raise AssertionError


class BriefRunner:
    """Runs calls in one thread, or on the event loop if the function's calls have been brief.

    Switching to a thread and back takes longer than a trainer of a small model needs for a round,
    and all members wait meanwhile. A call that is marked as :class:`Long` always runs in the
    thread, and does not count. Brief calls are counted by the function's name, or apart for each
    :class:`Repeated`.

    Parameters
    ----------
    name : str
        Name of the thread.
    clock : callable, optional
        Processor time of the calling thread, in seconds: other load on the machine does not count.
    wall : callable, optional
        Wall time in seconds.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.thread_time,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._thread = ThreadRunner(name)
        self._clock, self._wall = clock, wall
        #: By the function's name; functions without a name are counted together.
        self._repeated: dict[str, Repeated] = {}
        #: Calls that run in the thread or wait for it.
        self._n_in_thread = 0
        self._is_closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function; after ``close`` the call is cancelled."""
        call: Callable[..., Any] = function
        if not isinstance(function, Long):
            counted = function if isinstance(function, Repeated) else self._counted(function)
            if counted.n_brief >= BRIEF_MIN and not self._n_in_thread:
                if self._is_closed:
                    raise asyncio.CancelledError
                return contained(self._timed, counted, function, *args)
            call = functools.partial(self._timed, counted, function)
        self._n_in_thread += 1
        try:
            return await self._thread.run(call, *args)
        finally:
            self._n_in_thread -= 1

    def _counted(self, function: Callable[..., Any]) -> Repeated:
        # A functools.partial has no name.
        name = str(getattr(function, "__name__", ""))
        counted = self._repeated.get(name)
        if counted is None:
            # Only counts: a method would keep the member of the first job on this worker.
            counted = self._repeated[name] = Repeated(_never_called)
        return counted

    def _timed(self, counted: Repeated, function: Callable[..., Any], *args: Any) -> Any:
        began_s, began_wall_s = self._clock(), self._wall()
        try:
            return function(*args)
        finally:
            counted.count(self._clock() - began_s, self._wall() - began_wall_s)

    def place(self) -> str:
        """Return where the call in the thread is."""
        return self._thread.place()

    def close(self) -> None:
        """End the thread after its current call; cancel queued calls."""
        self._is_closed = True
        self._thread.close()


class ThreadParallel:
    """A pool of threads for one member's kernels, which release the GIL.

    Parameters
    ----------
    n_threads : int
        At least 1; the calling thread is one of them.
    n_nodes : int, optional
        Number of NUMA nodes to assume, as on another machine; by default the number that the
        threads span on this machine.
    """

    def __init__(self, n_threads: int, n_nodes: int | None = None) -> None:
        self.n_threads = n_threads
        self._n_nodes = n_nodes
        self._teams: dict[int, list[_Team]] = {}
        self._pool = (
            ThreadPoolExecutor(max_workers=n_threads - 1, thread_name_prefix="em-kernel")
            if n_threads > 1
            else None
        )

    @property
    def n_nodes(self) -> int:
        """Number of NUMA nodes that the threads span."""
        if self._n_nodes is None:
            self._n_nodes = spanned(self.n_threads, node_cores())
        return self._n_nodes

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; return the results in the items' order."""
        return _map_in_pool(self._pool, function, items)

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Call ``function(k, team)`` for every team, in the team's own threads on its NUMA node.

        With fewer threads than teams, teams share a thread.
        """
        if n == 1:
            return [function(0, self)]
        if n not in self._teams:
            all_nodes = numa_nodes()
            nodes = all_nodes if len(all_nodes) > 1 else ()
            each = shares(self.n_threads, n)
            pools = [
                _pool_on(nodes[k % len(nodes)] if nodes else (), each[k])
                for k in range(min(n, self.n_threads))
            ]
            self._teams[n] = [_Team(pools[k % len(pools)], each[k]) for k in range(n)]
        futures = [team.pool.submit(function, k, team) for k, team in enumerate(self._teams[n])]
        wait(futures)  # after an exception no other team may still write to the caller's arrays
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for teams in self._teams.values():
            for team in teams:
                team.pool.shutdown(wait=False, cancel_futures=True)


class _Team:
    """Some of a member's threads; the calling thread is one of them."""

    n_nodes = 1

    def __init__(self, pool: ThreadPoolExecutor, n_threads: int) -> None:
        self.n_threads = n_threads
        self.pool = pool

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; return the results in the items' order."""
        return _map_in_pool(self.pool if self.n_threads > 1 else None, function, items)

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Call ``function`` for one team after another, each with all threads."""
        return [function(k, self) for k in range(n)]


def _pool_on(cores: Sequence[int], n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max_workers=n_threads,
        thread_name_prefix="em-team",
        initializer=pin_thread,
        initargs=(cores,),
    )


def _map_in_pool(
    pool: ThreadPoolExecutor | None, function: Callable[[Any], Any], items: Sequence[Any]
) -> list[Any]:
    """Process the first item in the calling thread and the others in the pool."""
    if pool is None or len(items) < 2:
        return [function(item) for item in items]
    futures = [pool.submit(function, item) for item in items[1:]]
    first = function(items[0])
    return [first, *(future.result() for future in futures)]


def parallel(n_threads: int, n_nodes: int | None = None) -> Serial | ThreadParallel:
    """Return the parallelism of a member with ``n_threads`` threads on ``n_nodes`` NUMA nodes."""
    return Serial() if n_threads <= 1 else ThreadParallel(n_threads, n_nodes)
