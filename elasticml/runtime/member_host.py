"""A worker's members, one per job, and the chunk stores that outlive them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from hmac import compare_digest
from typing import Final

from elasticml.collective.transport import Link
from elasticml.ids import NO_EXCHANGE
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.member_agent import MemberAgent
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits
from elasticml.specification.user_objects import receive_objects

logger = logging.getLogger(__name__)

#: Seconds after a job's end after which a computation that still runs is stuck.
STUCK_S: Final = 10.0
#: Seconds in which a notice reaches the drivers before their links are closed.
TOLD_S: Final = 1.0


class MemberHost:
    """Accepts links and passes each to the member that it is for.

    Parameters
    ----------
    context : WorkerContext
    announce : callable
        Offers this worker to the scheduler and returns the running jobs; called again when a
        member ended early.
    limits : WorkerLimits, optional
        Memory and disk for chunk bodies; by default without limit.
    """

    def __init__(
        self,
        context: WorkerContext,
        announce: Callable[[], Awaitable[Sequence[str]]],
        limits: WorkerLimits | None = None,
    ) -> None:
        self.agents: dict[str, MemberAgent] = {}
        self._context = context
        self._announce = announce
        self._limits = limits or WorkerLimits()
        self._stores: dict[str, ChunkStore] = {}
        #: Where the compute thread, which all jobs share, is stuck in a job that has ended.
        self.stuck = ""
        #: This worker is about to stop: it is not offered again.
        self.closing = False
        context.transport.listen(self.on_link)

    async def on_link(self, link: Link) -> None:
        """Serve a link that was opened to this worker.

        A link for a job that has a member here must show the key that the job's driver gave it:
        without it a stranger could take the place of the driver or of a peer.
        """
        job, kind = str(link.hello.get("job")), link.hello.get("kind")
        agent = self.agents.get(job)
        shown = str(link.hello.get("key", "")).encode()
        is_served = agent is not None and not agent.gone.is_set()
        if agent is not None and is_served and not compare_digest(agent.key.encode(), shown):
            logger.warning("a link from %s for job %s shows another key", link.peer, job)
            link.close()
            return
        if kind == "driver":
            await self._serve(job, link)
            return
        if agent is None or agent.me is None or link.hello.get("to") != str(agent.me):
            link.close()  # meant for another incarnation
        elif kind == "child":
            await agent.accept_child(link)
        elif kind == "chunks":
            await agent.accept_chunks(link)
        elif kind == "mail":
            await agent.accept_mail(link)
        else:
            link.close()

    async def _serve(self, job: str, link: Link) -> None:
        previous = self.agents.get(job)
        slot, computed = None, NO_EXCHANGE
        if previous is not None:
            previous.close()
            # Its compute thread could still change the states of the chunks.
            await self._context.compute.run(previous.settle)
            slot = previous.slot
            computed = NO_EXCHANGE if previous.collective is None else previous.collective.computed
        if self.closing:
            link.close()  # a member that started now would miss the notice of this worker's end
            return
        if link.hello.get("has_objects") and self._context.objects is not None:
            # From the scheduler: the process that opened this link may be a stranger's.
            receive_objects(await self._context.objects(job))
        store = self._stores.get(job)
        if store is None:
            limits = self._limits.at_most(link.hello.get("memory_limit"))
            hello = link.hello
            store = self._stores[job] = limits.store(
                hello.get("forms", 1), hello.get("row_bytes", 0)
            )
        agent = MemberAgent(link, store, self._context, slot, computed)
        self.agents[job] = agent
        if self.stuck:
            agent.notice(0.0, self.stuck)
        await agent.run()
        if self.agents.get(job) is not agent or self.closing:
            return
        if agent.is_dismissed:
            await self._drop(job)
            return
        # Fenced, or the link broke: offer the worker again, with the chunks that it still has.
        logger.info("member %s of job %s ended early; announcing again", agent.me, job)
        running = await self._announce()
        for ended in self._stores.keys() - set(running):
            await self._drop(ended)

    async def _drop(self, job: str) -> None:
        """Drop what is left of a job that has ended, as soon as nothing computes on it.

        A computation that does not end would hold up the members of all later jobs: they leave
        while it lasts.
        """
        agent, context = self.agents.pop(job, None), self._context
        self._forget(job)
        if agent is None:
            return
        settled = asyncio.ensure_future(context.compute.run(agent.settle))
        late = asyncio.ensure_future(context.pause(STUCK_S))
        await asyncio.wait([settled, late], return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        if not settled.done() and agent.is_computing:
            place = context.compute.place() or "an unknown function"
            address = context.transport.address
            self.stuck = f"worker {address} is stuck in {place} for job {job}, which has ended"
            logger.warning("%s; restart it", self.stuck)
            others = list(self.agents.values())
            for other in others:
                other.notice(0.0, self.stuck)
            await context.pause(TOLD_S)
            for other in others:
                other.close()  # an exchange would wait for its partial
            await asyncio.wait([settled])
            self.stuck = ""
            await self._announce()
        await settled
        agent.dismantle()

    def _forget(self, job: str) -> None:
        """Release a job's chunks, in memory and on disk."""
        store = self._stores.pop(job, None)
        if store is not None:
            store.close()

    def release_pages(self) -> None:
        """Release the mapped pages of all bodies and states on disk; they are read again."""
        for store in self._stores.values():
            if store.out_of_core is not None:
                store.out_of_core.evict()

    @property
    def stores(self) -> list[ChunkStore]:
        """The chunks of each job."""
        return list(self._stores.values())

    @property
    def is_serving(self) -> bool:
        """Whether a job has a member here."""
        return any(not agent.gone.is_set() for agent in self.agents.values())

    async def notice(self, grace_s: float, reason: str) -> None:
        """Announce this worker's end to every job; return when all have released it, or in time."""
        agents = [agent for agent in self.agents.values() if not agent.gone.is_set()]
        self.closing = True
        for agent in agents:
            agent.notice(grace_s, reason)
        if agents:
            waits = [asyncio.ensure_future(agent.gone.wait()) for agent in agents]
            await asyncio.wait(waits, timeout=grace_s)
            for wait in waits:
                wait.cancel()

    def close(self) -> None:
        """Close all members."""
        self.closing = True
        for agent in list(self.agents.values()):
            agent.close()
        for job in list(self._stores):
            self._forget(job)
