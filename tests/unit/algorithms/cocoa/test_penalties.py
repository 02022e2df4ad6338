"""One contract of all penalties of coefficients, and jobs with those of a user."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

import elasticml as em
from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.errors import ConfigError
from elasticml.objectives.penalties import TAKEN, Absolute, complete, has_conjugate
from elasticml.objectives.penalty_kernels import Penalty, make_penalty
from tests.own_penalties import BY_NUMPY, PATH, Net, Positive, Rounded, Silent
from tests.property.schedules import moves
from tests.reference import Reference, split_columns
from tests.serial_world import Return, Run, Vanish, World

RNG = np.random.default_rng(5)
N, D = 80, 16
X = RNG.normal(size=(N, D)) * RNG.uniform(0.5, 2.0, D) + RNG.normal(size=D)
Y = X[:, :6] @ RNG.normal(size=6) + RNG.normal(size=N) + 5.0
LABELS = np.where(np.median(Y) < Y, 1.0, -1.0)
LOST = [
    Vanish(round=1, members=(0,), during="certify"),
    Vanish(round=2, members=(1,), during="pass", counted=True),
    Return(round=5),
]


def run(penalty: type | None, y: np.ndarray = Y, *, absent: str = "reload", **given: Any) -> Run:
    """Train while members vanish and return."""
    own = {} if penalty is None else {"penalty": PATH + penalty.__name__}
    world = World(
        settings={"intercept": True, "tolerance": 1e-12, "gap_every": 1, **own, **given},
        parts=split_columns(X, y, None, 3),
        algorithm="primal_cocoa",
        absent=absent,
        reloads=absent == "reload",
        schedule=LOST,
        between=moves(0.3),
    )
    return world.run(3000)


@pytest.mark.parametrize(
    "terms",
    [Absolute(), Absolute(positive=True), Net(0.3, 0.7), Rounded(), Positive(0.4), Silent()],
)
def test_steps_minimise_and_conjugates_are_the_least_bounds(terms: Any) -> None:
    complete(type(terms))
    grid = np.linspace(-4.0, 4.0, 8001)
    cost = np.array([terms.cost(w) for w in grid.tolist()])
    assert (terms.cost(0.0), min(cost)) == (0.0, 0.0)
    for v in (-2.3, -0.5, 0.0, 0.31, 1.7):
        for c in (0.0, 0.6, 2.0):
            w = terms.prox(v, c)
            allowed = cost < np.inf
            least = (0.5 * (grid - v) ** 2)[allowed] + c * cost[allowed]
            assert 0.5 * (w - v) ** 2 + c * terms.cost(w) == pytest.approx(min(least), abs=1e-6)
            best = Penalty(1.5 * c, 0.3, terms).best(v, 2.0)
            assert best == pytest.approx(terms.prox(v / 2.3, 1.5 * c / 2.3), abs=1e-15)
    if not has_conjugate(terms):
        assert terms.conjugate(0.3) == math.inf
        return
    for u in np.linspace(-2.0, 2.0, 42).tolist():
        bounds = u * grid - cost
        # Without a maximum within the grid there is none at all.
        is_inside = max(bounds) > max(bounds[0], bounds[-1])
        expected = pytest.approx(max(bounds), abs=1e-6) if is_inside else math.inf
        assert terms.conjugate(u) == expected
        near = terms.nearest(u)
        assert terms.conjugate(near) < math.inf
        assert near == u or terms.conjugate(near + 1e-9 * np.sign(u)) == math.inf


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_an_elastic_net_by_hand_is_the_built_in_one(loss: str) -> None:
    y, strengths = LABELS if loss == "logistic" else Y, {"l1": 0.03, "l2": 0.05}
    own = run(Net, y, loss=loss, penalty_options=strengths, tolerance=0.0)
    ours = run(None, y, loss=loss, **strengths, tolerance=0.0)
    assert (own.model.converged, ours.model.converged) == (True, True)
    assert own.model.objective == pytest.approx(ours.model.objective, rel=1e-14)
    for name in ("coef", "intercept"):
        found, expected = own.model.arrays[name], ours.model.arrays[name]
        # A gap that is rounding leaves them this much room.
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-8)


def test_sweeps_with_an_elastic_net_by_hand_end_where_those_of_the_built_in_one_do() -> None:
    matrix, ends = ColumnMatrix(X, Y, None, centred=True), []
    for penalty in (Penalty(0.03 * N, 0.05 * N), make_penalty(N, 0.0, complete(Net)(0.03, 0.05))):
        w, r = np.zeros(D), matrix.residual(np.zeros(D))
        matrix.sweep(np.arange(D), w, r, penalty, 1000)
        ends.append(w)
    np.testing.assert_allclose(*ends, rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("absent", ["reload", "freeze", "stall"])
@pytest.mark.parametrize(("penalty", "loss"), [(Rounded, "logistic"), (Positive, "squared")])
def test_a_penalty_is_certified_at_scipys_optimum_when_columns_come_and_go(
    penalty: type, loss: str, absent: str
) -> None:
    y = LABELS if loss == "logistic" else Y
    reference = Reference(
        X=X, y=y, loss=loss, l2=0.01, has_intercept=True,
        positive=penalty is Positive, penalty=BY_NUMPY[PATH + penalty.__name__],
    )  # fmt: skip
    start = {"coef": RNG.normal(size=D).tolist()}
    found = run(penalty, y, loss=loss, l2=0.01, absent=absent, warm_start=start)
    assert found.model.converged
    assert reference.of_arrays(found.model.arrays) <= reference.least * (1.0 + 1e-8)
    for row in found.rows:
        true = reference.of_arrays(row.model)
        assert row.objective == pytest.approx(true, rel=1e-9)
        assert true - reference.least <= row.gap + 1e-9 * true


SPARSE = scipy.sparse.csr_array(X * (RNG.random(X.shape) < 0.3))


@pytest.mark.parametrize("rows", [X, SPARSE])
@pytest.mark.parametrize(("penalty", "loss"), [(Rounded, "logistic"), (Positive, "squared")])
def test_an_estimator_certifies_a_penalty_at_scipys_optimum(
    penalty: type, loss: str, rows: Any
) -> None:
    settings = {"l1_ratio": 0.9, "tol": 1e-11, "penalty": penalty}
    # Both minimise the mean loss plus 0.9 times the penalty, and an L2 term of 0.1.
    ours = em.ElasticNet(1.0, **settings)
    if loss == "logistic":
        ours = em.LogisticRegression(C=1.0 / N, **settings)
    y, (cost, slope) = LABELS if loss == "logistic" else Y, BY_NUMPY[PATH + penalty.__name__]
    reference = Reference(
        X=rows, y=y, loss=loss, l2=0.1, has_intercept=True, positive=penalty is Positive,
        penalty=(lambda w: 0.9 * cost(w), lambda w: 0.9 * slope(w)),
    )  # fmt: skip
    fit = clone(ours).fit(rows, y)
    found = reference.objective(np.ravel(fit.coef_), float(np.ravel(fit.intercept_)[0]))
    assert found == pytest.approx(reference.least, rel=1e-8)
    assert 0.0 <= fit.dual_gap_ <= 1e-8 * found
    rough = clone(ours).set_params(max_iter=1)
    with pytest.warns(UserWarning, match="the duality gap is"):
        rough.fit(rows, y)
    short = reference.objective(np.ravel(rough.coef_), float(np.ravel(rough.intercept_)[0]))
    assert 1e-8 * found < short - found <= rough.dual_gap_ * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"penalty": "l1"}, "penalty: got 'l1', .* l1_ratio=1 the L1 penalty"),
        ({"penalty": Silent}, "Silent with the weight 0.5, wanted a method conjugate"),
        ({"penalty": Rounded, "alpha": 0.0}, "with the weight 0, .* a weight above 0"),
        ({"penalty": Rounded, "positive": True}, "positive: got True, wanted none with a penalty"),
        ({"penalty_options": {"a": 1.0}}, "penalty_options: belongs to a penalty of your own"),
    ],
)
def test_an_estimator_refuses_a_penalty_that_it_cannot_certify(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        em.ElasticNet(**given).fit(X, Y)


def test_a_classifier_with_a_penalty_has_two_classes() -> None:
    with pytest.raises(ValueError, match="penalty with 3 classes: got one of your own"):
        em.LogisticRegression(penalty=Rounded, l1_ratio=1.0).fit(X, np.arange(N) % 3)


@pytest.mark.parametrize("most", [0.7, 1.6])
def test_the_conjugate_allows_for_errors_of_products(most: float) -> None:
    penalty = make_penalty(N, 0.0, complete(Rounded)())
    u = np.array([0.4, -0.1, 0.0, -0.6]) * most
    error = np.array([0.1, 0.5, 0.2, 0.0]) * most
    ends = abs(u) + error
    share, total = penalty.conjugate_at(0.1 * N * u, 0.1 * N * error)
    assert share == pytest.approx(min(1.0, 1.0 / max(ends)))
    expected = 0.1 * N * 0.5 * 0.2 * float(((share * ends) ** 2).sum())
    assert total == pytest.approx(expected)


def test_a_penalty_without_conjugate_ends_at_the_optimum_without_a_gap() -> None:
    reference = Reference(
        X=X, y=Y, loss="squared", has_intercept=True, penalty=BY_NUMPY[PATH + "Silent"]
    )
    given = {
        "settings": {"penalty": PATH + "Silent", "intercept": True},
        "parts": split_columns(X, Y, None, 3),
        "algorithm": "primal_cocoa",
        "absent": "reload",
    }
    first = World(**given, reloads=True, schedule=LOST).run(7)
    values = json.loads(json.dumps(dict(first.rows[-1].resume.values), allow_nan=False))
    found = World(**given, resume=replace(first.rows[-1].resume, values=values)).run(300)
    assert found.model.gap is None
    for row in (*first.rows, *found.rows):
        assert (row.gap, row.next_gap, row.extra["dual"], row.extra["gap_best"]) == (None,) * 4
    assert found.model.objective == pytest.approx(reference.least, rel=1e-8)
    with pytest.raises(ConfigError, match=r"stop\.gap: .*Silent, which has no method conjugate"):
        em.Job(
            em.PrimalCoCoA(penalty=Silent), em.from_arrays(X, Y, by="columns"), stop={"gap": 1e-3}
        )


class Shifted(Silent):
    def cost(self, w: float) -> float:
        return 1.0 + w * w


class Wrong(Silent):
    def conjugate(self, u: float) -> float:
        return 0.0


class Negative(Silent):
    def cost(self, w: float) -> float:
        return -abs(w)


class Still(Silent):
    def prox(self, v: float, c: float) -> float:
        return v


class Root(Silent):
    def cost(self, w: float) -> float:
        return math.sqrt(w + 1.0) - 1.0


class Named(Silent):
    def value(self, w: float) -> float:
        return self.cost(w)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"penalty": "l1"}, r"penalty: got 'l1', wanted the import path .* l1 and l2"),
        ({"penalty": "no.where:Net"}, "penalty: got 'no.where:Net', which cannot be imported"),
        ({"penalty": "math:exp"}, "penalty: wanted a NamedTuple with the methods cost and prox"),
        ({"penalty": PATH + "Net"}, "penalty_options: .*Net' does not take them: .*'l1' and 'l2'"),
        ({"penalty": Silent, "l1": 0.02}, r"l1: got 0\.02, wanted none with a penalty of your own"),
        ({"penalty_options": {"a": 1.0}}, "penalty_options: belongs to a penalty of your own"),
        (
            {"penalty": Net, "penalty_options": {"l1": 1.0, "l2": 0.0}},
            "penalty: Net fails for a coefficient between -3 and 2: float division by zero",
        ),
        ({"penalty": Root}, "penalty: Root fails for a coefficient between -3 and 2: "),
        ({"penalty": Negative}, r"Negative.cost\(-3\) is -3, wanted at least 0"),
        ({"penalty": Still}, r"Still.prox\(-3, 0.1\) is -3, and .* is better"),
        ({"penalty": Shifted}, r"Shifted.cost\(0\) is 1, wanted 0"),
        ({"penalty": Wrong}, r"Wrong.conjugate\(-3\) is 0, wanted at least 8.55"),
        (
            {"penalty": Named},
            "Named has a method value, a name that losses or kernels use otherwise; rename it",
        ),
    ],
)
def test_settings_that_are_wrong_are_named_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        em.PrimalCoCoA(**given)
    assert "\n" not in str(caught.value)


def test_a_multiple_is_divided_among_parts() -> None:
    assert Penalty(2.0, 3.0).times(6.0, 4.0) == Penalty(3.0, 4.5)


def test_names_that_kernels_use_are_refused() -> None:
    assert {name for name in vars(Penalty) if name in TAKEN} == {
        name
        for name, method in vars(Penalty).items()
        if isinstance(method, FunctionType) and not name.startswith("_")
    }
