"""A virtual process: its place on the network, the context of its callbacks, and its computations.

Computations run in place, one at a time; their results come after the modelled seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any

from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.base import Parallel, Work
from elasticml.protocol.events import ExchangeHeader, Shape
from elasticml.runtime.async_mode.async_loop import AsyncLoop, LoopContext, Pause
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.collective_agent import CollectiveAgent
from elasticml.runtime.executors import contained
from elasticml.runtime.fault_injection import FaultSlowdown
from elasticml.sim.environment import Environment
from elasticml.sim.network import Endpoint
from elasticml.sim.virtual_loop import PROCESS, Alarm
from elasticml.training.trainer_runner import TrainerRunner


class VirtualProcess:
    """One process, from its start to its end.

    Parameters
    ----------
    environment : Environment
    name : str
        Its address.
    host : str
    """

    def __init__(self, environment: Environment, name: str, host: str) -> None:
        self.environment = environment
        self._loop = environment.loop
        self.name = name
        self.host = host
        self.endpoint = Endpoint(name, environment.card_of(host))
        #: Accepts links; None before the process listens.
        self.accept: Callable[[Any], None] | None = None
        #: Seconds by which the computation under way is ahead of the event loop.
        self.ahead_s = 0.0
        #: It has compiled its kernels, which takes time once.
        self.is_warm = False
        #: What it sends before leaves then.
        self.busy_until_s = 0.0
        #: The member that computes now, and what.
        self.computing: tuple[CollectiveAgent, Work] | None = None
        self._context = contextvars.Context()
        self._context.run(PROCESS.set, self.endpoint)

    def clock(self) -> float:
        """Return the time in this process."""
        return self._loop.now_s + self.ahead_s

    def do(self, action: Callable[..., None], *args: Any) -> None:
        """Act on the network: now, or once what it is busy with is done."""
        if self.busy_until_s > self._loop.now_s:
            perform = self.environment.network.perform
            self._loop.at(self.busy_until_s, perform, self.endpoint, action, *args)
        else:
            action(*args)

    def enter(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in this process, from outside."""
        return self._context.copy().run(function, *args)


class ChargedSlowdown(FaultSlowdown):
    """Where a computation ends, its modelled time passes."""

    def __init__(self, process: VirtualProcess) -> None:
        super().__init__()
        self._process = process

    def begin(self) -> float | None:
        """Return the processor time, if it is to be measured."""
        is_measured = self._process.environment.options.compute_s == "measured"
        return time.thread_time() if is_measured else None

    def end(self, began_s: float | None, parallel: Parallel) -> None:
        """Let the modelled time of a computation pass; that of a mini-batch passes in its loop."""
        process = self._process
        if process.computing is not None:
            agent, work = process.computing
            spent_s = 0.0 if began_s is None else time.thread_time() - began_s
            seconds = process.environment.computing_s(agent.me.slot, work, agent.n_rows, spent_s)
            process.ahead_s += seconds

    def merged(self, header: ExchangeHeader[Shape], n: int) -> None:
        """Let the process be busy: what it sends next leaves later."""
        process = self._process
        seconds = process.environment.merging_s(header, n)
        process.busy_until_s = max(process.busy_until_s, process.clock()) + seconds


class VirtualRunner:
    """Runs calls in place, one at a time; see ``executors.Runner``."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process
        self._environment = process.environment
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function; return its result after the seconds that it takes."""
        loop = self._environment.loop
        async with self._turn:
            result, seconds = self._call(function, args)
            if seconds > 0.0:
                await Alarm(loop, self._environment.processors.done_s(loop.now_s, seconds))
            return result

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, float]:
        """Call the function; return its result and its modelled seconds."""
        process, environment = self._process, self._environment
        inner = getattr(function, "function", function)  # of one that is marked
        owner: Any = getattr(inner, "__self__", None)
        if isinstance(owner, CollectiveAgent):
            process.computing = owner, args[0]
            try:
                return contained(inner, *args), process.ahead_s
            finally:
                process.computing, process.ahead_s = None, 0.0
        name, seconds = getattr(inner, "__name__", ""), 0.0
        if isinstance(owner, TrainerRunner) and name == "deliver":
            seconds = environment.delivering_s(owner, args)
        elif name == "warm_up" and not process.is_warm:
            process.is_warm, seconds = True, environment.options.warm_up_s
        result = contained(inner, *args)
        if isinstance(owner, ChunkStore) and name in ("read", "load"):
            nbytes = result[0] if name == "load" else sum(chunk.nbytes for chunk in result[0])
            seconds += environment.reading_s(args[0], nbytes)
        elif name == "survey":
            seconds += environment.reading_s(owner, owner.blocks()[args[0]].nbytes)
        return result, seconds

    def place(self) -> str:
        """Return "": calls take no time in which one could look."""
        return ""

    def close(self) -> None:
        """Do nothing: there is no thread."""


class VirtualAsyncLoop(AsyncLoop):
    """The training loop of an asynchronous member, in virtual time in place of a thread.

    A request is served at once, also within a mini-batch: its step has been taken, and only its
    time is still to pass.
    """

    def __init__(self, worker: WorkerLoop, context: LoopContext, process: VirtualProcess) -> None:
        super().__init__(worker, context)
        self._news = asyncio.Event()
        self._process = process
        context.send_queue.freed = self._news.set

    def start(self) -> None:
        """Start to train."""
        self._task = asyncio.get_running_loop().create_task(self._train())

    def wake(self) -> None:
        """Serve the requests."""
        self._news.set()
        if self._requests and not self._is_over:
            self._serve()

    def end(self) -> None:
        """End the training now."""
        self.stop()
        self._is_over = True
        self._task.cancel()

    def join(self) -> None:
        """Do nothing: the training has ended."""

    async def _train(self) -> None:
        environment = self._process.environment
        turns, began_s = self.turns(), time.perf_counter()
        for pause in turns:
            if pause is Pause.BATCH:
                spent_s = time.perf_counter() - began_s
                seconds = environment.batch_s(self.worker.slot, self.examples, spent_s)
                # A loop whose mini-batches take no time would never let time pass.
                await Alarm(environment.loop, environment.loop.now_s + max(seconds, 1e-9))
            else:
                await self._news.wait()
                self._news.clear()
            began_s = time.perf_counter()
