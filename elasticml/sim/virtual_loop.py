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
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from elasticml.sim.network import Endpoint

Callback = Callable[..., object]


#: The virtual process in whose name a callback runs; None: the world itself.
PROCESS: contextvars.ContextVar[Endpoint | None] = contextvars.ContextVar("process", default=None)


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

    __slots__ = ("_when_s", "args", "callback", "context", "is_cancelled", "process")

    def __init__(
        self,
        callback: Callback,
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when_s: float,
    ) -> None:
        self.callback = callback
        self.args = args
        #: None: an action of the world, in no process.
        self.context = context
        self.process: Endpoint | None = None if context is None else context.get(PROCESS)
        self.is_cancelled = False
        self._when_s = when_s

    def when(self) -> float:
        """Return the time at which it is due."""
        return self._when_s

    def cancel(self) -> None:
        """Do not run it."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it has been cancelled."""
        return self.is_cancelled

    def run(self) -> None:
        """Run it; later if its process is paused, never if that is dead."""
        if self.is_cancelled:
            return
        assert self.context is not None
        process = self.process
        if process is not None:
            if process.is_paused:
                process.backlog.append((self.run, ()))
                return
            if not process.is_alive:
                return
        self.context.run(self.callback, *self.args)


class Alarm:
    """Lets the task that awaits it go on at a time, in one callback; see ``asyncio.Future``."""

    __slots__ = ("_asyncio_future_blocking", "_handle", "_t_s", "loop")

    def __init__(self, loop: VirtualLoop, t_s: float) -> None:
        self.loop = loop
        self._t_s = t_s
        self._asyncio_future_blocking = False
        #: None: cancelled, or not awaited yet.
        self._handle: VirtualHandle | None = None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait."""
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> VirtualLoop:
        """Return the event loop."""
        return self.loop

    def add_done_callback(self, callback: Callback, *, context: contextvars.Context) -> None:
        """Let the task go on then."""
        self._handle = self.loop.call_at(self._t_s, callback, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Let the task go on now, and be cancelled."""
        handle, self._handle = self._handle, None
        if handle is None or handle.is_cancelled:
            return False
        handle.cancel()
        self.loop.call_soon(handle.callback, self, context=handle.context)
        return True

    def result(self) -> None:
        """Raise CancelledError if it was cancelled."""
        if self._handle is None:
            raise asyncio.CancelledError


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop, which is also the clock of the network.

    Parameters
    ----------
    now_s : float
        The time at the start.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        #: Number of callbacks run.
        self.performed = 0
        #: Called with every callback before it runs; a test makes a digest of them.
        self.watch: Callable[[VirtualHandle], None] | None = None
        self.task_numbers = itertools.count()
        #: Unhandled errors, such as those of tasks that no other awaits.
        self.unhandled: list[BaseException] = []
        self._ready: deque[VirtualHandle] = deque()
        #: The times of timers, as a heap; the timers of each, in the order of planning.
        self._times: list[float] = []
        self._timers: dict[float, list[VirtualHandle]] = {}
        self._is_interrupted = False
        self._is_running = False
        self._is_closed = False
        self._sockets: dict[int, Any] = {}
        self._descriptors = itertools.count(1)

    # --- the clock of the world -----------------------------------------------------------------

    def at(self, t_s: float, action: Callback, *args: Any) -> None:
        """Plan an action of the world for a time; a time in the past means now."""
        self._plan(VirtualHandle(action, args, None, t_s if t_s > self.now_s else self.now_s))

    def after(self, seconds: float, action: Callback, *args: Any) -> None:
        """Plan an action of the world for ``seconds`` from now."""
        self.at(self.now_s + seconds, action, *args)

    def _plan(self, handle: VirtualHandle) -> None:
        planned = self._timers.get(when_s := handle.when())
        if planned is None:
            self._timers[when_s] = [handle]
            heapq.heappush(self._times, when_s)
        else:
            planned.append(handle)

    def waiting(self) -> int:
        """Return the number of timers that are planned."""
        return sum(not handle.is_cancelled for due in self._timers.values() for handle in due)

    def interrupt(self) -> None:
        """Make ``run`` return after the current callback."""
        self._is_interrupted = True

    def run(self, until_s: float) -> None:
        """Run callbacks until one interrupts, ``until_s`` is past, or none is planned.

        Exceptions of callbacks propagate.
        """
        self._is_interrupted = False
        ready, times = self._ready, self._times
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not self._is_interrupted:
                if not ready:
                    if not times or self.now_s > until_s:
                        return
                    self.now_s = heapq.heappop(times)
                    ready.extend(self._timers.pop(self.now_s))
                handle = ready.popleft()
                self.performed += 1
                if self.watch is not None:
                    self.watch(handle)
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.run()
        finally:
            self._is_running = False
            asyncio._set_running_loop(former)

    # --- asyncio --------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time."""
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """Run a callback as soon as those before it have run."""
        context = contextvars.copy_context() if context is None else context
        handle = VirtualHandle(callback, args, context, self.now_s)
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
        handle = VirtualHandle(callback, args, context, max(when, self.now_s))
        self._plan(handle)
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
        """Keep an unhandled error."""
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
            self._times.clear()
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
