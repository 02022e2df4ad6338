"""Members that owe the driver data: whoever is silent too long is asked, and fenced if it is mute.

Within an exchange the deadline does this (see ``exchanging``). Reading, loading and moving chunks
have no deadline, as nobody knows how long they take; but a process that lives answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from elasticml.control.commands import AskStatus, Command
from elasticml.terms import ExchangeId, MemberId


class Liveness:
    """Asks members that are waited for.

    Parameters
    ----------
    patience_s : float
        Seconds of silence before a member is asked, and again before it is given up.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        #: Since when each member is waited for without a word, and whether it has been asked.
        self._silent: dict[MemberId, tuple[float, bool]] = {}
        self._suspects: set[MemberId] = set()

    def ticked(
        self, awaited: Collection[MemberId], living: Collection[MemberId], now_s: float
    ) -> tuple[list[Command], list[MemberId]]:
        """Watch the members that are waited for now, and those under suspicion.

        Returns
        -------
        commands : list of Command
            Questions.
        mute : list of MemberId
            To be fenced: they did not answer.
        """
        # Few are watched and all are living: the large set is only looked into.
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
        """Watch a member that another one could not reach."""
        self._suspects.add(member)

    def heard(self, member: MemberId) -> None:
        """Note a sign of life."""
        self._silent.pop(member, None)
        self._suspects.discard(member)
