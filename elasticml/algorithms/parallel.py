"""The simplest ``Parallel``: one thread, the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Serial:
    """Maps in the calling thread, for simulators, tests and members with one thread."""

    n_threads: int = 1

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item in turn."""
        return [function(item) for item in items]
