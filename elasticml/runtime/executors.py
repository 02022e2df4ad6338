"""Where heavy work runs: in threads for real, in line for tests; and solvers' parallelism."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, Protocol

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import Serial, shares
from elasticml.runtime.numa import node_cores, numa_nodes, pin_thread, spanned

#: Seconds that a call shall take on the event loop, and how many as brief ones in a row there must
#: have been in a thread before. One that was longer there must be made up for by many more.
BRIEF_S: Final = 5e-4
#: Seconds on the clock: a call that sleeps, or waits for a disk, is not brief either.
BRIEF_WALL_S: Final = 2e-2
BRIEF_MIN: Final = 16
BRIEF_AGAIN: Final = 1000


class Runner(Protocol):
    """Runs calls in their order, no more at a time than it has threads."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function and return its result; exceptions pass through."""
        ...

    def close(self) -> None:
        """Accept no more calls."""
        ...


class ThreadRunner:
    """Threads of its own, so that the event loop stays free while they work; one by default."""

    def __init__(self, name: str, n_threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(max_workers=n_threads, thread_name_prefix=name)
        self._is_closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in a thread; calls that come after the end are cancelled, too."""
        if self._is_closed:
            raise asyncio.CancelledError
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    def close(self) -> None:
        """Let the threads end after their present calls; cancel those that wait."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)


class Long:
    """A call that may take long, however brief those of the same function have been."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self._function(*args)


class BriefRunner:
    """One thread, or the event loop itself for functions whose calls have been brief for long.

    To a thread and back takes longer than what a trainer of a small model does with a round, and
    all members wait meanwhile. A call that is marked as :class:`Long` has the thread, and tells
    nothing of others.

    Parameters
    ----------
    name : str
        Of the thread.
    clock : callable, optional
        Seconds that the calling thread has computed: what others do with the processor counts for
        nothing.
    wall : callable, optional
        Seconds that have passed.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.thread_time,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._thread = ThreadRunner(name)
        self._clock, self._wall = clock, wall
        #: Brief calls of each function in a row, by its name; of those without one together.
        self._brief: dict[str, int] = {}
        #: Calls that are in the thread, or wait for it.
        self._n_there = 0
        self._is_closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function; calls that come after the end are cancelled."""
        call: Callable[..., Any] = functools.partial(self._timed, function)
        if isinstance(function, Long):
            call = function
        elif self._brief.get(_name(function), 0) >= BRIEF_MIN and not self._n_there:
            if self._is_closed:
                raise asyncio.CancelledError
            return self._timed(function, *args)
        self._n_there += 1
        try:
            return await self._thread.run(call, *args)
        finally:
            self._n_there -= 1

    def _timed(self, function: Callable[..., Any], *args: Any) -> Any:
        began_s, began_wall_s, name = self._clock(), self._wall(), _name(function)
        try:
            return function(*args)
        finally:
            is_brief = (
                self._clock() - began_s <= BRIEF_S and self._wall() - began_wall_s <= BRIEF_WALL_S
            )
            self._brief[name] = self._brief.get(name, 0) + 1 if is_brief else -BRIEF_AGAIN

    def close(self) -> None:
        """Let the thread end after its present call; cancel those that wait."""
        self._is_closed = True
        self._thread.close()


def _name(function: Callable[..., Any]) -> str:
    # What is called need not be a function: a part of one has no name.
    return str(getattr(function, "__name__", ""))


class ThreadParallel:
    """A pool of threads for one member's kernels, which release the GIL.

    Parameters
    ----------
    n_threads : int
        >= 1; the calling thread is one of them.
    n_nodes : int, optional
        NUMA nodes that they shall count as spanning, as they did elsewhere; by default those of
        this machine that they do.
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
        """NUMA nodes that the threads span."""
        if self._n_nodes is None:
            self._n_nodes = spanned(self.n_threads, node_cores())
        return self._n_nodes

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; results in the items' order."""
        return _mapped(self._pool, function, items)

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Call ``function(k, team)`` for every team, in threads of its own that stay on its node.

        Where there are fewer threads than teams, several of these have one in turn.
        """
        if n == 1:
            return [function(0, self)]
        if n not in self._teams:
            here = numa_nodes()
            nodes = here if len(here) > 1 else ()
            each = shares(self.n_threads, n)
            pools = [
                _pool_on(nodes[k % len(nodes)] if nodes else (), each[k])
                for k in range(min(n, self.n_threads))
            ]
            self._teams[n] = [_Team(pools[k % len(pools)], each[k]) for k in range(n)]
        futures = [team.pool.submit(function, k, team) for k, team in enumerate(self._teams[n])]
        wait(futures)  # whoever raises must not leave others at work on what is the caller's
        return [future.result() for future in futures]

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for teams in self._teams.values():
            for team in teams:
                team.pool.shutdown(wait=False, cancel_futures=True)


class _Team:
    """Some threads of a member; the one in which it was called is one of them."""

    n_nodes = 1

    def __init__(self, pool: ThreadPoolExecutor, n_threads: int) -> None:
        self.n_threads = n_threads
        self.pool = pool

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; results in the items' order."""
        return _mapped(self.pool if self.n_threads > 1 else None, function, items)

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Let one team after another have the threads."""
        return [function(k, self) for k in range(n)]


def _pool_on(cores: Sequence[int], n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max_workers=n_threads,
        thread_name_prefix="em-team",
        initializer=pin_thread,
        initargs=(cores,),
    )


def _mapped(
    pool: ThreadPoolExecutor | None, function: Callable[[Any], Any], items: Sequence[Any]
) -> list[Any]:
    """Have the pool take all items but the first, which the calling thread takes."""
    if pool is None or len(items) < 2:
        return [function(item) for item in items]
    futures = [pool.submit(function, item) for item in items[1:]]
    first = function(items[0])
    return [first, *(future.result() for future in futures)]


def parallel(n_threads: int, n_nodes: int | None = None) -> Serial | ThreadParallel:
    """Make the parallelism of a member with so many threads, which span so many nodes."""
    return Serial() if n_threads <= 1 else ThreadParallel(n_threads, n_nodes)
