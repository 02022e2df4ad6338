"""What a policy may see and what it may ask for. Policies are pure: a view in, suggestions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from elasticml.terms import GroupId, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A living member, as a policy sees it."""

    id: MemberId
    host: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A sealed group of absent chunks, as a policy sees it."""

    id: GroupId
    #: Members that owned the chunks, ascending; |Q| is their number.
    former: tuple[MemberId, ...]
    rows: int
    absent_since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The facts at a round boundary."""

    now_s: float
    round: int
    #: Oldest first.
    groups: tuple[GroupView, ...]
    #: Ready members without chunks, and not promised any.
    spares: tuple[MemberView, ...]
    working: tuple[MemberView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmit:
    """Bring a group back: the share of ``former[i]`` goes to ``targets[i]``."""

    group: GroupId
    targets: tuple[MemberId, ...]
    why: str


class Policy(Protocol):
    """Decides between rounds."""

    name: str

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return what shall be done, most urgent first; the driver drops what has become void."""
        ...
