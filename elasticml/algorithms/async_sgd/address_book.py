"""Whom a free-running member sends its state to: who is there, and random choices among them.

The same in a real process and in the simulator; what a link is, and time, neither needs to be known
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from elasticml.terms import MemberId

#: Seconds until a peer that was asked for its state and does not answer is given up, and the next
#: asked; and how many are asked before the model of a report must do.
ASK_S: Final = 1.0
ASKED_MAX: Final = 3


class AddressBook:
    """Members that states are sent to, with their addresses; never the one whose book it is.

    Parameters
    ----------
    me : MemberId
    seed : int
        The job's: choices are drawn from it, the slot and the incarnation.
    """

    def __init__(self, me: MemberId, seed: int) -> None:
        self.me = me
        self.addresses: dict[MemberId, str] = {}
        #: Others send to this member.
        self.is_listed = False
        self._chance = np.random.default_rng([0x5E2D, seed, me.slot, me.incarnation])

    def update(self, came: Mapping[MemberId, str], gone: Iterable[MemberId], *, anew: bool) -> None:
        """Take note of who has come and gone.

        Parameters
        ----------
        came, gone : mapping to addresses, iterable
            This member may be among them, too.
        anew : bool
            ``came`` is everybody; who was there before is forgotten.
        """
        if anew:
            self.addresses.clear()
            self.is_listed = False
        self.addresses.update(came)
        for member in gone:
            self.addresses.pop(member, None)
            self.is_listed = self.is_listed and member != self.me
        self.is_listed = self.addresses.pop(self.me, None) is not None or self.is_listed

    def is_first(self) -> bool:
        """Whether this is the first of all that send to each other; from any thread."""
        return self.is_listed and all(self.me < other for other in list(self.addresses))

    def choose(self, n: int, among: Iterable[MemberId] | None = None) -> list[MemberId]:
        """Draw up to ``n`` different ones, by default of all."""
        found = sorted(self.addresses if among is None else among)
        if len(found) <= n:
            return found
        return [found[k] for k in self._chance.choice(len(found), size=n, replace=False)]
