"""Invariants of the driver machine, checked against its whole state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticml.control.tree import children
from elasticml.errors import LocalProtocolError
from elasticml.ids import MemberId, mask_of

if TYPE_CHECKING:
    from elasticml.control.driver import Driver

#: Up to this many members plus chunks, indexes are checked every time, even if unchanged.
BOOKS_ENTRIES_MIN = 100


def check(driver: Driver) -> None:
    """Check the driver's invariants.

    Raises
    ------
    LocalProtocolError
        Names the violated invariant and the cause of the event that violated it.
    """
    state = driver.state
    try:
        if state.stage == "ended":
            return
        at = _change_counts(driver)
        # Checking a large state takes as long as an exchange, while all members wait: it is
        # checked only after changes. A small one is checked every time.
        n_entries = len(state.membership.members) + len(state.ledger.info)
        always = driver.check_every_event or n_entries <= BOOKS_ENTRIES_MIN
        if always or at != driver.checked_at:
            state.membership.check()
            state.ledger.check(state.membership.members)
            _tree(driver)
            driver.checked_at = at
        _transfers(driver)
        _sum(driver)
    except LocalProtocolError as error:
        raise LocalProtocolError(f"{error} (after {state.cause})", cause=state.cause) from error


def _change_counts(driver: Driver) -> tuple[object, ...]:
    """Return the change counts of members, chunks and tree: equal counts mean equal state."""
    state = driver.state
    ledger = state.ledger
    absent = (tuple(ledger.groups), tuple(ledger.open))
    return state.membership.changes, ledger.changes, *absent, state.generation


def _tree(driver: Driver) -> None:
    """Check that the tree has one root, no cycle, and only living members."""
    parents, living = driver.state.parents, driver.state.membership.members
    for member, parent in parents.items():
        if member not in living:
            raise LocalProtocolError(f"{member} is in the tree and is not alive")
        if parent is not None and parent not in parents:
            raise LocalProtocolError(f"parent {parent} of {member} is not in the tree")
    rooted: set[MemberId] = set()
    for member in parents:
        # Walk up to the root, or to a node known to lead there; a cycle revisits a node.
        path: set[MemberId] = set()
        above: MemberId | None = member
        while above is not None and above not in rooted:
            if above in path:
                raise LocalProtocolError(f"{member} is its own ancestor")
            path.add(above)
            above = parents[above]
        rooted |= path
    below = children(parents)
    if driver.state.below != below:
        raise LocalProtocolError("the lists of children are not those of the tree")
    if driver.state.root.children != set(below[None]):
        raise LocalProtocolError("the root's children are not those of the tree")


def _transfers(driver: Driver) -> None:
    """Check that chunks move only between exchanges, and from their owner or an absent group."""
    ledger, run = driver.state.ledger, driver.exchanges.running
    if run is not None and (driver.chunk_moves.moves or driver.chunk_moves.rereading):
        raise LocalProtocolError(f"exchange {run.id} runs while chunks change their owner")
    for chunk, move in driver.chunk_moves.moves.items():
        source, target = move.source, move.target
        if ledger.owner(chunk) != source:
            raise LocalProtocolError(f"chunk {chunk} moves from {source}, which does not own it")
        if target not in driver.state.membership.members:
            raise LocalProtocolError(f"chunk {chunk} moves to {target}, which is gone")
        if not move.has_body and not ledger.holds(target, chunk):
            raise LocalProtocolError(f"chunk {chunk} moves to {target} without its body")
    for chunk, copy in driver.chunk_copies.under_way.items():
        if not {copy.source, copy.target} <= driver.state.membership.members.keys():
            raise LocalProtocolError(f"chunk {chunk} is copied from or to a member that is gone")
    for member, chunks in driver.chunk_moves.dropping.items():
        kept = [c for c in chunks if ledger.holds(member, c)]
        if kept:
            raise LocalProtocolError(f"{member} drops {kept[0]} and still counts as its holder")
    for group, owners in driver.chunk_moves.returning.items():
        if group not in ledger.groups:
            raise LocalProtocolError(f"group {group} returns and is not absent")
        for target in owners.values():
            if target not in driver.state.membership.members:
                raise LocalProtocolError(f"group {group} returns to {target}, which is gone")


def _sum(driver: Driver) -> None:
    """Check that no member is summed twice: the root's inputs are disjoint, from participants."""
    run, gather = driver.exchanges.running, driver.state.root.gather
    if run is None or gather is None or gather.exchange != run.id:
        return
    covered = 0
    for item in gather.inputs.values():
        if covered & item.contributors:
            raise LocalProtocolError(f"exchange {run.id} counts a member twice")
        covered |= item.contributors
    if covered & ~mask_of(m.slot for m in run.participants):
        raise LocalProtocolError(f"exchange {run.id} counts a member that does not participate")
