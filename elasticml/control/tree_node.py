"""One node of the collective, as a pure machine: whom it waits for, what it keeps and re-sends.

The same machine is the root (on the driver, without a share of its own) and every member. It holds
no arrays: a partial is named by its handle, and the shell keeps the bytes under that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticml.errors import LocalProtocolError
from elasticml.ids import ExchangeId, Generation, Mask, MemberId, mask_of
from elasticml.protocol.commands import (
    Attach,
    Command,
    Compute,
    Detach,
    Forget,
    ForwardModel,
    Gathered,
    Refuse,
    SendPartial,
)
from elasticml.protocol.events import PartialArrived

#: Partials of exchanges not begun here yet, per node; one per child is the rule.
EARLY_MAX = 1024
#: Exchanges before the one under way whose partials are kept.
KEPT_MAX = 2


@dataclass(slots=True)
class Gather:
    """The state of one exchange at one node."""

    exchange: ExchangeId
    keep: bool
    #: The own share is computed (always so at the root, which has none).
    ready: bool
    #: Accepted partials by sender; their contributor sets are disjoint.
    inputs: dict[MemberId, PartialArrived] = field(default_factory=dict)
    #: Union of the inputs' contributors.
    covered: Mask = Mask(0)
    #: The sum was sent to the present parent (at the root: handed over).
    sent: bool = False
    #: The sum was made; it does not change any more.
    summed: bool = False

    def handles(self) -> tuple[int, ...]:
        """List the inputs in the order of their addition: by slot, not by arrival."""
        if not self.inputs:
            return ()  # most nodes of a tree are leaves
        return tuple(self.inputs[sender].handle for sender in sorted(self.inputs))


class TreeNode:
    """A node's place in the tree, and the exchange that is under way.

    Parameters
    ----------
    me : MemberId or None
        None is the root.
    """

    __slots__ = (
        "_ascending",
        "_below",
        "_early",
        "_name",
        "_own",
        "attached_with",
        "children",
        "closed",
        "gather",
        "generation",
        "kept",
        "me",
        "parent",
        "parent_address",
        "parent_ready",
        "refused",
    )

    def __init__(self, me: MemberId | None) -> None:
        self.me = me
        #: Its bit in contributor masks and its name in orders of addition; the root has neither.
        self._own = Mask(0) if me is None else me.bit
        self._name = "" if me is None else str(me.slot)
        self.generation = Generation(0)
        self.parent: MemberId | None = None
        self.parent_address = ""
        self.children: frozenset[MemberId] = frozenset()
        #: They in ascending order, and their slots.
        self._ascending: tuple[MemberId, ...] = ()
        self._below: Mask = Mask(0)
        #: Members that have reported for duty here, with the newest model each one had then.
        self.attached_with: dict[MemberId, ExchangeId] = {}
        #: The exchange under way or just done; None before the first.
        self.gather: Gather | None = None
        #: The last exchange that had ended at the driver when it sent this place.
        self.closed = ExchangeId(0)
        #: Kept exchanges before ``gather`` whose partials the shell still has, oldest first.
        self.kept: list[Gather] = []
        #: The parent can be sent to; nothing goes up before.
        self.parent_ready = me is None
        self._early: list[PartialArrived] = []
        self.refused = 0

    def rewire(
        self,
        generation: Generation,
        parent: MemberId | None,
        parent_address: str,
        children: Iterable[MemberId],
        done: ExchangeId,
        is_new: bool = False,
    ) -> list[Command]:
        """Take another place. An exchange after ``done`` is sent again to a new parent.

        One that has ended is neither sent nor taken any more: a partial that an orphan was to send
        again would otherwise reach its parent in the next tree, which has sent its own sum. With
        ``is_new`` there was no place in the last tree, and the parent must be informed again.
        """
        if generation <= self.generation:
            return []
        first = self.generation == 0
        commands: list[Command] = []
        former = self.children
        self.generation, self.closed = generation, done
        if self.gather is not None and self.gather.exchange <= done:
            self.gather.sent = True
        self.children = frozenset(children)
        self._ascending = tuple(sorted(self.children))
        self._below = mask_of(c.slot for c in self.children)
        for child in sorted(former - self.children):
            self.attached_with.pop(child, None)
            commands.append(Detach(peer=child))
        if self.me is not None and (first or is_new or parent != self.parent):
            if not first and self.parent is not None:
                commands.append(Detach(peer=self.parent))
            self.parent, self.parent_address = parent, parent_address
            self.parent_ready = False
            if self.gather is not None and self.gather.exchange > done:
                self.gather.sent = False
            commands.append(self.attach())
        for child in sorted(self.children - former):
            if child in self.attached_with:
                commands += self.attached(child, self.attached_with[child])
        return commands + self._replay() + self._advance()

    def attach(self) -> Attach:
        """Ask the shell to link to the parent."""
        return Attach(
            parent=self.parent,
            address=self.parent_address,
            generation=self.generation,
            has_model=ExchangeId(0) if self.gather is None else self.gather.exchange,
        )

    def parent_linked(self, parent: MemberId | None) -> list[Command]:
        """Handle the open link to a parent, unless it is no longer the parent."""
        if parent != self.parent:
            return []
        self.parent_ready = True
        return self._advance()

    def attached(self, child: MemberId, has_model: ExchangeId) -> list[Command]:
        """Handle a child that reports for duty; it is given the model if it lacks it."""
        self.attached_with[child] = has_model
        gather = self.gather
        if gather is None or child not in self.children or gather.sent:
            return []
        if has_model >= gather.exchange or child.bit & gather.covered:
            return []
        return [ForwardModel(exchange=gather.exchange, to=child)]

    def peer_lost(self, peer: MemberId) -> None:
        """Handle a closed link: the peer must attach again before it is sent anything."""
        self.attached_with.pop(peer, None)

    def begin(self, exchange: ExchangeId, keep: bool) -> list[Command]:
        """Start an exchange: forward its model to the children, compute the own share."""
        if self.gather is not None and exchange <= self.gather.exchange:
            return []  # a second copy, from a former parent
        commands = self._retire()
        self.gather = Gather(exchange=exchange, keep=keep, ready=self.me is None)
        for child in self._ascending:
            if child in self.attached_with:
                commands.append(ForwardModel(exchange=exchange, to=child))
        if self.me is not None:
            commands.append(Compute(exchange=exchange))
        return commands + self._replay() + self._advance()

    def _replay(self) -> list[Command]:
        """Handle partials that came before their exchange, or before their sender's adoption."""
        if not self._early:
            return []
        early, self._early = self._early, []
        commands: list[Command] = []
        for item in early:
            commands += self.partial(item)
        return commands

    def _retire(self) -> list[Command]:
        """Free the partials of exchanges that can no longer be asked for as anchors."""
        old = self.gather
        if old is None:
            return []
        if old.keep:
            # Two are kept: while the newer is under way, the older is the anchor.
            self.kept.append(old)
            if len(self.kept) <= KEPT_MAX:
                return []
            old = self.kept.pop(0)
        return [Forget(exchange=old.exchange, handles=old.handles())]

    def computed(self, exchange: ExchangeId) -> list[Command]:
        """Handle the end of the own computation."""
        if self.gather is None or self.gather.exchange != exchange:
            return []
        self.gather.ready = True
        return self._advance()

    def partial(self, item: PartialArrived) -> list[Command]:
        """Take a partial into the sum, hold it if it is early, or refuse it whole."""
        gather = self.gather
        current = ExchangeId(0) if gather is None else gather.exchange
        if item.exchange > current or (
            item.exchange == current and item.sender not in self.children
        ):
            if len(self._early) >= EARLY_MAX:
                raise LocalProtocolError(
                    f"node {self.me} holds {EARLY_MAX} early partials, the last one of exchange "
                    f"{item.exchange} from {item.sender}"
                )
            self._early.append(item)
            return []
        assert gather is not None
        repeated = item.contributors & gather.covered
        is_over = item.exchange < current or item.exchange <= self.closed
        if is_over or repeated == item.contributors:
            # Old, or contained in what is here already: a partial that was sent again.
            return [self.refuse(item)]
        # Members of a broken link were parted: the sum of one had the partial of the other, which
        # was sent here, too.
        inner = [s for s, one in gather.inputs.items() if one.contributors & repeated]
        nested = sum(gather.inputs[sender].contributors for sender in inner)
        if repeated != nested or gather.sent:
            raise LocalProtocolError(
                f"partial of exchange {item.exchange} from {item.sender} at node {self.me}: "
                f"contributors {item.contributors:#x} overlap {gather.covered:#x} in part, or came "
                f"after the sum had gone up (sent={gather.sent})"
            )
        commands: list[Command] = [self.refuse(gather.inputs.pop(sender)) for sender in inner]
        gather.inputs[item.sender] = item
        gather.covered = Mask(gather.covered | item.contributors)
        return commands + self._advance()

    def refuse(self, item: PartialArrived) -> Refuse:
        """Throw a partial away, and count it."""
        self.refused += 1
        return Refuse(exchange=item.exchange, sender=item.sender, handle=item.handle)

    def waits_for(self) -> list[MemberId]:
        """List the children whose contribution is not here yet, ascending."""
        gather = self.gather
        if gather is None or gather.sent:
            return []
        return [c for c in self._ascending if not c.bit & gather.covered]

    def has_sum(self, exchange: ExchangeId) -> bool:
        """Whether the sum of an exchange was made here and is kept."""
        return any(
            gather is not None and gather.exchange == exchange and gather.summed
            for gather in (*self.kept, self.gather)
        )

    def kept_handle(self, exchange: ExchangeId, sender: MemberId) -> int | None:
        """Find the handle of a kept input, or None where it is gone or never came."""
        for gather in (*self.kept, self.gather):
            if gather is not None and gather.exchange == exchange and sender in gather.inputs:
                return gather.inputs[sender].handle
        return None

    def _advance(self) -> list[Command]:
        gather = self.gather
        if gather is None or gather.sent or not gather.ready or not self.parent_ready:
            return []
        if self._below & gather.covered != self._below:
            return []  # a child's contribution is not here yet
        gather.sent = True
        inputs: tuple[int, ...] = ()
        contributors, order = self._own, self._name
        if gather.inputs:
            parts = [self._name] if self._name else []
            parts += [gather.inputs[sender].order for sender in sorted(gather.inputs)]
            contributors = Mask(gather.covered | self._own)
            order = "(" + "+".join(parts) + ")" if len(parts) > 1 else parts[0]
            inputs = () if gather.summed else gather.handles()
        gather.summed = True
        if self.me is None:
            return [
                Gathered(
                    exchange=gather.exchange,
                    contributors=contributors,
                    inputs=inputs,
                    order=order,
                )
            ]
        return [
            SendPartial(
                exchange=gather.exchange,
                to=self.parent,
                contributors=contributors,
                inputs=inputs,
                order=order,
            )
        ]
