"""A member of the pure world: its machine, and multisets of chunks where a shell has arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticml.control.member import Member
from elasticml.ids import ChunkId, ChunkInfo, ExchangeId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev

if TYPE_CHECKING:
    from tests.pure_world import PureWorld

Sums = Counter[ChunkId]


def chunks_of_block(block: int) -> tuple[ChunkInfo, ...]:
    """Three chunks of 10, 11 and 12 examples."""
    return tuple(ChunkInfo(id=ChunkId("s", block, k), rows=10 + k, nbytes=100) for k in range(3))


@dataclass(slots=True)
class Share:
    """A life's sums of one exchange."""

    model: ev.ModelArrived
    own: Sums | None = None
    total: Sums | None = None


@dataclass(slots=True, eq=False)
class Link:
    """A link that a child has opened to its parent; each end closes for itself."""

    child: Life
    parent: Life
    name: str

    def is_open(self, end: Life) -> bool:
        if end.over:
            return False
        if end is self.child:
            return end.parent is self
        return end.children.get(self.child.me) is self

    def other(self, end: Life) -> Life:
        return self.parent if end is self.child else self.child


@dataclass(slots=True, eq=False)
class Worker:
    """A process; its chunks outlive a life."""

    name: str
    held: set[ChunkId] = field(default_factory=set)
    #: Of each chunk that has been computed over: the last exchange that its state here has seen.
    states: dict[ChunkId, int] = field(default_factory=dict)
    life: Life | None = None
    is_stopped: bool = False


