"""Signals to a process of Dask's command line: drained first, then handled as before."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from elasticml.runtime.signal_drain import GRACE_S, SignalDrain, signal_grace_s


class Process:
    """What stands in this process for ``dask worker``: its handler of SIGTERM, and a drain."""

    def __init__(self):
        self.did = []
        self.has = asyncio.Event()
        self.release = asyncio.Event()
        self.drain = SignalDrain(self._drain, self._close)
        former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

        def handle_signal(number, frame):
            self.note(f"Dask's handler of {signal.Signals(number).name}")

        handle_signal.__module__ = "distributed._signals"
        signal.signal(signal.SIGTERM, handle_signal)
        self.handler = handle_signal
        self._former = former

    def note(self, what):
        self.did.append(what)
        self.has.set()

    async def _drain(self, told):
        self.note(f"drain for {told.name}")
        await self.release.wait()

    async def _close(self):
        self.note("close")

    async def until(self, count):
        async with asyncio.timeout(10):
            while len(self.did) < count:
                self.has.clear()
                await self.has.wait()
        return self.did

    def end(self):
        self.drain.restore()
        for number, handler in self._former.items():
            signal.signal(number, handler)


@pytest.fixture
def process():
    process = Process()
    yield process
    process.end()


def test_sigterm_drains_then_closes_then_does_what_dask_does(process):
    async def scene():
        process.drain.install()
        os.kill(os.getpid(), signal.SIGTERM)
        await process.until(1)
        process.release.set()
        return list(await process.until(3))

    assert asyncio.run(scene()) == ["drain for SIGTERM", "close", "Dask's handler of SIGTERM"]


def test_a_second_sigterm_does_not_wait_for_the_drain(process):
    async def scene():
        process.drain.install()
        os.kill(os.getpid(), signal.SIGTERM)
        await process.until(1)
        os.kill(os.getpid(), signal.SIGTERM)
        return list(await process.until(2))

    assert asyncio.run(scene()) == ["drain for SIGTERM", "Dask's handler of SIGTERM"]


def test_sigusr1_drains_and_ends_nothing(process):
    async def scene():
        process.drain.install()
        process.release.set()
        os.kill(os.getpid(), signal.SIGUSR1)
        await process.until(1)
        os.kill(os.getpid(), signal.SIGTERM)
        return list(await process.until(4))

    assert asyncio.run(scene()) == [
        "drain for SIGUSR1",
        "drain for SIGTERM",
        "close",
        "Dask's handler of SIGTERM",
    ]


def test_a_drain_that_fails_does_not_keep_the_process(process):
    async def broken(told):
        raise OSError("no scheduler")

    drain = SignalDrain(broken, process._close)

    async def scene():
        drain.install()
        os.kill(os.getpid(), signal.SIGTERM)
        return list(await process.until(2))

    assert asyncio.run(scene()) == ["close", "Dask's handler of SIGTERM"]
    drain.restore()


def test_a_listener_of_sigusr1_keeps_it(process):
    def another(number, frame):
        pass

    async def scene():
        signal.signal(signal.SIGUSR1, another)
        return process.drain.install(), signal.getsignal(signal.SIGUSR1)

    assert asyncio.run(scene()) == ((signal.SIGTERM,), another)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.default_int_handler])
def test_a_process_that_is_not_dasks_keeps_its_handlers(process, handler):
    async def scene():
        signal.signal(signal.SIGTERM, handler)
        return process.drain.install(), signal.getsignal(signal.SIGTERM)

    assert asyncio.run(scene()) == ((), handler)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, GRACE_S), ("110", 110.0), ("soon", GRACE_S), ("-1", GRACE_S)]
)
def test_the_grace_after_a_signal_is_a_variable_of_the_environment(monkeypatch, text, seconds):
    monkeypatch.delenv("ELASTICML_GRACE", raising=False)
    if text is not None:
        monkeypatch.setenv("ELASTICML_GRACE", text)
    assert signal_grace_s() == seconds
