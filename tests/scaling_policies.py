"""Policies that ask for what a cluster's own side shall be tested with."""

from __future__ import annotations

from collections.abc import Sequence

from elasticml.control.policy import Request, Retire, Suggestion, View

#: The round at whose beginning they speak.
ROUND = 5


class Shrink:
    """Give one member back."""

    name = "shrink"

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Retire the last member, once."""
        if view.round != ROUND:
            return []
        return [Retire(members=(max(m.id for m in view.working),), why="a test")]


class Grow:
    """Ask for three members more than there are."""

    name = "grow"

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Request three, once."""
        return [Request(count=3, why="a test")] if view.round == ROUND else []