class Life:
    """One life of a member on a worker."""

    def __init__(self, world: PureWorld, worker: Worker, number: int) -> None:
        self.world = world
        self.worker = worker
        self.name = f"{worker.name}#{number}"
        #: What the driver has called it; the machine exists once the word has come.
        self.id: MemberId | None = None
        self.machine: Member | None = None
        self.owned: tuple[ChunkId, ...] = ()
        #: The newest order by which each chunk's state came.
        self.state_orders: dict[ChunkId, int] = {}
        self.shares: dict[ExchangeId, Share] = {}
        self.arrays: dict[int, Sums] = {}
        self.parent: Link | None = None
        self.children: dict[MemberId, Link] = {}
        #: Members that it would send its states to, and itself where others send to it.
        self.peers: dict[MemberId, str] = {}
        self.over = False

    @property
    def me(self) -> MemberId:
        assert self.id is not None
        return self.id

    def end(self, n_kept: int) -> None:
        """Close all links; of what was sent, ``n_kept`` messages per channel still arrive."""
        self.over = True
        for key, queue in self.world.queues.items():
            if key[1] == self.name:
                queue.clear()
            elif key[0] == self.name:
                while len(queue) > n_kept:
                    queue.pop()
        self.up(lambda: self.world.driver_link_closed(self))
        for link in [self.parent, *self.children.values()]:
            if link is not None:
                self.cut(link)

    # --- to and from the driver ---------------------------------------------------------------

    def up(self, thunk: Callable[[], None]) -> None:
        self.world.post((self.name, "driver", "up"), thunk)

    def report(self, event: ev.Event) -> None:
        if not self.over:
            self.up(lambda: self.world.feed(event) if self.world.knows(self) else None)

    def feed(self, event: ev.Event | cmd.Rewire) -> None:
        assert self.machine is not None
        for command in self.machine.handle(event, self.world.now):
            self.perform(command)

    def obey(self, order: cmd.Order) -> None:
        match order:
            case cmd.Welcome():
                self.machine = Member(order.member)
            case cmd.ReadBlocks():
                for block in order.blocks:
                    self.later(order, lambda b=block: self.read(b, order.survey))
            case cmd.LoadChunks():
                self.later(order, lambda: self.loaded(order.chunks))
            case cmd.GiveChunks():
                self.later(order, lambda: self.give(order))
            case cmd.CopyChunks():
                self.later(order, lambda: self.copy(order))
            case cmd.DropChunks():
                self.drop(order)
            case cmd.Own():
                self.own(order)
            case cmd.Rewire():
                self.feed(order)
            case cmd.AskStatus():
                assert self.machine is not None
                stage: Any = self.machine.stage()
                self.report(ev.StatusReported(member=self.me, exchange=order.exchange, stage=stage))
            case cmd.SendAnchor():
                self.send_anchor(order)
            case cmd.Dismiss():
                self.world.dismissed(self, order.reason)
            case cmd.Peers():
                self.know(order)
            case cmd.Configure():
                pass
            case _:
                raise NotImplementedError(type(order).__name__)

    def know(self, order: cmd.Peers) -> None:
        if order.anew:
            self.peers.clear()
        assert not self.peers.keys() & set(order.came), "told twice that a member has come"
        self.peers.update(zip(order.came, order.addresses, strict=True))
        for member in order.gone:
            del self.peers[member]

    def later(self, what: object, thunk: Callable[[], None]) -> None:
        """Do something in a task of its own."""
        self.world.post((self.name, self.name, type(what).__name__), thunk)

    # --- data ---------------------------------------------------------------------------------

    def read(self, block: int, survey: bool) -> None:
        chunks = () if survey else chunks_of_block(block)
        self.worker.held.update(c.id for c in chunks)
        self.report(ev.BlockRead(member=self.me, block=block, chunks=chunks))

    def loaded(self, chunks: Sequence[ChunkId]) -> None:
        self.worker.held.update(chunks)
        self.report(ev.ChunksLoaded(member=self.me, chunks=tuple(chunks), nbytes=1))

    def received(
        self,
        order: cmd.GiveChunks | cmd.CopyChunks,
        bodies: Sequence[ChunkId],
        states: Mapping[ChunkId, int],
    ) -> None:
        """Take a batch in: bodies, then states as far as they are news."""
        self.worker.held.update(bodies)
        assert set(order.chunks) <= self.worker.held, f"{self.me} gets states without bodies"
        for chunk, state in states.items():
            if chunk not in self.owned and self.state_orders.get(chunk, 0) < order.order:
                self.worker.states[chunk] = state
        if isinstance(order, cmd.GiveChunks):
            for chunk in order.chunks:
                self.state_orders[chunk] = max(order.order, self.state_orders.get(chunk, 0))
        self.report(
            ev.ChunksLoaded(
                member=self.me,
                chunks=order.chunks,
                source=order.member,
                nbytes=1,
                order=order.order,
            )
        )

    def own(self, order: cmd.Own) -> None:
        assert set(order.chunks) <= self.worker.held, f"{self.me} lacks chunks that it shall own"
        self.owned = order.chunks

    def drop(self, order: cmd.DropChunks) -> None:
        self.worker.held.difference_update(order.chunks)
        # Given away since the last Own, so that it may come back before the next one.
        self.owned = tuple(c for c in self.owned if c not in order.chunks)
        for chunk in order.chunks:
            self.worker.states.pop(chunk, None)
        self.report(ev.ChunksDropped(member=self.me, chunks=order.chunks))

    def give(self, order: cmd.GiveChunks) -> None:
        states = {c: self.worker.states[c] for c in order.chunks if c in self.worker.states}
        self.send_chunks(order, order.bodies, states)

    def copy(self, order: cmd.CopyChunks) -> None:
        self.send_chunks(order, order.chunks, {})

    def send_chunks(
        self,
        order: cmd.GiveChunks | cmd.CopyChunks,
        bodies: tuple[ChunkId, ...],
        states: Mapping[ChunkId, int],
    ) -> None:
        target = self.world.alive(order.target)
        if target is None or target.machine is None or not set(order.chunks) <= self.worker.held:
            failed = ev.MoveFailed(
                member=self.me,
                target=order.target,
                chunks=order.chunks,
                reason="gone",
                order=order.order,
            )
            self.report(failed)
            return
        self.world.post(
            (self.name, target.name, "chunks"), lambda: target.received(order, bodies, states)
        )

    # --- the collective -----------------------------------------------------------------------

    def model(self, model: ev.ModelArrived) -> None:
        if model.exchange not in self.shares:
            self.shares[model.exchange] = Share(model)
            self.feed(model)

    def perform(self, command: cmd.Command) -> None:
        match command:
            case cmd.Attach():
                self.attach(command)
            case cmd.Detach():
                link = self.children.get(command.peer)
                if link is None and self.parent and self.parent.parent.id == command.peer:
                    link = self.parent
                if link is not None:
                    self.cut(link)
            case cmd.ForwardModel():
                link, share = self.children.get(command.to), self.shares[command.exchange]
                if link is not None:
                    self.send(link, lambda: link.child.model(share.model))
            case cmd.Compute():
                self.later(command, lambda: self.compute(command.exchange))
            case cmd.SendPartial():
                self.send_partial(command)
            case cmd.Refuse():
                del self.arrays[command.handle]
            case cmd.Forget():
                for handle in command.handles:
                    del self.arrays[handle]
                self.shares.pop(command.exchange, None)

    def compute(self, exchange: ExchangeId) -> None:
        self.shares[exchange].own = Counter(self.owned)
        self.world.computing(self, exchange)
        self.world.computations[self.me, exchange] += 1
        self.feed(ev.Computed(exchange=exchange))

    def send_partial(self, command: cmd.SendPartial) -> None:
        share = self.shares[command.exchange]
        assert share.own is not None
        if share.total is None:
            share.total = Counter(share.own)
            for handle in command.inputs:
                share.total.update(self.arrays[handle])
        sums = Counter(share.total)

        def event(handle: int) -> ev.PartialArrived:
            return ev.PartialArrived(
                exchange=command.exchange,
                sender=self.me,
                contributors=command.contributors,
                order=command.order,
                handle=handle,
                compute_s={self.me: 1.0},
            )

        if command.to is None:
            self.world.sent.append((self, event, sums))
            self.up(lambda: self.world.partial(self, event, sums))
        elif self.parent is not None:
            parent = self.parent.parent
            assert parent.id == command.to
            self.send(self.parent, lambda: parent.partial(event, sums))

    def partial(self, event: Callable[[int], ev.PartialArrived], sums: Sums) -> None:
        handle = self.world.next_number()
        self.arrays[handle] = sums
        self.feed(event(handle))

    def send_anchor(self, order: cmd.SendAnchor) -> None:
        assert self.machine is not None
        sums = None
        if order.sender is None:
            share = self.shares.get(order.exchange)
            sums = None if share is None else share.total
        else:
            handle = self.machine.node.kept_handle(order.exchange, order.sender)
            sums = None if handle is None else self.arrays[handle]
        sent = None if sums is None else Counter(sums)
        self.up(lambda: self.world.anchor(self, order, sent))

    # --- links to other members ---------------------------------------------------------------

    def attach(self, command: cmd.Attach) -> None:
        attached = ev.Attached(
            child=self.me, generation=command.generation, has_model=command.has_model
        )
        if command.parent is None:
            self.report(attached)
            self.feed(ev.PeerLinked(peer=None, generation=command.generation))
        else:
            self.later(command, lambda: self.connect(command, attached))

    def connect(self, command: cmd.Attach, attached: ev.Attached) -> None:
        assert self.machine is not None
        assert command.parent is not None
        if self.machine.node.parent != command.parent:
            return
        there = self.world.alive(command.parent)
        if there is None or there.machine is None or there.worker.is_stopped:
            self.report(ev.LinkDown(member=self.me, peer=command.parent))
            return
        link = Link(self, there, f"link {self.world.next_number()}")
        # A former link from the same child closes silently.
        there.children[self.me] = self.parent = link
        self.send(link, lambda: there.feed(attached))
        self.feed(ev.PeerLinked(peer=command.parent, generation=command.generation))

    def send(self, link: Link, thunk: Callable[[], None]) -> None:
        """Send on a link; what comes after the receiver has closed its end is dropped."""
        receiver = link.other(self)
        self.world.post(
            (self.name, receiver.name, link.name),
            lambda: thunk() if link.is_open(receiver) else None,
        )

    def cut(self, link: Link) -> None:
        """Close an end silently; the other one notices in its turn."""
        if self is link.child:
            self.parent = None
        elif self.children.get(link.child.me) is link:
            del self.children[link.child.me]
        self.send(link, lambda: link.other(self).lost_link(link))

    def lost_link(self, link: Link) -> None:
        if self is link.child:
            self.parent = None
            self.report(ev.LinkDown(member=self.me, peer=link.parent.me))
        else:
            del self.children[link.child.me]
            self.feed(ev.PeerLost(peer=link.child.me))
