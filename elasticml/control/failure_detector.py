"""Failure detection: which silent or disconnected members the driver must fence.

:class:`LivenessProbe` watches members that owe the driver data, and :class:`LinkMonitor` broken
links between members that are both thought to be alive. Within an exchange the exchange's own
deadline does this (see ``exchange``).
"""

from __future__ import annotations

from collections.abc import Collection

from elasticml.control.job_state import JobState
from elasticml.ids import ExchangeId, MemberId
from elasticml.protocol.commands import AskStatus, Command


class LivenessProbe:
    """Asks awaited members for a sign of life.

    Reading, loading and moving chunks have no deadline, as their duration is unknown; but a living
    process answers meanwhile.

    Parameters
    ----------
    patience_s : float
        Seconds of silence before a member is asked, and again before it is fenced.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        #: Since when each awaited member has been silent, and whether it has been asked.
        self._silent: dict[MemberId, tuple[float, bool]] = {}
        self._suspects: set[MemberId] = set()

    def ticked(
        self, awaited: Collection[MemberId], living: Collection[MemberId], now_s: float
    ) -> tuple[list[Command], list[MemberId]]:
        """Check the members that are awaited now, and the suspects.

        Returns
        -------
        commands : list of Command
            Status requests.
        mute : list of MemberId
            Members to fence: they did not answer.
        """
        # Few members are watched: the large set of living ones is only used for lookups.
        self._suspects = {m for m in self._suspects if m in living}
        watched = self._suspects.union(m for m in awaited if m in living)
        self._silent = {m: self._silent.get(m, (now_s, False)) for m in sorted(watched)}
        commands: list[Command] = []
        mute: list[MemberId] = []
        for member, (since_s, asked) in self._silent.items():
            if now_s - since_s < self.patience_s:
                continue
            if asked:
                mute.append(member)
                continue
            self._silent[member] = (now_s, True)
            commands.append(AskStatus(cause="silent", member=member, exchange=ExchangeId(0)))
        return commands, mute

    def suspect(self, member: MemberId) -> None:
        """Watch a member to which another one could not send."""
        self._suspects.add(member)

    def heard(self, member: MemberId) -> None:
        """Record a sign of life."""
        self._silent.pop(member, None)
        self._suspects.discard(member)


class LinkMonitor:
    """Broken links between members that are both thought to be alive.

    Usually the peer is dead and the driver is about to detect it. If a link stays down while both
    ends are alive, either may be at fault: they are parted in the tree. A member with broken links
    to several others is at fault, and is excluded.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        #: Member -> unreachable peer, and since when.
        self._down: dict[MemberId, tuple[MemberId, float]] = {}
        #: Peer -> members that have reported it as unreachable.
        self._reporters: dict[MemberId, set[MemberId]] = {}
        #: Of those peers the ones that have answered the driver since the last report.
        self._answered: set[MemberId] = set()
        #: Members whose report has not been compared with the tree, and the tree of the others.
        self._unseen: list[MemberId] = []
        self._tree: object = None

    def link_down(self, member: MemberId, peer: MemberId, now_s: float) -> list[Command]:
        """Record that a member cannot reach a peer; ask the peer for a sign of life."""
        living = self._state.membership.members
        if member not in living or peer not in living:
            return []
        self._forget(member)
        self._down[member] = (peer, now_s)
        self._reporters.setdefault(peer, set()).add(member)
        self._answered.discard(peer)
        self._unseen.append(member)
        return [AskStatus(cause=self._state.cause, member=peer, exchange=ExchangeId(0))]

    def heard(self, member: MemberId) -> None:
        """Record a sign of life: a member that others cannot reach has a link to the driver."""
        if member in self._reporters:
            self._answered.add(member)

    def lost(self, member: MemberId) -> None:
        """Forget a lost member: reports that it is unreachable were right."""
        self._forget(member)
        self._answered.discard(member)
        for reporter in self._reporters.pop(member, ()):
            del self._down[reporter]
        for peer in self._state.cut.pop(member, ()):
            self._state.cut[peer].discard(member)

    def _forget(self, member: MemberId) -> None:
        """Forget a member's report."""
        peer, _ = self._down.pop(member, (None, 0.0))
        if peer is not None:
            self._reporters[peer].discard(member)
            if not self._reporters[peer]:
                del self._reporters[peer]

    def ticked(self, now_s: float) -> tuple[list[Command], list[MemberId]]:
        """Check the members that have been cut off from their current parent for too long.

        Returns
        -------
        commands : list of Command
            Part a member from the parent that it alone cannot reach.
        unreachable : list of MemberId
            Members with broken links to several others, to exclude. A parent is blamed only after
            it has answered the driver: a stopped process is not at fault, and returns.
        """
        self.relaid()
        cut, limit_s = self._state.cut, self._state.settings.status_s_max
        commands: list[Command] = []
        unreachable: list[MemberId] = []
        for member, (peer, since_s) in sorted(self._down.items()):
            if now_s - since_s <= limit_s:
                continue
            if len(self._reporters[peer] | cut.get(peer, set())) > 1:
                if peer in self._answered:
                    unreachable.append(peer)
            elif cut.get(member, set()) - {peer}:
                unreachable.append(member)
            else:
                commands += self._state.part(member, peer)
        return commands, list(dict.fromkeys(unreachable))

    def relaid(self) -> None:
        """Forget links that are no longer in the tree; a link used again later is a new one."""
        parents = self._state.parents
        # Within an exchange the tree changes only around lost members, whose reports are forgotten.
        reports = self._unseen if parents is self._tree else list(self._down)
        self._unseen, self._tree = [], parents
        for member in reports:
            if member in self._down and parents.get(member) != self._down[member][0]:
                self._forget(member)
