"""The outer loop of trainers whose models have a certified duality gap."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Protocol

from elasticml.algorithms.base import (
    Exchange,
    Model,
    Outcome,
    Proceed,
    RoundEnd,
    Scalar,
    Trainer,
)


class Certified(Protocol):
    """A model between rounds, with its certificate."""

    def reached(self) -> Model | None:
        """Return the model if it meets the tolerance; else None."""
        ...

    def round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Run one round."""
        ...

    def tune(self, tuned: Mapping[str, Scalar]) -> None:
        """Apply settings that a policy has changed."""
        ...

    def finish(self) -> Generator[Exchange, Outcome, Model]:
        """Return the final model when the job stops."""
        ...


def rounds_of(certified: Certified) -> Trainer:
    """Run rounds until the model meets its tolerance or the driver stops the job."""
    while True:
        reached = certified.reached()
        if reached is not None:
            return reached
        ended = yield from certified.round()
        proceed: Any = yield ended
        if not proceed:
            return (yield from certified.finish())
        if isinstance(proceed, Proceed):
            certified.tune(proceed.tuned)
