"""Steps and merges of K-means: against plain formulas, the paper's by hand, and known pitfalls."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import Batch, Mail
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.paper import Paper, parzen_accepts
from elasticml.errors import ConfigError
from examples.papers.support.asgd_reference import mean_of
from tests.unit.data.rows import chunk_of


def batch_of(X):
    return Batch(parts=[(chunk_of("dense", np.asarray(X, np.float64)), np.arange(len(X)))])


def drawn(seed, n=400, d=3, k=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal((k, d))


PROBLEMS = (KMeans(clusters=5, columns=3), Paper(problem=KMeans(clusters=5, columns=3)))


# --- steps -----------------------------------------------------------------------------------


def test_a_first_step_goes_to_the_means_of_the_nearest_rows():
    problem = KMeans(clusters=3, columns=1)
    state = problem.begin({"centres": [[0.0], [10.0], [50.0]]})
    problem.step(state, batch_of([[1.0], [2.0], [9.0]]))
    assert state["centres"].tolist() == [[1.5], [9.0], [50.0]]
    assert state["counts"].tolist() == [2.0, 1.0, 0.0]
    problem.step(state, batch_of([[3.0]]))
    assert state["centres"][0, 0] == pytest.approx(2.0)


def test_a_literal_step_is_n_single_steps_to_the_mean_of_n_rows():
    problem = Paper(problem=KMeans(clusters=2, columns=1), rate=0.1)
    state = problem.begin({"centres": [[0.0], [100.0]]})
    problem.step(state, batch_of([[1.0], [2.0], [6.0]]))
    w = 0.0
    for _ in range(3):
        w -= 0.1 * (w - 3.0)
    assert state["centres"][0, 0] == pytest.approx(w)
    assert state["centres"][1, 0] == 100.0


# --- the Parzen window and the paper's merge -----------------------------------------------------


def test_the_parzen_window_by_hand():
    """Equation (2) with w = 0, eps Delta = -1 (so that w moves to 1), and peers on both sides."""
    w, projected = np.zeros(1), np.ones(1)
    assert parzen_accepts(w, projected, np.array([3.0]))  # |1-3|^2 = 4 < 9
    assert parzen_accepts(w, projected, np.array([0.6]))  # 0.16 < 0.36
    assert not parzen_accepts(w, projected, np.array([0.5]))  # 0.25 < 0.25: not nearer
    assert not parzen_accepts(w, projected, np.array([0.4]))  # 0.36 < 0.16
    assert not parzen_accepts(w, projected, np.array([-2.0]))  # 9 < 4


def test_two_messages_are_each_compared_and_merged_with_the_state_before_the_step():
    """Equations (3) and (4), with half the rate: w - eps ([w - (w + w_j)/2] + Delta)."""
    problem = Paper(problem=KMeans(clusters=2, columns=1), rate=0.5)
    ends = []
    for peers in ([8.0, 6.0], [6.0, 8.0]):
        state = problem.begin({"centres": [[0.0], [100.0]]})
        problem.step(state, batch_of([[4.0]]))
        for peer in peers:
            assert problem.merge(state, Mail(arrays={"centres": np.array([[peer], [100.0]])}))
        ends.append(state["centres"][0, 0])
    assert ends == [pytest.approx(2.0 + 0.25 * 14.0)] * 2


def test_a_part_of_a_state_is_compared_and_merged_on_its_rows_only():
    problem = Paper(problem=KMeans(clusters=3, columns=1), rate=0.5)
    state = problem.begin({"centres": [[0.0], [100.0], [200.0]]})
    problem.step(state, batch_of([[4.0], [90.0]]))
    before = state["centres"].copy()
    rows = np.array([1])
    assert problem.merge(state, Mail(arrays={"centres": np.array([[80.0]])}, rows=rows))
    assert state["centres"][:, 0].tolist() == [before[0, 0], before[1, 0] - 5.0, 200.0]


# --- the default merge ---------------------------------------------------------------------------


def test_centres_are_averaged_by_mass_and_masses_halved():
    problem = KMeans(clusters=3, columns=1)
    state = problem.begin({"centres": [[0.0], [5.0], [7.0]], "counts": [3.0, 0.0, 0.0]})
    theirs = {"centres": np.array([[4.0], [9.0], [8.0]]), "counts": np.array([1.0, 2.0, 0.0])}
    assert problem.merge(state, Mail(arrays=theirs))
    assert state["centres"].tolist() == [[1.0], [9.0], [7.0]]
    assert state["counts"].tolist() == [2.0, 1.0, 0.0]


def test_gossip_converges_to_the_mean_of_all_rows_that_any_member_has_seen():
    rng = np.random.default_rng(3)
    problem = KMeans(clusters=1, columns=2)
    members = [rng.standard_normal((n, 2)) + n for n in (10, 100, 40, 250)]
    states = [problem.begin({"centres": np.zeros((1, 2))}) for _ in members]
    for state, X in zip(states, members, strict=True):
        problem.step(state, batch_of(X))
    everything = np.concatenate(members).mean(axis=0)
    np.testing.assert_allclose(mean_of(problem, states)["centres"][0], everything)
    for _ in range(60):
        i, j = rng.permutation(4)[:2]
        one, two = (problem.message(states[k], rng) for k in (i, j))
        problem.merge(states[i], two)
        problem.merge(states[j], one)
    for state in states:
        np.testing.assert_allclose(state["centres"][0], everything, rtol=1e-6)


def test_a_partial_state_carries_its_masses_and_leaves_the_other_rows_alone():
    problem = KMeans(clusters=10, columns=2, share=0.3)
    X, _ = drawn(0, d=2)
    state = problem.begin({"centres": X[:10]})
    problem.step(state, batch_of(X))
    mail = problem.message(state, np.random.default_rng(0))
    assert mail.rows is not None
    assert mail.rows.size == 3
    assert np.array_equal(mail.arrays["centres"], state["centres"][mail.rows])
    other = problem.begin({"centres": X[20:30]})
    before = other["centres"].copy()
    problem.merge(other, mail)
    changed = np.flatnonzero((other["centres"] != before).any(axis=1))
    assert changed.tolist() == mail.rows.tolist()


def test_a_message_is_a_copy():
    for problem in PROBLEMS:
        state = problem.begin({"centres": drawn(0)[1]})
        mail = problem.message(state, np.random.default_rng(0))
        assert {k: v.shape for k, v in mail.arrays.items()} == dict(problem.shapes())
        before = mail.arrays["centres"].copy()
        problem.step(state, batch_of(drawn(0)[0]))
        assert np.array_equal(mail.arrays["centres"], before)


# --- means and starts ----------------------------------------------------------------------------


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_mean_keeps_centres_without_rows(problem):
    X, centres = drawn(4)
    centres[0] = 1000.0
    states = [problem.begin({"centres": centres}) for _ in range(3)]
    for k, state in enumerate(states):
        problem.step(state, batch_of(X[100 * k : 100 * (k + 1)]))
    np.testing.assert_allclose(mean_of(problem, states)["centres"][0], 1000.0)
    one = problem.pooled(problem.addends(states[0]), 1)["centres"]
    np.testing.assert_allclose(one, states[0]["centres"], rtol=1e-11)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, r"shape \(0,\), wanted \(5, 3\)"),
        ({"centres": np.zeros((5, 2))}, r"shape \(5, 2\), wanted \(5, 3\)"),
        ({"centres": np.full((5, 3), np.nan)}, "not finite"),
        # Line 5 of Algorithm 2: all ties go to the first centre, so the other K - 1 never move.
        ({"centres": np.zeros((5, 3))}, r"all the same \(w = 0"),
    ],
)
def test_invalid_states_are_rejected_as_a_start(problem, value, message):
    with pytest.raises(ConfigError, match=message):
        problem.begin(value)
