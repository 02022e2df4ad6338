"""The reduction tree: its layout, and the reattachment of orphans.

Two rules keep contributor sets laminar (nested or disjoint) whichever members are lost, so that no
example is counted twice: the tree may be rebuilt between exchanges; within an exchange an orphan is
attached to its nearest living ancestor, of those that it can reach, and to no other node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from elasticml.ids import MemberId

#: Parent of each member; None is the root, on the driver.
Parents = Mapping[MemberId, MemberId | None]
#: Children of every node that has any, and of the root, in ascending order.
Below = dict[MemberId | None, list[MemberId]]

STAR_MEMBERS_MAX = 8

#: In larger trees members keep their places: only those near a change are told of it.
LAID_OUT_ANEW_MAX = 256


def layout(
    order: Sequence[MemberId], topology: str, fan_out: int, n_hosts: int = 1
) -> dict[MemberId, MemberId | None]:
    """Return the parents in a star, or in a tree of the given fan-out filled level by level.

    Parameters
    ----------
    order : sequence of MemberId
        Earlier members are nearer to the root.
    topology : {"auto", "star", "tree"}
        "auto": a star for up to 8 members on one host, else a tree.
    fan_out : int
        Children per node (the root included), >= 1.
    n_hosts : int
        Number of the members' hosts.
    """
    if topology == "auto":
        topology = "star" if n_hosts == 1 and len(order) <= STAR_MEMBERS_MAX else "tree"
    if topology == "star":
        return dict.fromkeys(order)
    # Position k + 1 in a complete tree whose position 0 is the root.
    return {
        member: None if k < fan_out else order[k // fan_out - 1] for k, member in enumerate(order)
    }


def kept_order(
    former: Sequence[MemberId], staying: Sequence[MemberId], leaving: Sequence[MemberId]
) -> list[MemberId]:
    """Return an order of a tree in which staying members keep their positions of the former one.

    The positions of members that are gone are taken by those from the end of the order, if there
    are fewer members now, and by newcomers. Leaving members come last, where none depends on them.
    """
    left, n = set(staying), len(staying)
    places = [m if m in left else None for m in former[:n]]
    left.difference_update(places)
    late = [m for m in former[n:] if m in left]
    left.difference_update(late)
    rest = iter([*late, *(m for m in staying if m in left)] if left else late)
    order = [next(rest) if m is None else m for m in places]
    return [*order, *rest, *leaving]


def separate(
    parents: dict[MemberId, MemberId | None], cut: Mapping[MemberId, Collection[MemberId]]
) -> None:
    """Attach members to their nearest ancestor to which they have a link, in place.

    Parameters
    ----------
    parents : dict
    cut : mapping
        The members with which each one must not be adjacent; all have a link to the root.
    """
    for member in cut.keys() & parents.keys():
        parent = parents[member]
        while parent is not None and parent in cut[member]:
            parent = parents[parent]
        parents[member] = parent


def rewired(former: Parents, parents: Parents, below: Below) -> set[MemberId]:
    """Bring the lists of children of a tree to another one, in place.

    Returns
    -------
    set of MemberId
        The members of the new tree whose parent or children have changed.
    """
    moved = [m for m, parent in parents.items() if former.get(m, m) != parent]
    gone = set(former).difference(parents)
    nodes: set[MemberId | None] = set()
    for member in (*gone, *(m for m in moved if m in former)):
        nodes.add(former[member])
        below[former[member]].remove(member)
    for member in moved:
        nodes.add(parents[member])
        below.setdefault(parents[member], []).append(member)
    for node in nodes:
        if below[node] or node is None:
            below[node].sort()
        else:
            del below[node]
    return {m for m in (*moved, *nodes) if m is not None and m in parents}


def take_out(
    parents: dict[MemberId, MemberId | None], below: Below, lost: MemberId
) -> tuple[MemberId | None, list[MemberId]]:
    """Remove a lost member in place; its children are attached to its parent.

    Returns
    -------
    heir : MemberId or None
        The parent.
    orphans : list of MemberId
        The children, ascending.
    """
    heir = parents.pop(lost)
    orphans = below.pop(lost, [])
    for orphan in orphans:
        parents[orphan] = heir
    siblings = below[heir]
    siblings.remove(lost)
    siblings += orphans
    siblings.sort()
    if not siblings and heir is not None:
        del below[heir]
    return heir, orphans


def children(parents: Parents) -> Below:
    """List the children of every node that has any, and of the root, in ascending order."""
    below: Below = {None: []}
    for member in sorted(parents):
        below.setdefault(parents[member], []).append(member)
    return below
