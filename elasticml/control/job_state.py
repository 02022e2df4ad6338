"""The state of the driver machine, shared by the components that change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, ParamSpec

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.ledger import Ledger
from elasticml.control.membership import MemberRecord, Membership
from elasticml.control.tree_layout import (
    LAID_OUT_ANEW_MAX,
    Below,
    children,
    kept_order,
    layout,
    rewired,
    separate,
    take_out,
)
from elasticml.control.tree_node import TreeNode
from elasticml.ids import ExchangeId, Generation, Mask, MemberId, mask_of
from elasticml.protocol.commands import Command, Order, Own, Record, Rewire
from elasticml.story.records import StoryRecord

P = ParamSpec("P")
#: Stages of members that stay.
STEADY: Final = ("active", "spare")
Stage = Literal["gathering", "surveying", "reading", "dealing", "training", "ended"]


@dataclass(slots=True)
class JobState:
    """The driver's state of one job, without arrays."""

    settings: DriverSettings
    stage: Stage = "gathering"
    membership: Membership = field(default_factory=Membership)
    ledger: Ledger = field(default_factory=Ledger)
    root: TreeNode = field(default_factory=lambda: TreeNode(None))
    #: The reduction tree of the current generation.
    parents: dict[MemberId, MemberId | None] = field(default_factory=dict)
    #: The same tree as children of each node.
    below: Below = field(default_factory=lambda: {None: []})
    generation: Generation = Generation(0)
    #: The members in the order in which the tree was last filled.
    order: list[MemberId] = field(default_factory=list)
    #: Members that were sent a place since the last exchange started.
    rewired: set[MemberId] = field(default_factory=set)
    #: Mask of the members that must know the current generation before they compute; None: all.
    moved: Mask | None = None
    #: Members between which a link stayed down, both ways: they are not adjacent in the tree.
    cut: dict[MemberId, set[MemberId]] = field(default_factory=dict)
    #: Addresses of workers that the job takes no more, and the kind of their fault.
    excluded: dict[str, str] = field(default_factory=dict)
    #: Membership or ownership has changed since the tree was laid out.
    stale_layout: bool = True
    #: Chunk-set version last sent to each member with Own.
    announced_versions: dict[MemberId, int] = field(default_factory=dict)
    round: int = 0
    last_exchange: ExchangeId = ExchangeId(0)
    #: The last exchange that the root has closed.
    closed_exchange: ExchangeId = ExchangeId(0)
    cause: str = ""
    #: Wanted number of holders of each body; fixed when the data are known.
    holders: int = 1
    #: Members that policies have requested from the cluster and that have not arrived.
    requested: int = 0
    #: Members that pay, as policies have decided; None: they have decided nothing.
    members_worth: int | None = None
    #: Number of the last order that sends chunks.
    last_order: int = 0
    #: Addresses of workers that were there at the submission and are gone, before the job starts.
    gone: set[str] = field(default_factory=set)

    @property
    def n_start(self) -> int:
        """Number of members with which the job starts."""
        settings = self.settings
        least = min(settings.start_members, max(1, settings.members_min))
        return max(least, settings.start_members - len(self.gone))

    def next_order(self) -> int:
        """Return the number of a new order that sends chunks."""
        self.last_order += 1
        return self.last_order

    def settle_holders(self) -> None:
        """Fix the wanted number of holders of each body, now that all bodies are known."""
        if self.settings.holders is not None:
            self.holders = self.settings.holders
            return
        limits = [m.in_memory_bytes for m in self.membership.members.values()]
        total = sum(info.nbytes for info in self.ledger.info.values())
        memory = sum(limit for limit in limits if limit is not None)
        self.holders = 2 if None in limits or 2 * total <= memory else 1

    def record(self, kind: Callable[P, StoryRecord], /, *_: P.args, **fields: P.kwargs) -> Record:
        """Return the command that appends a record, with the current round and cause."""
        made: Callable[..., StoryRecord] = kind
        return Record(cause=self.cause, record=made(cause=self.cause, round=self.round, **fields))

    def relayout(self) -> list[Command]:
        """Rebuild the tree, between exchanges, and tell working members their places.

        In a large tree members keep their places, and only those whose place or chunks have changed
        are told.
        """
        if not self.stale_layout:
            return []
        self.stale_layout = False
        # Leaving members come last, where no other member depends on them; older members first.
        staying, leaving = self.membership.stage("active"), self.membership.stage("leaving")
        self.generation = Generation(self.generation + 1)
        former, n = self.parents, len(staying) + len(leaving)
        keeps = n > LAID_OUT_ANEW_MAX and bool(self.order)
        ids = [m.id for m in staying], [m.id for m in leaving]
        self.order = kept_order(self.order, *ids) if keeps else [*ids[0], *ids[1]]
        self.parents = layout(
            self.order,
            self.settings.topology,
            self.settings.fan_out,
            len({m.host for m in (*staying, *leaving)}),
        )
        separate(self.parents, self.cut)
        if keeps:
            touched = rewired(former, self.parents, self.below)
            # What was sent since the last exchange may be on its way: it is known when this is.
            touched |= (self.rewired | self.ledger.reowned) & self.parents.keys()
            self.moved = mask_of(m.slot for m in touched)
        else:
            touched, self.moved = set(self.parents), None
            self.below = children(self.parents)
        self.rewired = touched
        self.ledger.reowned.clear()
        commands: list[Command] = []
        for member in sorted(former.keys() - self.parents.keys()):
            if member in self.membership.members:
                commands += self._own(member)  # it must learn that it no longer owns chunks
        for member in sorted(touched):
            commands += self._own(member)
            commands.append(self.rewire(member, self.below.get(member, []), member not in former))
        return commands + self.rewire_root(self.below[None])

    def _own(self, member: MemberId) -> list[Command]:
        """Tell a member what it owns if that has changed since it was last told."""
        version = self.ledger.versions.get(member, 0)
        if self.announced_versions.get(member) == version:
            return []
        self.announced_versions[member] = version
        return [
            Own(
                cause=self.cause,
                member=member,
                generation=self.generation,
                chunks=self.ledger.chunks_of(member),
            )
        ]

    def rewire(self, member: MemberId, below: list[MemberId], is_new: bool = False) -> Order:
        """Return the order that tells a member its place in the current tree."""
        parent = self.parents[member]
        return Rewire(
            cause=self.cause,
            member=member,
            generation=self.generation,
            parent=parent,
            parent_address="" if parent is None else self.membership.members[parent].address,
            children=tuple(below),
            done=self.closed_exchange,
            is_new=is_new,
        )

    def rewire_root(self, below: list[MemberId]) -> list[Command]:
        """Give the root its children in the current tree."""
        return self.root.rewire(self.generation, None, "", below, self.closed_exchange)

    def recipients(self) -> list[MemberId]:
        """List members that may take chunks without an owner: staying ones, preferably unmarked."""
        staying = self.membership.stage("spare", "active")
        return [m.id for m in staying if not m.is_marked] or [m.id for m in staying]

    def steady(self) -> set[MemberId]:
        """Return members that can be given chunks: configured, staying and unmarked."""
        return {
            m.id
            for stage in STEADY
            for m in self.membership.stage(stage)
            if m.configured and not m.is_marked
        }

    def stay(self, record: MemberRecord) -> None:
        """Keep a member whose notice is void: active, or spare if it has no chunks left."""
        record.deadline_s = None
        record.notice_reason = None
        record.is_retiring = False
        self.membership.set_ending(record, False)
        owns = bool(self.ledger.owned.get(record.id))
        self.membership.enter(record, "active" if owns else "spare")
        self.stale_layout = True

    def heal(self, lost: MemberId) -> list[Command]:
        """Attach a lost node's children to its parent at once: an exchange may be running."""
        heir, orphans = take_out(self.parents, self.below, lost)
        return self._reattach({*orphans, *([] if heir is None else [heir])})

    def part(self, member: MemberId, peer: MemberId) -> list[Command]:
        """Keep two members apart from now on: an exchange may be waiting for their link."""
        self.cut.setdefault(member, set()).add(peer)
        self.cut.setdefault(peer, set()).add(member)
        self.stale_layout = True
        return self._reattach(set())

    def _reattach(self, moved: set[MemberId]) -> list[Command]:
        """Tell members their new places in the tree, after moving up those that are cut off."""
        if self.cut:
            former = dict(self.parents)
            separate(self.parents, self.cut)
            moved = moved | rewired(former, self.parents, self.below)
        self.generation = Generation(self.generation + 1)
        commands: list[Command] = []
        for touched in sorted(moved):
            if touched in self.membership.members:
                self.rewired.add(touched)
                commands.append(self.rewire(touched, self.below.get(touched, [])))
        return commands + self.rewire_root(self.below[None])

    def living(self) -> list[MemberId]:
        """List all living members, in any stage."""
        return sorted(self.membership.members)


def names(members: Iterable[MemberId]) -> tuple[str, ...]:
    """Return member ids as text, for a story record."""
    return tuple([str(member) for member in members])
