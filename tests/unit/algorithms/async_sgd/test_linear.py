"""Linear models of asynchronous SGD: gradients against differences, merges, a known optimum."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import Batch, Mail
from elasticml.algorithms.async_sgd.linear import Linear, summable
from elasticml.algorithms.async_sgd.paper import Paper
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.algorithms.targets import Targets
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.errors import ConfigError
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named
from elasticml.specification.algorithms import ASYNC_LOSSES
from examples.papers.support.asgd_reference import mean_of
from tests.reference import Reference
from tests.unit.data.rows import chunk_of


def problem_of(loss="logistic", d=6, **given):
    chosen = loss_named(loss)
    positive = 1.0 if chosen.is_classification else None
    return Linear(loss=chosen, targets=Targets(positive=positive), columns=d, **given)


def as_printed(*args, rate, **given):
    return Paper(problem=problem_of(*args, **given), rate=rate)


def rows_of(kind, n=40, d=6, weighted=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    return chunk_of(kind, X, y, rng.random(n) + 0.1 if weighted else None)


@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
def test_a_step_follows_the_gradient_of_the_objective(kind, weighted, intercept, loss):
    """Central differences of ``value`` over the same rows."""
    problem = as_printed(loss, l2=0.3, intercept=intercept, rate=1.0)
    chunk = rows_of(kind, weighted=weighted)
    total = chunk.n_rows if chunk.weights is None else chunk.weights.sum()
    w = np.random.default_rng(1).standard_normal(6 + intercept)
    numeric = np.empty(w.size)
    for j in range(w.size):
        ends = [
            problem.value({"coef": w + sign * 1e-6 * np.eye(w.size)[j]}, [chunk]) / total
            for sign in (1, -1)
        ]
        numeric[j] = (ends[0] - ends[1]) / 2e-6
    state = problem.begin({"coef": w})
    problem.step(state, Batch(parts=[(chunk, np.arange(chunk.n_rows))]))
    np.testing.assert_allclose(w - state["coef"], numeric, atol=1e-7)


def test_an_offset_keeps_its_coefficient_while_the_others_reach_the_optimum():
    problem = problem_of("squared", l2=0.1, fixed=2, intercept=True)
    chunk = rows_of("dense", weighted=True)
    X, y, s = chunk.values, chunk.labels, chunk.weights
    free, offset = np.delete(X, 2, axis=1), X[:, 2]
    reference = Reference(
        X=free, y=y, loss="squared", weights=s, l2=0.1, offset=offset, has_intercept=True
    )
    states = [problem.begin({}) for _ in range(2)]
    for _ in range(4000):
        for state in states:
            problem.step(state, Batch(parts=[(chunk, np.arange(chunk.n_rows))]))
        problem.merge(states[0], problem.message(states[1], np.random.default_rng(0)))
    coef = mean_of(problem, states)["average"]
    assert coef[2] == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(np.delete(coef, 2), np.append(*reference.best), atol=1e-6)
    expected = s.sum() * reference.least
    assert problem.value({"coef": coef}, [chunk]) == pytest.approx(expected, rel=1e-9)


def test_the_mean_of_all_states_keeps_the_scaling_bit_for_bit():
    problem = problem_of("squared", intercept=True, is_scaled=True)
    scaling = summable(np.random.default_rng(0).normal(size=(2, 6)) * [[1e-9], [1.7e9]])
    mean = problem.begin({"coef": np.ones(7), "scaling": scaling})
    for members in (3, 7, 13):
        mean = mean_of(problem, [mean] * members)
    assert mean["scaling"].tobytes() == scaling.tobytes()


@pytest.mark.parametrize("loss", sorted(ASYNC_LOSSES))
def test_members_that_exchange_states_come_near_the_optimum(loss):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((600, 8)), rng.standard_normal(600)
    y += X @ rng.standard_normal(8)
    y = y if loss == "squared" else np.sign(y)
    chunks = [
        dense_chunk(ChunkId("test", 0, k), y[50 * k : 50 * k + 50], X[50 * k : 50 * k + 50])
        for k in range(12)
    ]
    problem = problem_of(loss, d=8, l2=0.1)
    states = [problem.begin({}) for _ in range(3)]
    samplers = [Sampler(chunks[k::3], seed=0) for k in range(3)]
    begun = problem.value(states[0], chunks) / 600
    chance = np.random.default_rng(0)
    for _ in range(300):
        for k in range(3):
            problem.step(states[k], samplers[k].next(16))
            problem.merge(states[k], problem.message(states[(k + 1) % 3], chance))
    best = Reference(X=X, y=y, loss=loss, l2=0.1).least
    result = problem.value(mean_of(problem, states), chunks) / 600
    assert -1e-9 <= result - best < 0.02 * (begun - best)


def test_the_paper_merges_with_half_the_rate_inside_the_window():
    problem = as_printed("squared", d=1, rate=0.5)
    chunk = chunk_of("dense", np.ones((1, 1)), np.array([4.0]))
    state = problem.begin({"coef": [0.0]})
    problem.step(state, Batch(parts=[(chunk, np.array([0]))]))  # eps Delta = -2
    assert problem.merge(state, Mail(arrays={"coef": np.array([8.0])}))
    assert state["coef"].tolist() == [4.0]
    assert not problem.merge(state, Mail(arrays={"coef": np.array([-8.0])}))
    assert state["coef"].tolist() == [4.0]


def test_a_newcomer_takes_its_peers_model_and_step_count():
    problem, chunk = problem_of(), rows_of("dense")
    peer = problem.begin({})
    for _ in range(5):
        problem.step(peer, Batch(parts=[(chunk, np.arange(20))]))
    mail = problem.message(peer, np.random.default_rng(0))
    newcomer = problem.begin(mail.arrays)
    assert np.array_equal(newcomer["coef"], peer["coef"])
    assert newcomer["steps"].tolist() == [5.0]
    assert {k: v.shape for k, v in mail.arrays.items()} == dict(problem.shapes())


def test_the_average_over_steps_weighs_late_steps_more():
    problem = problem_of("squared", d=1, rate=1.0)
    state = problem.begin({"coef": [7.0]})
    for target in (1.0, 2.0, 3.0):
        chunk = chunk_of("dense", np.ones((1, 1)), np.array([target]))
        problem.step(state, Batch(parts=[(chunk, np.array([0]))]))
    # Weights of steps 1, 2, 3: 4/6 for the last, then 4/5 of the remainder, then the rest.
    assert state["average"][0] == pytest.approx(4 / 6 * 3 + 2 / 6 * (4 / 5 * 2 + 1 / 5 * 1))


def test_invalid_models_are_rejected_as_a_start():
    with pytest.raises(ConfigError, match="wanted 6 finite numbers"):
        problem_of().begin({"coef": np.zeros(5)})


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_default_rate_does_not_depend_on_the_scale_of_the_data(scale):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    y = np.sign(X @ np.array([1.0, -1.0, 0.5, 0.0]))
    models = []
    for size in (1.0, scale):
        problem, sampler = problem_of(d=4), Sampler([chunk_of("dense", X * size, y)], seed=0)
        state = problem.begin({})
        for _ in range(60):
            problem.step(state, sampler.next(20))
        models.append(state["coef"] * size)
    np.testing.assert_allclose(*models, rtol=1e-6)
