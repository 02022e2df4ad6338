"""The rounds of a trainer whose models are certified: until one is good enough, or is asked for."""

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
    """A model between rounds, and what is known of it."""

    def reached(self) -> Model | None:
        """Return the model where it is good enough; None where it is not."""
        ...

    def round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Make one round."""
        ...

    def tune(self, tuned: Mapping[str, Scalar]) -> None:
        """Take over settings that a policy has changed."""
        ...

    def finish(self) -> Generator[Exchange, Outcome, Model]:
        """Make the model when the job stops."""
        ...


def rounds_of(certified: Certified) -> Trainer:
    """Make rounds until the model is good enough, or the driver says that this is all."""
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
