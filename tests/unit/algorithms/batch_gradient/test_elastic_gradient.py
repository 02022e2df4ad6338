"""The sums over the present examples while groups are lost and return, outcome by outcome."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import Exchange, Outcome
from elasticml.algorithms.batch_gradient.elastic_gradient import (
    AbsenceRules,
    ElasticGradient,
    Point,
)
from elasticml.algorithms.scaling import Columns
from elasticml.ids import ExchangeId, GroupId

ONE, TWO = GroupId(1), GroupId(2)


def elastic() -> ElasticGradient:
    return ElasticGradient(
        columns=Columns(n_columns=1, intercept=False),
        rules=AbsenceRules.of("taylor", is_paper=True),
        cached_anchors=False,
        total_weight=6.0,
    )


def point(serial: int) -> Point:
    return Point(serial=serial, w=np.full(1, float(serial)))


def outcome(loss: float, weight: float, exchange: int = 1, **more: Any) -> Outcome:
    """Return sums with this loss, over as many examples as they weigh, of six."""
    arrays = {"loss": np.array(loss), "gradient": np.array([loss]), "weight": np.array(weight)}
    n = int(weight)
    return Outcome(
        exchange=ExchangeId(exchange), arrays=arrays, examples=n, absent_examples=6 - n, **more
    )


def ended(part: Generator[Exchange, Outcome, Any], *outcomes: Outcome) -> Any:
    """Answer all exchanges of a generator, and return its result."""
    next(part)
    for answer in outcomes[:-1]:
        part.send(answer)
    with pytest.raises(StopIteration) as end:
        part.send(outcomes[-1])
    return end.value.value


def evaluation(made: ElasticGradient, serial: int) -> Generator[Exchange, Outcome, Any]:
    return made.evaluate(point(serial), {}, roll_back=False)


def test_after_a_loss_the_known_sums_are_those_of_the_survivors() -> None:
    made = elastic()
    ended(evaluation(made, 0), outcome(12.0, 6.0))
    survivors = outcome(8.0, 4.0, opened=ONE)
    ended(made.stand_in(outcome(7.0, 4.0, 2, opened=ONE)), survivors)
    assert made.last_evaluated is not None
    assert (made.last_evaluated.sums.loss, made.last_evaluated.sums.weight) == (8.0, 4.0)
    # The next loss is the difference to them.
    more = {"opened": TWO, "absent": (ONE,)}
    ended(made.stand_in(outcome(2.0, 1.0, 3, **more)), outcome(5.0, 3.0, 4, **more))
    shares = [entry.sums for entry in made.stand_ins.entries.values() if entry is not None]
    assert [(share.loss, share.weight) for share in shares] == [(4.0, 2.0), (3.0, 1.0)]


def test_a_sum_is_not_used_if_more_examples_are_lost_before_the_correction() -> None:
    made = elastic()
    ended(evaluation(made, 0), outcome(12.0, 6.0))
    part = evaluation(made, 1)
    assert next(part).operation == "gradient"
    correction = part.send(outcome(9.0, 5.0, 2, opened=ONE))
    assert correction.parameters["point"] == 0
    again = part.send(outcome(8.0, 4.0, 3, opened=TWO))
    assert (again.operation, again.parameters["point"]) == ("gradient", 1)
    with pytest.raises(StopIteration) as end:
        part.send(outcome(7.0, 4.0, 4, absent=(TWO,)))
    assert end.value.value.sums.loss == 7.0


def test_two_points_are_compared_only_over_the_same_examples() -> None:
    made = elastic()
    made.stand_ins.push(ONE, None)
    for serial in (0, 1):
        ended(evaluation(made, serial), outcome(8.0, 4.0, absent=(ONE,)))
    assert made.before is not None
    assert made.before.point.serial == 0
    ended(evaluation(made, 2), outcome(12.0, 6.0))
    assert made.before is None
    ended(evaluation(made, 3), outcome(11.0, 6.0))
    assert made.before is not None
    assert made.before.point.serial == 2
