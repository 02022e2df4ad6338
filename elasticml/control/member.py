"""A member's place in the collective, as a pure machine.

It sees orders about the tree, frames that arrive on links, and the end of its own computation.
Everything about data (reading, giving, dropping chunks) is done by the shell as ordered.
"""

from __future__ import annotations

from elasticml.control.reduce_node import ReduceNode
from elasticml.errors import LocalProtocolError
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command, Rewire

#: Models that came before the order that names this member's place; one at a time is the rule.
HELD_MODELS_MAX = 16


class Member:
    """One life of a member.

    Parameters
    ----------
    me : MemberId
    """

    __slots__ = (
        "_held",
        "me",
        "node",
    )

    def __init__(self, me: MemberId) -> None:
        self.me = me
        self.node = ReduceNode(me)
        self._held: list[ev.ModelArrived] = []

    def handle(self, event: ev.Event | Rewire, now_s: float) -> list[Command]:
        """Take an event (or the order to take another place) in; return what to do, in order."""
        node = self.node
        match event:
            # What every exchange has comes first.
            case ev.ModelArrived():
                if event.generation > node.generation:
                    if len(self._held) >= HELD_MODELS_MAX:
                        raise LocalProtocolError(f"{self.me} holds {HELD_MODELS_MAX} early models")
                    self._held.append(event)
                    return []
                return node.begin(event.exchange, event.keep)
            case ev.PartialArrived():
                return node.partial(event)
            case ev.Computed():
                return node.computed(event.exchange)
            case Rewire():
                commands = node.rewire(
                    event.generation,
                    event.parent,
                    event.parent_address,
                    event.children,
                    event.done,
                    event.is_new,
                )
                return commands + self._release()
            case ev.Attached():
                return node.attached(event.child, event.has_model)
            case ev.PeerLinked():
                return node.parent_linked(event.peer)
            case ev.PeerLost():
                node.peer_lost(event.peer)
                return []
        raise LocalProtocolError(f"member {self.me} cannot handle {type(event).__name__}")

    def _release(self) -> list[Command]:
        """Begin the exchanges whose models had come before the order about the tree."""
        ready = [m for m in self._held if m.generation <= self.node.generation]
        self._held = [m for m in self._held if m.generation > self.node.generation]
        commands: list[Command] = []
        for model in sorted(ready, key=lambda m: m.exchange):
            commands += self.node.begin(model.exchange, model.keep)
        return commands

    def stage(self) -> str:
        """Say how far this member is in the exchange under way, for AskStatus."""
        gather = self.node.gather
        if gather is None:
            return "waiting-for-model"
        if gather.sent:
            return "sent"
        return "waiting-for-children" if gather.ready else "computing"
