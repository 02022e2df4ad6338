"""A policy that suggests what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticml.control.policy import Discard, Move, Readmit, Replicate, Request, Retire, Tune, View
from elasticml.ids import ChunkId, MemberId

A, B, C = (MemberId(slot, 1) for slot in range(3))
STRANGER, NOTHING = MemberId(9, 9), ChunkId("nothing", 7, 7)


def first_of(view: View, member: MemberId, count: int = 1) -> tuple[ChunkId, ...]:
    """Return the first chunks that a member owns."""
    assert view.chunks is not None
    return view.chunks.of(member)[:count]


def _all_to(view: View, target: MemberId) -> dict[ChunkId, MemberId]:
    # Policies of users concatenate them: they are sequences like tuples.
    return {c: target for m in view.working + view.spares for c in first_of(view, m.id, 99)}


def _to(view: View, *targets: MemberId) -> dict[ChunkId, MemberId]:
    """Send the first chunks of A to these members."""
    return dict(zip(first_of(view, A, 9), targets, strict=False))


#: By name: what is suggested in view of the job.
SUGGESTIONS: dict[str, Callable[[View], Sequence[Any]]] = {
    "move": lambda v: [Move(targets=_to(v, B), why="")],
    "move back": lambda v: [Move(targets=dict.fromkeys(first_of(v, B, 1), A), why="")],
    "move two": lambda v: [Move(targets=_to(v, B, C), why="")],
    "move otherwise": lambda v: [Move(targets=_to(v, C, C), why="")],
    "replicate": lambda v: [Replicate(targets=_to(v, B), why="")],
    "replicate everything": lambda v: [Replicate(targets=_all_to(v, C), why="")],
    "discard": lambda v: [
        Discard(member=member, chunks=(*first_of(v, A), *first_of(v, B)), why="")
        for member in v.chunks.holders(*first_of(v, A)) - {A}
    ],
    "discard the last": lambda v: [Discard(member=A, chunks=first_of(v, A), why="")],
    "retire": lambda v: [Retire(members=(B,), why="")],
    "retire to C": lambda v: [
        Retire(members=(B,), targets=dict.fromkeys(first_of(v, B, 99), C), why="")
    ],
    "retire all": lambda v: [Retire(members=(A, B, C), why="")],
    "request 2": lambda v: [Request(count=2, why="")],
    "request 9": lambda v: [Request(count=9, why="")],
    "tune": lambda v: [Tune(name="local_epochs", value=k, why="") for k in (3, 3)],
    "fail": lambda v: [1 / 0],
    "nonsense": lambda v: ["more"],
    "void: move to a stranger": lambda v: [Move(targets=_to(v, STRANGER), why="")],
    "void: move nothing": lambda v: [Move(targets={NOTHING: A}, why="")],
    "void: move to the owner": lambda v: [Move(targets=_to(v, A), why="")],
    "void: replicate to the owner": lambda v: [Replicate(targets=_to(v, A), why="")],
    "void: discard at a stranger": lambda v: [Discard(member=STRANGER, chunks=(NOTHING,), why="")],
    "void: retire a stranger": lambda v: [Retire(members=(STRANGER,), why="")],
    "void: request nothing": lambda v: [Request(count=0, why="")],
    "void: readmit no group": lambda v: [Readmit(group=1, targets=(A,), why="")],  # type: ignore[arg-type]
}


class Says:
    """Makes suggestions at the boundaries before some rounds.

    Parameters
    ----------
    what : mapping of str to int
        Keys of ``SUGGESTIONS``, and their rounds.
    """

    name = "says"

    def __init__(self, what: Mapping[str, int]) -> None:
        self.what = what

    def suggest(self, view: View) -> Sequence[Any]:
        """Return the suggestions of this round."""
        return [
            s for what, at in self.what.items() if at == view.round for s in SUGGESTIONS[what](view)
        ]


class SaysToo(Says):
    """A second policy of a job."""

    name = "says too"
