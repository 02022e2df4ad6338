"""The trainer's side of the driver shell: it receives what it requested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import Exchange, Model, Outcome, RoundEnd, Trainer
from elasticml.ids import ExchangeId, Mask
from elasticml.protocol import events as ev
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


def test_a_model_that_is_not_finite_ends_the_job_and_the_one_before_is_kept() -> None:
    def trainer() -> Trainer:
        for value in (1.0, np.nan):
            yield RoundEnd(objective=1.0, next_model={"w": np.array([0.0, value])})
        raise AssertionError

    training = TrainerRunner(trainer())
    assert isinstance(training.start(), ev.RoundFinished)
    failed = training.proceed(True)
    assert isinstance(failed, ev.Failed)
    assert "array 'w' of the model is not finite" in failed.reason
    assert training.last_arrays()["w"].tolist() == [0.0, 1.0]


def nothing() -> Trainer:
    return None
    yield


def infinite() -> Trainer:
    return Model(arrays={"w": np.array([np.inf])}, converged=True, reason="done")
    yield


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        (nothing(), "the trainer returned None, wanted a Model"),
        (None, "the trainer is a NoneType, wanted a generator"),
        (infinite(), "array 'w' of the model is not finite"),
    ],
)
def test_a_trainer_without_a_finite_model_ends_the_job_in_one_line(trainer: Any, why: str) -> None:
    training = TrainerRunner(trainer)
    failed = training.start()
    assert isinstance(failed, ev.Failed)
    assert failed.reason.startswith(why)
    assert training.last_arrays() == {}


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
