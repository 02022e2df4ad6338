"""Which kept partials, added and subtracted, give the vanished members' own share.

In a kept exchange with tree T let S(v) be the sum that v sent up. A member's own share is
``g_v = S(v) - sum(S(c) for c in children(v))``, so that over a set M of vanished members

    sum(g_v, v in M) = sum(S(v), v in M, parent(v) not in M) - sum(S(c), c not in M, parent(c) in M)

S(v) is kept by v itself as what it last sent, and by its parent as an input. In a star this is
simply the root's inputs from the vanished.

Source: the resource-elastic paper, implementation paragraph ("inner nodes keep an approximation for
their inputs available"); the exact telescoping form is ours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from elasticml.control.tree import Parents
from elasticml.terms import Mask, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One kept partial of an anchor."""

    sign: int
    #: Whose sum it is.
    of: MemberId
    #: Who has it: None is the root; ``of`` itself when it lives.
    at: MemberId | None


def subtree_of(parents: Parents, member: MemberId) -> Mask:
    """Return whose shares a member's sum contains in a tree that nobody left: its and below."""
    mask, below = member.bit, {member}
    while found := {m for m, parent in parents.items() if parent in below} - below:
        below |= found
        mask = Mask(mask | sum(m.bit for m in found))
    return mask


def plan(
    parents: Parents, vanished: Collection[MemberId], living: Collection[MemberId]
) -> list[Term] | None:
    """List the terms of the vanished members' share; None where one is held by nobody alive.

    Parameters
    ----------
    parents : mapping
        The tree of the kept exchange, which nobody left while it ran.
    vanished : collection of MemberId
        M above, a subset of the tree's members.
    living : collection of MemberId
        Members that can still be asked.
    """
    gone = set(vanished)
    if not gone <= parents.keys():
        return None
    terms: list[Term] = []
    for member in sorted(parents):
        parent = parents[member]
        if member in gone and parent not in gone:
            if parent is not None and parent not in living:
                return None
            terms.append(Term(sign=1, of=member, at=parent))
        elif member not in gone and parent in gone:
            if member not in living:
                return None
            terms.append(Term(sign=-1, of=member, at=member))
    return terms
