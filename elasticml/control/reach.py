"""Broken links between living members: which end to fence, and when."""

from __future__ import annotations

from elasticml.control.state import JobState
from elasticml.terms import MemberId


class Reach:
    """Broken links between members that are both thought to be alive.

    Usually the peer is dead and the driver is about to detect it. Only if a link stays down while
    both ends are alive is the member that reported it fenced.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        #: Member -> unreachable peer, and since when.
        self._down: dict[MemberId, tuple[MemberId, float]] = {}

    def link_down(self, member: MemberId, peer: MemberId, now_s: float) -> None:
        """Record that a member cannot reach a peer."""
        living = self._state.membership.members
        if member in living and peer in living:
            self._down[member] = (peer, now_s)

    def lost(self, member: MemberId) -> None:
        """Forget a lost member: reports that it is unreachable were right."""
        self._down = {m: d for m, d in self._down.items() if member not in (m, d[0])}

    def unreachable(self, now_s: float) -> list[MemberId]:
        """List members that have been cut off from their current parent for too long."""
        self.relaid()
        limit_s = self._state.settings.status_s_max
        return [m for m, (_, since_s) in sorted(self._down.items()) if now_s - since_s > limit_s]

    def relaid(self) -> None:
        """Forget links that are no longer in the tree; a link used again later is a new one."""
        parents = self._state.parents
        for member, (peer, _) in list(self._down.items()):
            if parents.get(member) != peer:
                del self._down[member]
