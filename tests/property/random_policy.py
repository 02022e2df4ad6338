"""A policy that makes random suggestions: valid, invalid, and void ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from elasticml.control.policy import (
    Discard,
    Move,
    Readmit,
    Replicate,
    Request,
    Retire,
    Suggestion,
    Tune,
    View,
)
from elasticml.control.seeded_random import hash64, shuffled
from elasticml.ids import ChunkId, GroupId, MemberId

UNKNOWN = MemberId(77, 7)
NOTHING = ChunkId("nothing", 9, 9)

T = TypeVar("T")


def pick(items: Sequence[T], key: int) -> T:
    """Return an item drawn by the key."""
    return items[hash64(key) % len(items)]


class RandomPolicy:
    """Suggests things drawn from a seed and the round, of the configured kinds."""

    name = "nonsense"

    def __init__(self, seed: int, kinds: Sequence[str], rounds_max: int = 12) -> None:
        self.seed = seed
        self.kinds = tuple(kinds)
        self.rounds_max = rounds_max

    def suggest(self, view: View) -> list[Suggestion]:
        if view.round >= self.rounds_max:
            return []
        draws = (hash64(self.seed, view.round, k) for k in range(10_000))
        return [made for kind in self.kinds for made in self._of(kind, view, draws)]

    def _of(self, kind: str, view: View, draws: Iterator[int]) -> list[Suggestion]:
        assert view.chunks is not None
        there = [*view.working, *view.spares, *view.leaving]
        members = [*(m.id for m in there), UNKNOWN]
        chunks = [*(c for m in there for c in view.chunks.of(m.id)), NOTHING]
        some = shuffled(chunks, next(draws))[: next(draws) % 5]
        targets = {c: pick(members, next(draws)) for c in some}
        who = pick(members, next(draws))
        groups = [*(g.id for g in view.groups), GroupId(99)]
        made: dict[str, Suggestion] = {
            "move": Move(targets=targets, why="nonsense"),
            "replicate": Replicate(targets=targets, why="nonsense"),
            "discard": Discard(
                member=who, chunks=tuple(sorted({*some, *view.chunks.held_by(who)})), why="nonsense"
            ),
            "retire": Retire(members=(who, UNKNOWN), why="nonsense", targets=targets or None),
            "request": Request(count=next(draws) % 3 - 1, why="nonsense"),
            "tune": Tune(name="size", value=next(draws) % 4, why="nonsense"),
            "readmit": Readmit(
                group=pick(groups, next(draws)), targets=(who,), why="nonsense", owners=targets
            ),
        }
        return [made[kind]]
