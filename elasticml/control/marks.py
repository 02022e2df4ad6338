"""Marks of a resource manager on containers, and what it costs to give a container back."""

from __future__ import annotations

from dataclasses import dataclass

from elasticml.control.state import JobState
from elasticml.terms import MemberId

#: Bytes of state that an example is taken to have, when losses are compared.
STATE_BYTES_PER_ROW = 8


@dataclass(slots=True, kw_only=True)
class Mark:
    """A container that is asked for back."""

    address: str
    reason: str
    deadline_s: float
    #: From then on nobody else can go in time.
    turn_s: float
    void_s: float
    negotiable: bool
    #: What is in it is no member, and cannot leave.
    essential: bool
    #: Who goes, as long as it is here: the marked member itself, or its substitute.
    given: MemberId | None = None
    #: The resource manager has got a container for it.
    is_met: bool = False


def loss_bytes(state: JobState, member: MemberId) -> int:
    """Count what must travel before a member can go: bodies that nobody else who stays has, states.

    Error: of states, every example counts as 8 bytes, whatever the algorithm keeps of it.
    """
    ledger, members = state.ledger, state.membership.members
    staying = {m for m, r in members.items() if m != member and r.stage != "leaving"}
    owned = ledger.owned.get(member, ())
    alone = sum(ledger.info[c].nbytes for c in owned if not staying & ledger.holders[c])
    return alone + STATE_BYTES_PER_ROW * ledger.rows_of(member)
