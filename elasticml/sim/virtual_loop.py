"""An asyncio event loop in virtual time, on which the agents of all processes of a world run.

When no callback is ready, the loop goes on to the time of the next timer. Callbacks that are due at
the same time run in the order of planning. Each callback belongs to the virtual process in whose
context it was scheduled; those of a paused process wait, those of a dead one are dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from elasticml.sim.network import Endpoint

Callback = Callable[..., object]


class Owner(Protocol):
    """The virtual process that a callback belongs to."""

    name: str
    endpoint: Endpoint
    #: Its tasks that have not ended.
    tasks: weakref.WeakSet[asyncio.Task[Any]]


#: The virtual process in whose name a callback runs; None: the world itself.
PROCESS: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("process", default=None)


class VirtualTask(asyncio.Task[Any]):
    """A task with a number as its hash: sets of tasks have the same order in every run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: VirtualLoop, **more: Any) -> None:
        self.number = next(loop.task_numbers)
        super().__init__(coroutine, loop=loop, **more)
        # Those of dead processes are never finished.
        self._log_destroy_pending = False
        process = PROCESS.get()
        if process is not None:
            process.tasks.add(self)

    def __hash__(self) -> int:
        """Return the number of the task."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Whether it is the same task."""
        return self is other


class VirtualHandle:
    """A callback that is to run; see ``asyncio.Handle``."""

    __slots__ = ("_at_s", "args", "callback", "context", "is_cancelled", "loop", "process")

    def __init__(
        self,
        loop: VirtualLoop,
        callback: Callback,
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        at_s: float | None,
    ) -> None:
        self.loop = loop
        self.callback = callback
        self.args = args
        #: None: an action of the world, in no process.
        self.context = context
        self.process: Owner | None = None if context is None else context.get(PROCESS)
        self.is_cancelled = False
        #: When it is due; None if it is ready.
        self._at_s = at_s

    def when(self) -> float:
        """Return the time at which it is due."""
        return self.loop.now_s if self._at_s is None else self._at_s

    def cancel(self) -> None:
        """Do not run it."""
        if not self.is_cancelled:
            self.is_cancelled = True
            if self._at_s is not None:
                self.loop.waiting -= 1

    def cancelled(self) -> bool:
        """Whether it has been cancelled."""
        return self.is_cancelled

    def due(self) -> None:
        """Take it from the timers."""
        if not self.is_cancelled:
            self.loop.waiting -= 1
        self._at_s = None

    def run(self) -> None:
        """Run it; later if its process is paused, never if that is dead."""
        if self.is_cancelled:
            return
        if self.context is None:
            self.callback(*self.args)
            return
        if self.process is not None:
            endpoint = self.process.endpoint
            if endpoint.is_paused:
                endpoint.backlog.append((self.run, ()))
                return
            if not endpoint.is_alive:
                return
        self.context.run(self.callback, *self.args)


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop, which is also the clock of the network.

    Parameters
    ----------
    now_s : float
        The time at the start.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        #: Number of callbacks run, and of timers that are planned.
        self.performed = 0
        self.waiting = 0
        #: Called with every callback before it runs; a test makes a digest of them.
        self.watch: Callable[[VirtualHandle], None] | None = None
        self.task_numbers = itertools.count()
        #: Errors that nobody has handled, such as those of tasks that nobody awaits.
        self.unhandled: list[BaseException] = []
        self._ready: deque[VirtualHandle] = deque()
        self._timers: list[tuple[float, int, VirtualHandle]] = []
        self._numbers = itertools.count()
        self._is_interrupted = False
        self._is_running = False
        self._is_closed = False
        self._sockets: dict[int, Any] = {}
        self._descriptors = itertools.count(1)

    # --- the clock of the world -----------------------------------------------------------------

    def at(self, t_s: float, action: Callback, *args: Any) -> None:
        """Plan an action of the world for a time; a time in the past means now."""
        self._plan(max(t_s, self.now_s), VirtualHandle(self, action, args, None, t_s))

    def after(self, seconds: float, action: Callback, *args: Any) -> None:
        """Plan an action of the world for ``seconds`` from now."""
        self.at(self.now_s + seconds, action, *args)

    def _plan(self, t_s: float, handle: VirtualHandle) -> None:
        self.waiting += 1
        # Timers of the same time are due in the order of planning.
        heapq.heappush(self._timers, (t_s, next(self._numbers), handle))

    def interrupt(self) -> None:
        """Make ``run`` return after the current callback."""
        self._is_interrupted = True

    def run(self, until_s: float) -> None:
        """Run callbacks until one interrupts, ``until_s`` is past, or none is planned.

        Exceptions of callbacks propagate.
        """
        self._is_interrupted = False
        ready, timers = self._ready, self._timers
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not self._is_interrupted:
                if not ready:
                    if not timers or self.now_s > until_s:
                        return
                    self._advance()
                handle = ready.popleft()
                self.performed += 1
                if self.watch is not None:
                    self.watch(handle)
                handle.run()
        finally:
            self._is_running = False
            asyncio._set_running_loop(former)

    def _advance(self) -> None:
        """Go on to the next time at which a timer is due."""
        timers, ready = self._timers, self._ready
        now_s = self.now_s = timers[0][0]
        while timers and timers[0][0] <= now_s:
            handle = heapq.heappop(timers)[2]
            handle.due()
            ready.append(handle)

    # --- asyncio --------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time."""
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """Run a callback as soon as those before it have run."""
        context = contextvars.copy_context() if context is None else context
        handle = VirtualHandle(self, callback, args, context, None)
        if not self._is_closed:
            self._ready.append(handle)
        return handle

    #: Everything runs in one thread.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: Any = None
    ) -> Any:
        """Run a callback after some seconds."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Any = None
    ) -> Any:
        """Run a callback at a time."""
        context = contextvars.copy_context() if context is None else context
        handle = VirtualHandle(self, callback, args, context, when)
        self._plan(max(when, self.now_s), handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **more: Any) -> Any:
        """Start a coroutine."""
        if self._is_closed:
            coro.close()
        return VirtualTask(coro, self, **more)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callback, *args: Any
    ) -> Any:
        """Call a function at once, in place of a thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Whether a callback runs."""
        return self._is_running

    def is_closed(self) -> bool:
        """Whether the loop has been closed."""
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error that nobody has handled."""
        if "exception" in context:
            self.unhandled.append(context["exception"])

    def close(self) -> None:
        """End all tasks where they are; nothing runs any more."""
        self._is_closed = True
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            tasks = sorted(asyncio.all_tasks(self), key=hash)  # in the order of their start
            for task in tasks:
                # Otherwise the garbage collector would do so, outside of any loop.
                task.get_coro().close()
        finally:
            asyncio._set_running_loop(former)
            self._ready.clear()
            self._timers.clear()
            self._sockets.clear()

    # --- sockets --------------------------------------------------------------------------------

    def register(self, sock: Any) -> int:
        """Return a descriptor for a virtual socket."""
        descriptor = next(self._descriptors)
        self._sockets[descriptor] = sock
        return descriptor

    def forget(self, descriptor: int) -> None:
        """Forget a socket that has been closed."""
        self._sockets.pop(descriptor, None)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callback, *args: Any
    ) -> None:
        """Call back while there is something to read."""
        self._sockets[fd].watch_reads(callback)

    def remove_reader(self, fd: Any) -> bool:
        """Do not call back any more."""
        return fd in self._sockets and self._sockets[fd].watch_reads(None)

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Callback, *args: Any
    ) -> None:
        """Call back while there is room to write."""
        self._sockets[fd].watch_writes(callback)

    def remove_writer(self, fd: Any) -> bool:
        """Do not call back any more."""
        return fd in self._sockets and self._sockets[fd].watch_writes(None)
