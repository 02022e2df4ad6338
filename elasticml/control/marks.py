"""Marks: containers that the resource manager asks for, and the cost of losing a member."""

from __future__ import annotations

from dataclasses import dataclass

from elasticml.control.state import JobState
from elasticml.terms import MemberId

#: Assumed bytes of state per example when the costs of losses are compared.
STATE_BYTES_PER_ROW = 8


@dataclass(slots=True, kw_only=True)
class Mark:
    """A container that the resource manager asks for."""

    address: str
    reason: str
    deadline_s: float
    #: From this time on no substitute can be drained in time.
    turn_s: float
    #: The mark expires at this time if it was not withdrawn.
    void_s: float
    #: Any other container will do as well.
    negotiable: bool
    #: The container holds no member and must not be taken.
    essential: bool
    #: The member that leaves for it: the marked one or a substitute.
    victim: MemberId | None = None
    #: The resource manager has received a container for it.
    is_met: bool = False


def loss_bytes(state: JobState, member: MemberId) -> int:
    """Return the bytes to send before a member can leave: states, and bodies without other holder.

    Holders that are leaving themselves do not count. Error: the state of an example counts as 8
    bytes, whatever the algorithm keeps.
    """
    ledger, members = state.ledger, state.membership.members
    staying = {m for m, r in members.items() if m != member and r.stage != "leaving"}
    owned = ledger.owned.get(member, ())
    alone = sum(ledger.info[c].nbytes for c in owned if not staying & ledger.holders[c])
    return alone + STATE_BYTES_PER_ROW * ledger.rows_of(member)
