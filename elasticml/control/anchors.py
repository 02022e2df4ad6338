"""Anchors: the lost members' partial of a kept exchange, as a signed sum of kept partials.

In a kept exchange with tree T let S(v) be the sum that v sent up. A member's own partial is
``g_v = S(v) - sum(S(c) for c in children(v))``, so that over a set M of lost members

    sum(g_v, v in M) = sum(S(v), v in M, parent(v) not in M) - sum(S(c), c not in M, parent(c) in M)

S(v) is kept by v itself as the sum it last sent, and by its parent as an input. In a star these
are simply the root's inputs from the lost members.

Source: the resource-elastic paper, implementation paragraph ("inner nodes keep an approximation for
their inputs available"); the exact telescoping form is ours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from elasticml.control.tree import Parents
from elasticml.ids import Mask, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorTerm:
    """One kept partial of an anchor."""

    sign: int
    #: The member whose sum it is.
    of: MemberId
    #: The node that keeps it: None for the root; ``of`` itself if it is alive.
    at: MemberId | None


def subtree_of(parents: Parents, member: MemberId) -> Mask:
    """Return the contributors of a member's sum in a tree without losses: its subtree."""
    mask, below = member.bit, {member}
    while deeper := {m for m, parent in parents.items() if parent in below} - below:
        below |= deeper
        mask = Mask(mask | sum(m.bit for m in deeper))
    return mask


def plan_anchor(
    parents: Parents, lost: Collection[MemberId], living: Collection[MemberId]
) -> list[AnchorTerm] | None:
    """Return the terms of the lost members' partial; None if a term has no living keeper.

    Parameters
    ----------
    parents : mapping
        The tree of the kept exchange, during which no member was lost.
    lost : collection of MemberId
        M above, a subset of the tree's members.
    living : collection of MemberId
        Members that can still be asked.
    """
    gone = set(lost)
    if not gone <= parents.keys():
        return None
    terms: list[AnchorTerm] = []
    for member in sorted(parents):
        parent = parents[member]
        if member in gone and parent not in gone:
            if parent is not None and parent not in living:
                return None
            terms.append(AnchorTerm(sign=1, of=member, at=parent))
        elif member not in gone and parent in gone:
            if member not in living:
                return None
            terms.append(AnchorTerm(sign=-1, of=member, at=member))
    return terms
