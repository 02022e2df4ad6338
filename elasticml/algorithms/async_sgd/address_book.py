"""The peers a free-running member sends its state to, and random choices among them.

Used by real processes and by the simulator: it needs neither links nor time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from elasticml.ids import MemberId

#: Timeout in seconds of a request for a peer's state, after which the next peer is asked; and the
#: number of peers asked before the model of a report is used instead.
ASK_S: Final = 1.0
ASKED_MAX: Final = 3


class AddressBook:
    """The other members with their addresses.

    Parameters
    ----------
    me : MemberId
    seed : int
        The job's seed; choices are drawn from it, the slot and the incarnation.
    """

    def __init__(self, me: MemberId, seed: int) -> None:
        self.me = me
        self.addresses: dict[MemberId, str] = {}
        #: Other members send to this one.
        self.is_listed = False
        self._rng = np.random.default_rng([0x5E2D, seed, me.slot, me.incarnation])

    def update(
        self, came: Mapping[MemberId, str], gone: Iterable[MemberId], *, is_full: bool
    ) -> None:
        """Add members that joined and remove members that left.

        Parameters
        ----------
        came, gone : mapping to addresses, iterable
            May contain this member, too.
        is_full : bool
            ``came`` is the complete list: forget earlier members.
        """
        if is_full:
            self.addresses.clear()
            self.is_listed = False
        self.addresses.update(came)
        for member in gone:
            self.addresses.pop(member, None)
            self.is_listed = self.is_listed and member != self.me
        self.is_listed = self.addresses.pop(self.me, None) is not None or self.is_listed

    def is_first(self) -> bool:
        """Whether this member has the lowest id of all listed members; thread-safe."""
        return self.is_listed and all(self.me < other for other in list(self.addresses))

    def choose(self, n: int, among: Iterable[MemberId] | None = None) -> list[MemberId]:
        """Draw up to ``n`` distinct members, by default from all."""
        members = sorted(self.addresses if among is None else among)
        if len(members) <= n:
            return members
        return [members[k] for k in self._rng.choice(len(members), size=n, replace=False)]
