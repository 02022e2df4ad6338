"""Call what needs a client: here at once, or as a coroutine where the client is asynchronous.

Dask's asynchronous client is synchronous in every thread but that of its event loop. So what a job
does is written once, as blocking code; for such a client it runs in a thread, and is awaited.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from elasticml.jobs.cluster_client import Target, client_of
from elasticml.jobs.handle import Handle

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
_END: Final = object()


def called_on(target: Target, function: Callable[[Client], T]) -> T:
    """Call a function with the client of a cluster, and close a client made for it.

    Returns
    -------
    object
        What the function returns; a coroutine of it where the client is asynchronous.
    """
    client, is_ours = client_of(target)
    if client.asynchronous:
        return cast(T, _called(client, is_ours, function))
    with client if is_ours else nullcontext():
        return function(client)


def with_handle(
    target: Target,
    start: Callable[[Client], Handle],
    finish: Callable[[Handle], T],
) -> T:
    """Start something on a cluster, wait for its result, and close a client made for it.

    Returns
    -------
    object
        What ``finish`` returns; a coroutine of it where the client is asynchronous.
    """
    client, is_ours = client_of(target)
    if client.asynchronous:
        return cast(T, _finished(client, is_ours, start, finish))
    with client if is_ours else nullcontext():
        return finish(start(client))


def handle_on(target: Target, start: Callable[[Client], Handle]) -> Handle:
    """Return the handle of something on a cluster; it keeps a client that was made for it.

    Returns
    -------
    Handle
        Where the client is asynchronous, a coroutine of an :class:`AsyncHandle`.
    """
    client, is_ours = client_of(target)
    if client.asynchronous:
        return cast(Handle, _started(client, is_ours, start))
    try:
        handle = start(client)
    except BaseException:
        if is_ours:
            client.close()
        raise
    if is_ours:
        weakref.finalize(handle, _close, client)
    return handle


def _close(client: Client) -> None:
    """Close a client in any thread: a handle may be collected in that of the client's loop."""
    if client.asynchronous:
        client.loop.add_callback(client.close)
    else:
        client.close()


async def _called(client: Client, is_ours: bool, function: Callable[[Client], T]) -> T:
    async with client if is_ours else nullcontext():
        return await _in_thread(function, await client)


async def _started(client: Client, is_ours: bool, start: Callable[[Client], Handle]) -> AsyncHandle:
    await client
    try:
        return AsyncHandle(await _in_thread(start, client))
    except BaseException:
        if is_ours:
            await client.close()
        raise


async def _finished(
    client: Client, is_ours: bool, start: Callable[[Client], Handle], finish: Callable[[Handle], T]
) -> T:
    started: list[Handle] = []
    async with client if is_ours else nullcontext():
        await client
        try:
            await _in_thread(lambda: started.append(start(client)))
        except asyncio.CancelledError:
            if started:
                await _in_thread(started[0].cancel)
            raise
        return await _in_thread(finish, started[0], interrupts=started[0])


async def _in_thread(
    function: Callable[..., T], *arguments: Any, interrupts: Handle | None = None, **named: Any
) -> T:
    """Await a blocking call; a cancelled wait ends it as Ctrl-C does, and waits for that.

    The loop's own threads are few, and Dask needs them to connect.
    """
    executor = ThreadPoolExecutor(1, "em-await")
    call = partial(contextvars.copy_context().run, function, *arguments, **named)
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    executor.shutdown(wait=False)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if interrupts is not None:
            interrupts.interrupt.set()
        await asyncio.wait([future])
        future.exception()  # it is known: Python shall not log it
        if interrupts is not None:
            interrupts.interrupt.clear()
        raise


class AsyncHandle:
    """A :class:`Handle` whose methods are awaited: of a client with ``asynchronous=True``.

    ``async for record in handle`` yields the records of the story.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: Handle) -> None:
        #: The handle whose methods block; call them in another thread only.
        self.blocking = handle

    def __repr__(self) -> str:
        return repr(self.blocking)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.blocking, name)
        if inspect.isgeneratorfunction(value):
            return partial(_iterated, value)
        if inspect.ismethod(value):
            interrupts = self.blocking if name == "result" else None
            return partial(_in_thread, value, interrupts=interrupts)
        return value

    def __aiter__(self) -> AsyncIterator[Any]:
        return _iterated(self.blocking.events)


async def _iterated(events: Callable[..., Any], *arguments: Any) -> AsyncIterator[Any]:
    iterator = iter(events(*arguments))
    while (item := await _in_thread(next, iterator, _END)) is not _END:
        yield item
