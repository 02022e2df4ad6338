"""Policies that make the requests which tests of clusters need."""

from __future__ import annotations

from collections.abc import Sequence

from elasticml.control.policy import Request, Suggestion, View

#: The round at whose beginning they act.
ROUND = 5


class Grow:
    """Request three members more."""

    name = "grow"

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Request three, once."""
        return [Request(count=3, why="a test")] if view.round == ROUND else []


class UntilAll:
    """Fail, and so end the job, when it has two members."""

    name = "until_all"

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Suggest nothing."""
        if len(view.working) == 2:
            raise RuntimeError("enough members")
        return []
