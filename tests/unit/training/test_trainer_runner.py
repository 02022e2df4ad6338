"""The trainer's side of the driver shell: it receives what it requested."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.base import Exchange, Model, Outcome, Trainer
from elasticml.ids import ExchangeId, Mask
from elasticml.protocol.commands import Deliver
from elasticml.training.trainer_runner import TrainerRunner


def test_an_anchor_has_the_arrays_of_its_own_exchange_not_of_the_last_one() -> None:
    """A member is lost in the second exchange, so that the third one's anchor is of the first."""
    outcomes: list[Outcome] = []

    def trainer() -> Trainer:
        for returns in ({"gradient": (2,)}, {"gradient": (2,), "scatter": (2,)}, {"loss": ()}):
            keep = "gradient" in returns
            outcome = yield Exchange(operation="toy", model={}, returns=returns, keep=keep)
            assert isinstance(outcome, Outcome)
            outcomes.append(outcome)
        return Model(arrays={}, converged=True, reason="all asked")

    training = TrainerRunner(trainer())
    training.start()
    training.deliver(deliver(1), [np.array([1.0, 2.0])], [])
    training.deliver(deliver(2), [np.array([3.0, 4.0, 5.0, 6.0])], [])
    training.deliver(deliver(3, of=1), [np.array([7.0])], [(1, np.array([1.5, 0.5]))])
    anchor = outcomes[2].anchor
    assert (training.error, anchor is not None and anchor.exchange) == (None, 1)
    assert anchor is not None
    assert list(anchor.arrays) == ["gradient"]
    np.testing.assert_array_equal(anchor.arrays["gradient"], [1.5, 0.5])


def deliver(exchange: int, of: int | None = None) -> Deliver:
    return Deliver(
        cause="test",
        exchange=ExchangeId(exchange),
        inputs=(),
        order="",
        contributors=Mask(1),
        examples=1,
        absent_examples=0,
        absent=(),
        opened=None,
        anchor_exchange=None if of is None else ExchangeId(of),
    )
