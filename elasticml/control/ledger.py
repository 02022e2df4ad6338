"""The chunk ledger: the owner of each chunk, the holders of its body, and the absent chunks.

Every chunk has exactly one owner, or is absent in exactly one place: the open set (lost since the
last seal) or one sealed group. The ledger is the only record of where an example is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from elasticml.errors import LocalProtocolError
from elasticml.ids import ChunkId, ChunkInfo, GroupId, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Chunks that were lost together and return together.

    Source: an entry of FNQueue in Algorithm 2 of the resource-elastic paper, without its gradient,
    which the trainer keeps under the same id.
    """

    id: GroupId
    #: Chunks that each lost member owned.
    shares: Mapping[MemberId, tuple[ChunkId, ...]]
    rows: int
    #: All chunks of the shares, ascending.
    chunks: tuple[ChunkId, ...]

    @property
    def size(self) -> int:
        """|Q|: the number of lost members whose chunks are absent."""
        return len(self.shares)


class Ledger:
    """Owners, holders and absences of all chunks."""

    def __init__(self) -> None:
        self.info: dict[ChunkId, ChunkInfo] = {}
        self.owned: dict[MemberId, set[ChunkId]] = {}
        self.holders: dict[ChunkId, set[MemberId]] = {}
        #: The inverse: chunks held by each member.
        self.held: dict[MemberId, set[ChunkId]] = {}
        #: Chunks lost since the last seal, by their last owner.
        self.open: dict[MemberId, set[ChunkId]] = {}
        #: Sealed groups, oldest first.
        self.groups: dict[GroupId, Group] = {}
        #: Incremented for a member whenever its set of owned chunks changes.
        self.versions: dict[MemberId, int] = {}
        #: The chunks of a member in order, as of a version: policies ask for them in every round.
        self._ordered: dict[MemberId, tuple[int, tuple[ChunkId, ...]]] = {}
        #: Living members whose set has changed since they were last told.
        self.reowned: set[MemberId] = set()
        #: Last version of a lost member's set, while its chunks are in the open set.
        self.last_versions: dict[MemberId, int] = {}
        #: Number of changes of owners and holders: if it is unchanged, so are all of them.
        self.changes = 0
        self.total_rows = 0
        self.total_bytes = 0
        #: Living members that owned chunks and now own none.
        self.emptied: set[MemberId] = set()
        self._owner: dict[ChunkId, MemberId] = {}
        self._rows: dict[MemberId, int] = {}
        self._held_bytes: dict[MemberId, int] = {}
        #: Holders of chunks that are not in the ledger yet.
        self._early: dict[ChunkId, set[MemberId]] = {}
        #: Id of the next group of absent chunks.
        self.next_group = 1
        self._reported: tuple[GroupId, frozenset[ChunkId]] | None = None

    # --- chunks that are here ---------------------------------------------------------------

    def add(self, member: MemberId, chunks: Iterable[ChunkInfo]) -> None:
        """Add new chunks, owned and held by the member that built them."""
        for chunk in chunks:
            if chunk.id in self.info:
                raise LocalProtocolError(f"chunk {chunk.id} added twice, now from {member}")
            self.info[chunk.id] = chunk
            self.holders[chunk.id] = set()
            for holder in sorted({member} | self._early.pop(chunk.id, set())):
                self.hold(holder, [chunk.id])
            self._own(chunk.id, member)
            self.total_rows += chunk.rows
            self.total_bytes += chunk.nbytes

    def hold(self, member: MemberId, chunks: Iterable[ChunkId]) -> None:
        """Add copies that a member holds; copies of unknown chunks count once those are added."""
        for chunk in chunks:
            if chunk not in self.info:
                self._early.setdefault(chunk, set()).add(member)
            elif member not in self.holders[chunk]:
                self.changes += 1
                self.holders[chunk].add(member)
                self.held.setdefault(member, set()).add(chunk)
                nbytes = self._held_bytes.get(member, 0) + self.info[chunk].nbytes
                self._held_bytes[member] = nbytes

    def release(self, member: MemberId, chunks: Iterable[ChunkId]) -> None:
        """Remove copies that a member drops; it must not own them."""
        for chunk in chunks:
            if self._owner.get(chunk) == member:
                raise LocalProtocolError(f"{member} dropped chunk {chunk}, which it owns")
            if member in self.holders[chunk]:
                self.changes += 1
                self.holders[chunk].discard(member)
                self.held[member].discard(chunk)
                self._held_bytes[member] -= self.info[chunk].nbytes

    def owner(self, chunk: ChunkId) -> MemberId | None:
        """Return the owner of a chunk, or None while it is absent."""
        return self._owner.get(chunk)

    def move(self, chunk: ChunkId, target: MemberId) -> None:
        """Transfer an owned chunk to another holder of its body."""
        former = self._owner[chunk]
        if target not in self.holders[chunk]:
            raise LocalProtocolError(f"chunk {chunk} cannot go to {target}, which has no copy")
        self.owned[former].discard(chunk)
        if not self.owned[former]:
            self.emptied.add(former)
        self._rows[former] -= self.info[chunk].rows
        self.versions[former] += 1
        self.reowned.add(former)
        self._own(chunk, target)

    def chunks_of(self, member: MemberId) -> tuple[ChunkId, ...]:
        """Return the chunks that a member owns, ascending."""
        version, known = self.versions.get(member, 0), self._ordered.get(member)
        if known is None or known[0] != version:
            known = self._ordered[member] = version, tuple(sorted(self.owned.get(member, ())))
        return known[1]

    def rows_of(self, member: MemberId) -> int:
        """Return the number of examples that a member owns."""
        return self._rows.get(member, 0)

    def rows_by_member(self) -> dict[MemberId, int]:
        """Return the number of examples that each member owns, as a new dictionary."""
        return self._rows.copy()

    def holds(self, member: MemberId, chunk: ChunkId) -> bool:
        """Whether a member holds a chunk's body."""
        return member in self.holders.get(chunk, ())

    def held_bytes(self, member: MemberId) -> int:
        """Return the bytes of the bodies that a member holds, owned or not."""
        return self._held_bytes.get(member, 0)

    def rows(self, chunks: Iterable[ChunkId]) -> int:
        """Return the number of examples in these chunks."""
        return sum(self.info[c].rows for c in chunks)

    def _own(self, chunk: ChunkId, member: MemberId) -> None:
        self.changes += 1
        self._owner[chunk] = member
        self.owned.setdefault(member, set()).add(chunk)
        self.emptied.discard(member)
        self._rows[member] = self._rows.get(member, 0) + self.info[chunk].rows
        self.versions[member] = self.versions.get(member, 0) + 1
        self.reowned.add(member)

    def adopt(self, chunk: ChunkId, member: MemberId) -> None:
        """Give a chunk removed from the open set to a holder of its body."""
        if chunk in self._owner or member not in self.holders[chunk]:
            raise LocalProtocolError(f"chunk {chunk} cannot be adopted by {member}")
        self._own(chunk, member)

    # --- chunks that are lost and return ------------------------------------------------------

    def lose(self, member: MemberId) -> tuple[ChunkId, ...]:
        """Remove a lost member; its chunks become absent, in the open set; return them."""
        self.changes += 1
        chunks = self.owned.pop(member, set())
        self.emptied.discard(member)
        version = self.versions.pop(member, 0)
        self._ordered.pop(member, None)
        self.reowned.discard(member)
        for chunk in chunks:
            del self._owner[chunk]
        for chunk in self.held.pop(member, ()):
            self.holders[chunk].discard(member)
        for members in self._early.values():
            members.discard(member)
        self._held_bytes.pop(member, None)
        self._rows.pop(member, None)
        if chunks:
            self.open[member] = set(chunks)
            self.last_versions[member] = version
        return tuple(sorted(chunks))

    def absent_rows(self) -> int:
        """Return the number of examples without an owner."""
        return sum(g.rows for g in self.groups.values()) + sum(
            self.rows(chunks) for chunks in self.open.values()
        )

    def report(self, in_sum: frozenset[MemberId]) -> tuple[GroupId | None, frozenset[ChunkId]]:
        """Return the open chunks that a sum lacks, and an id for them.

        Parameters
        ----------
        in_sum : frozenset of MemberId
            Members whose chunks the sum contains, even if they were lost since.

        Returns
        -------
        (GroupId or None, frozenset of ChunkId)
            The same chunks get the same id, other chunks a new one.
        """
        missing = frozenset(
            c for member, chunks in self.open.items() if member not in in_sum for c in chunks
        )
        if not missing:
            return None, missing
        if self._reported is None or self._reported[1] != missing:
            self._reported = (GroupId(self.next_group), missing)
            self.next_group += 1
        return self._reported[0], missing

    def seal(self) -> Group | None:
        """Turn the chunks last reported into a group; later losses stay open."""
        if self._reported is None:
            return None
        group_id, chunks = self._reported
        self._reported = None
        shares = {
            member: tuple(sorted(c)) for member, c in sorted(self.open.items()) if c and c <= chunks
        }
        self.open = {m: c for m, c in self.open.items() if m not in shares}
        for member in shares:
            self.last_versions.pop(member, None)
        absent = tuple(sorted(c for share in shares.values() for c in share))
        group = Group(id=group_id, shares=shares, rows=self.rows(absent), chunks=absent)
        self.groups[group_id] = group
        return group

    def readmit(self, group_id: GroupId, owners: Mapping[ChunkId, MemberId]) -> Group:
        """End a group's absence: each of its chunks gets an owner that holds it."""
        group = self.groups[group_id]
        chunks = group.chunks
        if tuple(sorted(owners)) != chunks:
            raise LocalProtocolError(f"group {group_id} must come back whole")
        for chunk in chunks:
            if owners[chunk] not in self.holders[chunk]:
                raise LocalProtocolError(f"chunk {chunk} is not held by {owners[chunk]}")
        del self.groups[group_id]
        for chunk in chunks:
            self._own(chunk, owners[chunk])
        return group

    # --- invariants -------------------------------------------------------------------------

    def check(self, living: Collection[MemberId], part: int = 0, parts: int = 1) -> None:
        """Check all invariants: each chunk has one living owner, or is absent in one place.

        Parameters
        ----------
        living : collection of MemberId
        part, parts : int
            Check members and chunks number ``part`` of every ``parts``. The last part also checks
            what needs all of them; the others only that as many chunks are somewhere as there are.

        Raises
        ------
        LocalProtocolError
            When an invariant is violated.
        """
        self._check_owners(living, part, parts)
        self._check_holders(living, part, parts)
        if part < parts - 1:
            self._check_count()
            return
        self._check_places()
        if sum(i.rows for i in self.info.values()) != self.total_rows:
            raise LocalProtocolError("rows do not add up")
        if sum(i.nbytes for i in self.info.values()) != self.total_bytes:
            raise LocalProtocolError("bytes do not add up")

    def _check_owners(self, alive: Collection[MemberId], part: int, parts: int) -> None:
        """Check that owners are alive, hold what they own, and that their examples add up."""
        info, holders, owner = self.info, self.holders, self._owner
        for member, chunks in islice(self.owned.items(), part, None, parts):
            if chunks and member not in alive:
                raise LocalProtocolError(f"{member} owns {len(chunks)} chunks and is not alive")
            rows = 0
            for chunk in chunks:
                rows += info[chunk].rows
                if member not in holders[chunk] or owner.get(chunk) != member:
                    raise LocalProtocolError(
                        f"owner {member} of {chunk} is not recorded as owner and holder"
                    )
            if rows != self.rows_of(member):
                raise LocalProtocolError(f"rows of {member} do not add up")
        is_last = part == parts - 1
        if is_last and self.emptied != {m for m, chunks in self.owned.items() if not chunks}:
            raise LocalProtocolError("the members without chunks are not those that own none")

    def _check_holders(self, alive: Collection[MemberId], part: int, parts: int) -> None:
        """Check that ``holders`` and ``held`` agree, and that holders are alive."""
        info, held = self.info, self.held
        for member, chunks in islice(held.items(), part, None, parts):
            if sum([info[c].nbytes for c in chunks]) != self.held_bytes(member):
                raise LocalProtocolError(f"bytes that {member} holds do not add up")
        for chunk, members in islice(self.holders.items(), part, None, parts):
            for member in members:
                if chunk not in held.get(member, ()):
                    raise LocalProtocolError(
                        f"chunk {chunk} has holder {member}, whose held chunks lack it"
                    )
                if member not in alive:
                    raise LocalProtocolError(f"chunk {chunk} is held by a member that is gone")

    def _check_count(self) -> None:
        """Check that there are as many chunks with an owner, or absent, as there are chunks."""
        owned = sum(map(len, self.owned.values()))
        absent = sum(map(len, self.open.values())) + sum(
            len(g.chunks) for g in self.groups.values()
        )
        if owned != len(self._owner) or owned + absent != len(self.info):
            raise LocalProtocolError(
                f"{owned} chunks have an owner, {absent} are absent, and there are {len(self.info)}"
            )

    def _check_places(self) -> None:
        """Check that each chunk has one owner, or is absent in one place."""
        places: list[ChunkId] = []
        for sets in (self.owned.values(), self.open.values()):
            for chunks in sets:
                places += chunks
        for group in self.groups.values():
            places += group.chunks
        if len(places) == len(self.info) and self.info.keys() == set(places):
            return
        counts = Counter(places)
        for chunk in [*self.info, *counts]:
            if counts[chunk] != 1 or chunk not in self.info:
                raise LocalProtocolError(
                    f"chunk {chunk} is in {counts[chunk]} places: {self._places_of(chunk)}"
                )

    def _places_of(self, chunk: ChunkId) -> list[str]:
        return [
            *(f"owner {m}" for m, chunks in self.owned.items() if chunk in chunks),
            *(f"open, of {m}" for m, chunks in self.open.items() if chunk in chunks),
            *(f"group {g.id}" for g in self.groups.values() if chunk in g.chunks),
        ]
