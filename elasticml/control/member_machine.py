"""The member machine: everything that one incarnation of a member decides is decided here.

    machine.handle(event or order, now_s)  ->  list of commands

Inputs are the driver's orders, frames of parent and children, transfers from other members, and
answers to the machine's own commands. Outputs are effects that an adapter performs, see
``effects.py``. Some of the driver's orders are effects already (read, load, drop, own): the machine
passes them on. The runtime, the simulator and the tests' pure world perform the same
commands, so a rule that is changed here is changed in all of them.

Besides events a machine needs to know which chunk bodies its worker holds. They outlive the
incarnation, and threads add to them, so the adapter stores them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from elasticml.control import effects as fx
from elasticml.control.tree_node import TreeNode
from elasticml.errors import LocalProtocolError, RemoteProtocolError, one_line
from elasticml.ids import ChunkId, ExchangeId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev

#: Most models that wait for the order about this member's place in the tree; usually there is one.
HELD_MODELS_MAX: Final = 16
#: Attempts to connect to a parent before the driver is informed.
RECONNECTS_MAX: Final = 3
#: Size of the bucket, in seconds of the rate: copied at once after a time without copies.
BURST_S: Final = 0.05
#: Shorter waits are skipped, because timers are not exact.
WAIT_S_MIN: Final = 1e-6

Commands = list[cmd.Command]


@dataclass(slots=True)
class PendingCopies:
    """A CopyChunks order whose bodies are not all sent."""

    order: cmd.CopyChunks
    #: Index of the next body, or of the one that is being sent.
    k: int = 0
    is_sending: bool = False


class CopyPacer:
    """Decides when the next body is copied to another holder: at a limited rate, after all moves.

    Rounds wait for moves, but not for copies. So no copy starts while the member sends or receives
    a move. The rate is limited by a bucket of bytes that fills with time. A target is sent one body
    at a time, and a target that reads slowly does not delay copies to others.
    """

    __slots__ = ("_free_s", "_moves", "_orders", "_wakes_s")

    def __init__(self) -> None:
        #: In the order of their arrival; of those to one target the first is active.
        self._orders: list[PendingCopies] = []
        #: Moves in progress: the source, None if it is this member, and the number of the order.
        self._moves: set[tuple[MemberId | None, int]] = set()
        #: When the bucket has the bytes of the last copy.
        self._free_s = -math.inf
        #: When TimeUp is due; infinite if it is not awaited.
        self._wakes_s = math.inf

    def add(self, order: cmd.CopyChunks) -> None:
        """Accept an order."""
        if order.chunks:
            self._orders.append(PendingCopies(order))

    def move_started(self, source: MemberId | None, order: int) -> None:
        """Start no further copy until this move has ended."""
        self._moves.add((source, order))

    def move_ended(self, source: MemberId | None, order: int) -> None:
        """Record that a move is complete or broken off."""
        self._moves.discard((source, order))

    def sent(self, order: int) -> None:
        """Record that the body of an order has been sent."""
        for copies in self._orders:
            if copies.order.order == order and copies.is_sending:
                copies.k, copies.is_sending = copies.k + 1, False
                if copies.k == len(copies.order.chunks):
                    self._orders.remove(copies)
                return

    def drop(self, order: int) -> None:
        """Give up an order that failed."""
        self._orders = [copies for copies in self._orders if copies.order.order != order]

    def time_up(self) -> None:
        """Record that the time of the last After command is over."""
        self._wakes_s = math.inf

    def next_commands(self, now_s: float) -> Commands:
        """Return commands to send the bodies that may be sent now, or to wait for the bucket."""
        if not self._orders or self._moves:
            return []
        commands: Commands = []
        targets: set[MemberId] = set()
        for copies in self._orders:
            order = copies.order
            if order.target in targets:
                continue
            targets.add(order.target)
            if copies.is_sending:
                continue
            wait_s = self._free_s - now_s
            if wait_s > WAIT_S_MIN:
                if self._wakes_s > self._free_s:
                    self._wakes_s = self._free_s
                    commands.append(fx.After(seconds=wait_s))
                break
            granted_s = order.nbytes[copies.k] / order.bytes_per_s
            self._free_s = max(self._free_s, now_s - BURST_S) + granted_s
            copies.is_sending = True
            commands.append(fx.SendCopy(order=order, k=copies.k))
        return commands


class Member:
    """One incarnation of a member, from its welcome to its end.

    Parameters
    ----------
    me : MemberId
    bodies : container of ChunkId
        The chunks whose bodies the worker holds at present.
    """

    __slots__ = (
        "_attaching",
        "_attempts_left",
        "_copies",
        "_has_asked",
        "_held",
        "_is_out_of_core",
        "_now_s",
        "_state_orders",
        "_wants_state",
        "bodies",
        "me",
        "node",
        "owned",
        "peers",
    )

    def __init__(self, me: MemberId, bodies: Container[ChunkId] = frozenset()) -> None:
        self.me = me
        self.bodies = bodies
        self.node = TreeNode(me)
        #: Chunks that the member computes over; it alone writes their states.
        self.owned: frozenset[ChunkId] = frozenset()
        #: Asynchronous jobs: members to which states are sent, with their addresses; includes this
        #: member if others send to it.
        self.peers: dict[MemberId, str] = {}
        self._held: list[ev.ExchangeHeader[Any]] = []
        self._now_s = 0.0
        self._copies = CopyPacer()
        #: Number of the order with which each chunk's state arrived.
        self._state_orders: dict[ChunkId, int] = {}
        #: The last command to connect to a parent, and the remaining attempts.
        self._attaching: cmd.Attach | None = None
        self._attempts_left = 0
        self._is_out_of_core = False
        #: Whether a first state is needed; whether peers were asked for one or it is there.
        self._wants_state = False
        self._has_asked = False

    def handle(self, event: ev.Event | cmd.Order, now_s: float) -> Commands:
        """Handle an event or an order; return commands in the order of their execution.

        Raises
        ------
        LocalProtocolError
            When the event is not one of a member, or too many models arrive early.
        """
        kind = type(event)
        # The most frequent events, millions in a simulation, are not looked up.
        if kind is ev.PartialArrived:
            return self.node.partial(event)  # type: ignore[arg-type]
        if kind is ev.Computed:
            return self.node.computed(event.exchange)  # type: ignore[union-attr]
        handler = self._HANDLERS.get(kind)
        if handler is None:
            name = type(event).__name__
            raise LocalProtocolError(f"member {self.me} cannot handle {name}")
        self._now_s = now_s
        return handler(self, event)

    # --- the tree -----------------------------------------------------------------------------

    def _rewire(self, order: cmd.Rewire) -> Commands:
        node = self.node
        placed = node.rewire(
            order.generation,
            order.parent,
            order.parent_address,
            order.children,
            order.done,
            order.is_new,
        )
        commands: Commands = []
        for command in placed:
            commands += self._attach(command) if isinstance(command, cmd.Attach) else [command]
        # Models may arrive before the order about the tree.
        ready = [m for m in self._held if m.generation <= node.generation]
        self._held = [m for m in self._held if m.generation > node.generation]
        for model in sorted(ready, key=lambda m: m.exchange):
            commands += node.begin(model.exchange, model.keep)
        return commands

    def _attach(self, command: cmd.Attach) -> Commands:
        """Report to the driver, or connect to the parent."""
        if command.parent is None:
            return [fx.Report(event=self._attached(command)), *self.node.parent_linked(None)]
        self._attaching, self._attempts_left = command, RECONNECTS_MAX
        return [command]

    def _attached(self, command: cmd.Attach) -> ev.Attached:
        return ev.Attached(
            child=self.me, generation=command.generation, has_model=command.has_model
        )

    def attaches_to(self, command: cmd.Attach) -> bool:
        """Whether a command to connect still names the current parent."""
        return self.node.parent == command.parent

    def _peer_linked(self, event: ev.PeerLinked) -> Commands:
        attaching = self._attaching
        if attaching is None or event.peer is None or event.peer != self.node.parent:
            return []
        message = fx.Tell(to=event.peer, event=self._attached(attaching))
        return [message, *self.node.parent_linked(event.peer)]

    def _connect_failed(self, event: fx.ConnectFailed) -> Commands:
        attaching = self._attaching
        if attaching is None or event.peer != self.node.parent:
            return []  # the member has another parent meanwhile
        self._attempts_left -= 1
        return [attaching] if self._attempts_left > 0 else [self._link_down(event.peer)]

    def _parent_lost(self, event: fx.ParentLost) -> Commands:
        return [self._link_down(event.peer)]

    def _link_down(self, peer: MemberId) -> fx.Report:
        return fx.Report(event=ev.LinkDown(cause=str(self.me), member=self.me, peer=peer))

    def _child_attached(self, event: ev.Attached) -> Commands:
        return self.node.attached(event.child, event.has_model)

    def _child_lost(self, event: ev.PeerLost) -> Commands:
        self.node.peer_lost(event.peer)
        return []

    # --- exchanges ----------------------------------------------------------------------------

    def takes_model(self, exchange: ExchangeId) -> bool:
        """Whether an arriving model is the first copy of a new exchange."""
        gather = self.node.gather
        if gather is not None and exchange <= gather.exchange:
            return False
        return not self._held or all(exchange != held.exchange for held in self._held)

    def _model(self, event: ev.ExchangeHeader[Any]) -> Commands:
        is_new = event.generation > self.node.generation
        if is_new and (event.moved is None or self.me.bit & event.moved):
            if len(self._held) >= HELD_MODELS_MAX:
                raise LocalProtocolError(f"{self.me} holds {HELD_MODELS_MAX} early models")
            self._held.append(event)
            return []
        return self.node.begin(event.exchange, event.keep)

    def stage(self) -> str:
        """Return the stage of this member in the current exchange."""
        gather = self.node.gather
        if gather is None:
            return "waiting-for-model"
        if gather.sent:
            return "sent"
        return "waiting-for-children" if gather.ready else "computing"

    def _status(self, order: cmd.AskStatus) -> Commands:
        stage: Any = self.stage()
        message = ev.StatusReported(member=self.me, exchange=order.exchange, stage=stage)
        return [fx.Report(event=message)]

    def _anchor(self, order: cmd.SendAnchor) -> Commands:
        node, handle = self.node, None
        if order.sender is None:
            is_kept = node.has_sum(order.exchange)
        else:
            handle = node.kept_handle(order.exchange, order.sender)
            is_kept = handle is not None
        if is_kept:
            return [fx.SendKept(exchange=order.exchange, sender=order.sender, handle=handle)]
        gone = ev.AnchorArrived(
            member=self.me, exchange=order.exchange, sender=order.sender, handle=None
        )
        return [fx.Report(event=gone)]

    # --- chunks -------------------------------------------------------------------------------

    def _own(self, order: cmd.Own) -> Commands:
        self.owned = frozenset(order.chunks)
        return [order, *self._ask_if_wanted()]

    def _drop(self, order: cmd.DropChunks) -> Commands:
        # They were moved since the last Own order, and may return before the next one.
        self.owned -= frozenset(order.chunks)
        dropped = ev.ChunksDropped(member=self.me, chunks=order.chunks)
        return [order, fx.Report(event=dropped)]

    def _give(self, order: cmd.GiveChunks) -> Commands:
        self._copies.move_started(None, order.order)
        return [order]

    def _give_sent(self, event: fx.GiveSent) -> Commands:
        self._copies.move_ended(None, event.order)
        return self._copies.next_commands(self._now_s)

    def _copy(self, order: cmd.CopyChunks) -> Commands:
        self._copies.add(order)
        return self._copies.next_commands(self._now_s)

    def _copy_sent(self, event: fx.CopySent) -> Commands:
        self._copies.sent(event.order)
        return self._copies.next_commands(self._now_s)

    def _time_up(self, event: fx.TimeUp) -> Commands:
        self._copies.time_up()
        return self._copies.next_commands(self._now_s)

    def _send_failed(self, event: fx.SendFailed) -> Commands:
        self._copies.move_ended(None, event.order)
        self._copies.drop(event.order)
        failed = ev.MoveFailed(
            member=self.me,
            target=event.target,
            chunks=event.chunks,
            reason=event.reason,
            order=event.order,
        )
        return [fx.Report(event=failed), *self._copies.next_commands(self._now_s)]

    def _move_arriving(self, event: fx.MoveArriving) -> Commands:
        self._copies.move_started(event.source, event.order)
        return []

    def _arrived(self, event: fx.ChunksArrived) -> Commands:
        self._copies.move_ended(event.source, event.order)
        return [fx.StoreChunks(arrival=event), *self._copies.next_commands(self._now_s)]

    def _store_failed(self, event: fx.StoreFailed) -> Commands:
        """End the job if a move cannot be stored; abandon a copy, which is optional.

        What another member sent against the protocol stays where it is.
        """
        arrival, error = event.arrival, event.error
        if arrival.states and not isinstance(error, RemoteProtocolError):
            return [fx.Fail(error=error)]
        self._copies.move_ended(arrival.source, arrival.order)
        reason = f"{type(error).__name__}: {one_line(error)}"
        refused = self._refused(arrival, arrival.chunks, reason)
        return [refused, *self._copies.next_commands(self._now_s)]

    def _stored(self, event: fx.ChunksStored) -> Commands:
        """Report the chunks of a transfer, and set the states that are newer."""
        arrival = event.arrival
        came = [chunk for chunk in arrival.chunks if chunk not in arrival.missing]
        here = tuple(chunk for chunk in came if chunk in self.bodies)
        states = tuple(
            chunk
            for chunk in here
            if chunk in arrival.states and self._takes_state(chunk, arrival.order)
        )
        commands: Commands = []
        if states:
            self._state_orders.update(dict.fromkeys(states, arrival.order))
            commands.append(fx.SetStates(arrival=arrival, chunks=states))
        if len(here) < len(came):
            lacking = tuple(chunk for chunk in came if chunk not in self.bodies)
            commands.append(self._refused(arrival, lacking, "the target has no copy of them"))
        if here:
            loaded = ev.ChunksLoaded(
                member=self.me,
                chunks=here,
                source=arrival.source,
                nbytes=arrival.nbytes,
                seconds=arrival.seconds,
                order=arrival.order,
            )
            commands.append(fx.Report(event=loaded))
        return commands

    def _takes_state(self, chunk: ChunkId, order: int) -> bool:
        """Whether an arriving state is newer than the present one.

        It is not if the member owns the chunk, over which it may have computed since, or if the
        last state arrived with a later order.
        """
        return chunk not in self.owned and order >= self._state_orders.get(chunk, order)

    def _refused(
        self, arrival: fx.ChunksArrived, chunks: tuple[ChunkId, ...], reason: str
    ) -> fx.Report:
        failed = ev.MoveFailed(
            member=arrival.source,
            target=self.me,
            chunks=chunks,
            reason=reason,
            order=arrival.order,
        )
        return fx.Report(event=failed)

    def _out_of_core(self, event: ev.WentOutOfCore) -> Commands:
        """Report once that not all chunks fit into memory."""
        if self._is_out_of_core:
            return []
        self._is_out_of_core = True
        return [fx.Report(event=event)]

    # --- asynchronous jobs --------------------------------------------------------------------

    def _know(self, order: cmd.Peers) -> Commands:
        if order.is_full:
            self.peers.clear()
        self.peers.update(zip(order.came, order.addresses, strict=True))
        for member in order.gone:
            self.peers.pop(member, None)
        self._wants_state = not self._has_asked and (self._wants_state or order.begun)
        return [order, *self._ask_if_wanted()]

    def _state_lacking(self, event: fx.StateLacking) -> Commands:
        self._wants_state = not self._has_asked
        return self._ask_if_wanted()

    def _state_begun(self, event: fx.StateBegun) -> Commands:
        self._wants_state, self._has_asked = False, True
        return []

    def _ask_if_wanted(self) -> Commands:
        """Ask peers for a state if one is needed, and there are peers and chunks."""
        if not self._wants_state or not self.owned or not self.peers.keys() - {self.me}:
            return []
        self._wants_state, self._has_asked = False, True
        return [fx.AskPeers()]

    # --- notices, and what is passed on --------------------------------------------------------

    def _report(self, event: ev.Event) -> Commands:
        return [fx.Report(event=event)]

    def _perform(self, order: cmd.Order) -> Commands:
        return [order]

    _HANDLERS: ClassVar[dict[type, Callable[[Member, Any], Commands]]] = {
        ev.ExchangeHeader: _model,
        ev.Attached: _child_attached,
        ev.PeerLinked: _peer_linked,
        ev.PeerLost: _child_lost,
        fx.ConnectFailed: _connect_failed,
        fx.ParentLost: _parent_lost,
        cmd.Rewire: _rewire,
        cmd.AskStatus: _status,
        cmd.SendAnchor: _anchor,
        cmd.Own: _own,
        cmd.DropChunks: _drop,
        cmd.Configure: _perform,
        cmd.ReadBlocks: _perform,
        cmd.LoadChunks: _perform,
        cmd.GiveChunks: _give,
        cmd.CopyChunks: _copy,
        cmd.Dismiss: _perform,
        cmd.Peers: _know,
        fx.TimeUp: _time_up,
        fx.GiveSent: _give_sent,
        fx.CopySent: _copy_sent,
        fx.SendFailed: _send_failed,
        fx.MoveArriving: _move_arriving,
        fx.ChunksArrived: _arrived,
        fx.ChunksStored: _stored,
        fx.StoreFailed: _store_failed,
        ev.WentOutOfCore: _out_of_core,
        ev.BlockRead: _report,
        ev.ChunksLoaded: _report,
        ev.LoopEnded: _report,
        ev.Ready: _report,
        fx.StateLacking: _state_lacking,
        fx.StateBegun: _state_begun,
        ev.Noticed: _report,
        ev.NoticeWithdrawn: _report,
    }
