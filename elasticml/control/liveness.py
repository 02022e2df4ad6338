"""Members that owe the driver data: silent ones are asked for a sign of life, mute ones fenced.

Within an exchange the deadline does this (see :class:`Exchanging`). Reading, loading and moving
chunks have no deadline, as their duration is unknown; but a living process answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from elasticml.control.commands import AskStatus, Command
from elasticml.terms import ExchangeId, MemberId


class Liveness:
    """Asks awaited members for a sign of life.

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
