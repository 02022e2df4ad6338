"""A worker's side of all jobs: one member per job, chunks that outlive a life, notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from elasticml.collective.emulated_network import RateLimitedTransport, limited
from elasticml.collective.transport import Link
from elasticml.control.member import FINAL
from elasticml.ids import NO_EXCHANGE
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.member_agent import MemberAgent
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits

logger = logging.getLogger(__name__)


class MemberHost:
    """Takes links in and gives each to the member that it is for.

    Parameters
    ----------
    environment : Environment
    announce : callable
        Tells the scheduler that this worker would serve, and returns the jobs that run; called
        again after a life ended early.
    budget : Budget, optional
        Memory and disk for chunk bodies; by default without limit.
    """

    def __init__(
        self,
        environment: WorkerContext,
        announce: Callable[[], Awaitable[Sequence[str]]],
        budget: WorkerLimits | None = None,
    ) -> None:
        self.shells: dict[str, MemberAgent] = {}
        self._env = environment
        self._announce = announce
        self._budget = budget or WorkerLimits()
        self._stores: dict[str, ChunkStore] = {}
        #: This worker is about to go: it is not offered again.
        self.closing = False
        environment.transport.listen(self.on_link)

    async def on_link(self, link: Link) -> None:
        """Serve a link that somebody opened to this worker."""
        job, kind = link.hello["job"], link.hello["kind"]
        if kind == "driver":
            await self._serve(job, link)
            return
        shell = self.shells.get(job)
        if shell is None or shell.me is None or link.hello.get("to") != str(shell.me):
            link.close()  # meant for another life of this member
        elif kind == "child":
            await shell.accept_child(_limited(link, shell.environment))
        elif kind == "chunks":
            await shell.accept_chunks(_limited(link, shell.environment))
        elif kind == "mail":
            await shell.accept_mail(_limited(link, shell.environment))
        else:
            link.close()

    async def _serve(self, job: str, link: Link) -> None:
        former = self.shells.get(job)
        slot, computed = None, NO_EXCHANGE
        if former is not None:
            former.close()
            # What its compute thread is still at would change the states of the chunks later.
            await self._env.compute.run(former.settle)
            slot = former.slot
            computed = NO_EXCHANGE if former.place is None else former.place.computed
        if self.closing:
            link.close()  # a life that began now would not be told that this worker goes
            return
        store = self._stores.get(job)
        if store is None:
            budget = self._budget.at_most(link.hello.get("memory_limit"))
            store = self._stores[job] = budget.store(
                link.hello.get("forms", 1), streams=link.hello.get("streams", False)
            )
        env = self._env
        env = replace(env, transport=limited(env.transport, link.hello, env.clock, env.pause))
        shell = MemberAgent(_limited(link, env), store, env, slot, computed)
        self.shells[job] = shell
        await shell.run()
        if self.shells.get(job) is not shell or self.closing:
            return
        if shell.dismissed in FINAL:
            del self.shells[job]
            self._forget(job)
            return
        # Fenced, or the link broke: offer the worker again, with the chunks that it still has.
        logger.info("member %s of job %s ended early; announcing again", shell.me, job)
        running = await self._announce()
        for ended in self._stores.keys() - set(running):
            self.shells.pop(ended, None)
            self._forget(ended)

    def _forget(self, job: str) -> None:
        """Give up what is held of a job, in memory and on the disk."""
        store = self._stores.pop(job, None)
        if store is not None:
            store.close()

    async def notice(self, grace_s: float, reason: str) -> None:
        """Tell every job that this worker goes; return when all have let it go, or time is up."""
        shells = [s for s in self.shells.values() if not s.gone.is_set()]
        self.closing = True
        for shell in shells:
            shell.notice(grace_s, reason)
        if shells:
            waits = [asyncio.ensure_future(s.gone.wait()) for s in shells]
            await asyncio.wait(waits, timeout=grace_s)
            for wait in waits:
                wait.cancel()

    def close(self) -> None:
        """End all members."""
        self.closing = True
        for shell in list(self.shells.values()):
            shell.close()
        for job in list(self._stores):
            self._forget(job)


def _limited(link: Link, environment: WorkerContext) -> Link:
    """Limit a link as the job's transport is, if it is."""
    transport = environment.transport
    return transport.limit(link) if isinstance(transport, RateLimitedTransport) else link
