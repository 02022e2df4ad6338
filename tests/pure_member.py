"""A member of the pure world: its machine, with multisets of chunks instead of arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticml.control import effects as fx
from elasticml.control.member_machine import Member
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
    """An incarnation's sums of one exchange."""

    header: ev.ExchangeHeader[ev.Shape]
    #: The own share; after the sum was sent, the subtree's sum.
    total: Sums | None = None


@dataclass(slots=True, eq=False)
class Link:
    """A link that a child has opened to its parent; each end closes separately."""

    child: Incarnation
    parent: Incarnation
    name: str

    def is_open(self, end: Incarnation) -> bool:
        if end.over:
            return False
        if end is self.child:
            return end.parent is self
        return end.children.get(self.child.me) is self

    def other(self, end: Incarnation) -> Incarnation:
        return self.parent if end is self.child else self.child


@dataclass(slots=True, eq=False)
class Worker:
    """A process; its chunks outlive an incarnation."""

    name: str
    held: set[ChunkId] = field(default_factory=set)
    #: For each chunk that has been computed over: the last exchange that its state here has seen.
    states: dict[ChunkId, int] = field(default_factory=dict)
    life: Incarnation | None = None
    is_stopped: bool = False


class Incarnation:
    """One incarnation of a member on a worker: performs its machine's commands."""

    def __init__(self, world: PureWorld, worker: Worker, number: int) -> None:
        self.world = world
        self.worker = worker
        self.name = f"{worker.name}#{number}"
        #: The member id given by the driver; the machine exists once it has arrived.
        self.id: MemberId | None = None
        self.machine: Member | None = None
        self.shares: dict[ExchangeId, Share] = {}
        self.arrays: dict[int, Sums] = {}
        self.parent: Link | None = None
        self.children: dict[MemberId, Link] = {}
        self.over = False

    @property
    def me(self) -> MemberId:
        assert self.id is not None
        return self.id

    @property
    def owned(self) -> frozenset[ChunkId]:
        return frozenset() if self.machine is None else self.machine.owned

    @property
    def peers(self) -> dict[MemberId, str]:
        return {} if self.machine is None else self.machine.peers

    def end(self, n_kept: int) -> None:
        """Close all links; of the sent messages, ``n_kept`` per channel still arrive."""
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

    def feed(self, event: ev.Event | cmd.Order) -> None:
        assert self.machine is not None
        for command in self.machine.handle(event, self.world.now):
            self.perform(command)

    def obey(self, order: cmd.Order) -> None:
        if isinstance(order, cmd.Welcome):
            self.machine = Member(order.member, self.worker.held)
            return
        if isinstance(order, cmd.Peers) and not order.is_full:
            assert not self.peers.keys() & set(order.came), "a member was announced twice"
            assert set(order.gone) <= self.peers.keys(), (
                "the end of an unknown member was announced"
            )
        self.feed(order)

    def later(self, what: object, thunk: Callable[[], None]) -> None:
        """Run a function in a separate task."""
        self.world.post((self.name, self.name, type(what).__name__), thunk)

    # --- effects ------------------------------------------------------------------------------

    def perform(self, command: cmd.Command) -> None:
        match command:
            case fx.Report():
                self.report(command.event)
            case fx.Tell():
                self.tell(command)
            case cmd.Attach():
                self.later(command, lambda: self.connect(command))
            case cmd.Detach():
                self.detach(command.peer)
            case cmd.ForwardModel():
                link, share = self.children.get(command.to), self.shares[command.exchange]
                if link is not None:
                    self.send(link, lambda: link.child.model(share.header))
            case cmd.Compute():
                self.later(command, lambda: self.compute(command.exchange))
            case cmd.SendPartial():
                self.send_partial(command)
            case fx.SendKept():
                self.send_kept(command)
            case cmd.Refuse():
                del self.arrays[command.handle]
            case cmd.Forget():
                for handle in command.handles:
                    del self.arrays[handle]
                self.shares.pop(command.exchange, None)
            case cmd.Dismiss():
                self.world.dismissed(self, command.is_final)
            case cmd.Configure(warms_up=True):
                self.later(command, lambda: self.feed(ev.Ready(member=self.me)))
            case cmd.Peers() | cmd.Configure() | fx.AskPeers():
                pass
            case fx.After():
                self.world.timers.append((self.world.now + command.seconds, self))
            case _:
                self.perform_on_chunks(command)

    def perform_on_chunks(self, command: cmd.Command) -> None:
        match command:
            case cmd.ReadBlocks():
                for block in command.blocks:
                    self.later(command, lambda b=block: self.read(b, command.survey))
            case cmd.LoadChunks():
                self.later(command, lambda: self.load(command.chunks))
            case cmd.GiveChunks():
                self.later(command, lambda: self.give(command))
            case fx.SendCopy():
                self.later(command, lambda: self.copy(command))
            case cmd.DropChunks():
                self.worker.held.difference_update(command.chunks)
                for chunk in command.chunks:
                    self.worker.states.pop(chunk, None)
            case cmd.Own():
                lacking = set(command.chunks) - self.worker.held
                assert not lacking, f"{self.me} shall own {lacking}, which it lacks"
            case fx.StoreChunks():
                bodies, _ = command.arrival.content
                self.worker.held.update(bodies)
                lacking = set(command.arrival.chunks) - self.worker.held
                assert not lacking, f"{self.me} gets states without bodies of {lacking}"
                self.feed(fx.ChunksStored(arrival=command.arrival))
            case fx.SetStates():
                _, states = command.arrival.content
                self.worker.states.update({chunk: states[chunk] for chunk in command.chunks})
            case _:
                raise NotImplementedError(type(command).__name__)

    # --- data ---------------------------------------------------------------------------------

    def read(self, block: int, survey: bool) -> None:
        chunks = () if survey else chunks_of_block(block)
        self.worker.held.update(c.id for c in chunks)
        self.feed(ev.BlockRead(member=self.me, block=block, chunks=chunks))

    def load(self, chunks: tuple[ChunkId, ...]) -> None:
        self.worker.held.update(chunks)
        self.feed(ev.ChunksLoaded(member=self.me, chunks=chunks, nbytes=1))

    def give(self, order: cmd.GiveChunks) -> None:
        target, worker = self.receiver(order), self.worker
        if target is None:
            return
        states = {c: worker.states[c] for c in order.chunks if c in worker.states}
        arrived = self.arrived(order, order.bodies, states)
        arriving = fx.MoveArriving(source=self.me, order=order.order)

        def begin() -> None:
            target.feed(arriving)
            # Its end is noticed even if the link breaks.
            target.later(arrived, lambda: target.feed(arrived))

        self.world.post((self.name, target.name, "chunks"), begin)
        self.feed(fx.GiveSent(order=order.order))

    def copy(self, command: fx.SendCopy) -> None:
        """Send a body; all bodies of an order arrive with the last one."""
        order = command.order
        target = self.receiver(order)
        if target is None:
            return
        if command.k + 1 == len(order.chunks):
            arrived = self.arrived(order, order.chunks, {})
            self.world.post((self.name, target.name, "copies"), lambda: target.feed(arrived))
        self.feed(fx.CopySent(order=order.order))

    def receiver(self, order: cmd.GiveChunks | cmd.CopyChunks) -> Incarnation | None:
        """Find the target of an order; report the order as failed if it cannot be performed."""
        target = self.world.alive(order.target)
        if target is None or target.machine is None or not set(order.chunks) <= self.worker.held:
            self.feed(
                fx.SendFailed(
                    target=order.target, chunks=order.chunks, order=order.order, reason="gone"
                )
            )
            return None
        return target

    def arrived(
        self,
        order: cmd.GiveChunks | cmd.CopyChunks,
        bodies: tuple[ChunkId, ...],
        states: dict[ChunkId, int],
    ) -> fx.ChunksArrived:
        return fx.ChunksArrived(
            source=self.me,
            order=order.order,
            chunks=order.chunks,
            states=frozenset(states),
            nbytes=1,
            content=(bodies, states),
        )

    # --- the collective -----------------------------------------------------------------------

    def model(self, header: ev.ExchangeHeader[ev.Shape]) -> None:
        assert self.machine is not None
        if self.machine.takes_model(header.exchange):
            self.shares[header.exchange] = Share(header)
            self.feed(header)

    def compute(self, exchange: ExchangeId) -> None:
        self.shares[exchange].total = Counter(self.owned)
        self.world.computing(self, exchange)
        self.world.computations[self.me, exchange] += 1
        self.feed(ev.Computed(exchange=exchange))

    def send_partial(self, command: cmd.SendPartial) -> None:
        share = self.shares[command.exchange]
        assert share.total is not None
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

    def send_kept(self, command: fx.SendKept) -> None:
        if command.handle is None:
            sums = self.shares[command.exchange].total
        else:
            sums = self.arrays[command.handle]
        assert sums is not None
        sent = Counter(sums)
        self.up(lambda: self.world.anchor(self, command, sent))

    # --- links to other members ---------------------------------------------------------------

    def connect(self, command: cmd.Attach) -> None:
        assert self.machine is not None
        assert command.parent is not None
        if not self.machine.attaches_to(command):
            return
        there = self.world.alive(command.parent)
        severed = there is not None and {self.worker.name, there.worker.name} in self.world.severed
        if there is None or there.machine is None or there.worker.is_stopped or severed:
            self.feed(fx.ConnectFailed(peer=command.parent))
            return
        link = Link(self, there, f"link {self.world.next_number()}")
        # A former link from the same child closes silently.
        there.children[self.me] = self.parent = link
        self.feed(ev.PeerLinked(peer=command.parent, generation=command.generation))

    def tell(self, command: fx.Tell) -> None:
        link = self.parent
        assert link is not None
        assert link.parent.id == command.to
        self.send(link, lambda: link.parent.feed(command.event))

    def detach(self, peer: MemberId) -> None:
        link = self.children.get(peer)
        if link is None and self.parent and self.parent.parent.id == peer:
            link = self.parent
        if link is not None:
            self.cut(link)

    def send(self, link: Link, thunk: Callable[[], None]) -> None:
        """Send on a link; messages after the receiver has closed its end are dropped."""
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
            self.feed(fx.ParentLost(peer=link.parent.me))
        else:
            del self.children[link.child.me]
            self.feed(ev.PeerLost(peer=link.child.me))
