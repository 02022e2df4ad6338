"""Seeding of K-means: good, reproducible for any placement of chunks, refused where impossible."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.async_sgd.kmeans import KMeans, inertia
from elasticml.algorithms.async_sgd.lloyd import lloyd
from elasticml.algorithms.async_sgd.local_kmeans import Rows
from elasticml.algorithms.async_sgd.plus_plus import DRAWN, plus_plus, swap_centres
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.algorithms.async_sgd.seeding import answer, start
from elasticml.algorithms.base import Outcome
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.errors import DataError
from elasticml.ids import ChunkId, ExchangeId
from elasticml.protocol.events import ExchangeHeader
from examples.papers.support.asgd_reference import centre_error
from examples.papers.support.clusters import synthetic_clusters
from tests.unit.data.rows import chunk_of

SOURCE = synthetic_clusters(9000, columns=4, clusters=12, spread=0.02, min_distance=0.2)


def chunks_of(source):
    return [c for block in source.blocks() for c in source.read(block.index, 2**14, 1)[0]]


def starting(how, chunks, clusters=12, seed=0, n_blocks=3):
    n_rows = sum(chunk.n_rows for chunk in chunks)
    columns = chunks[0].values.shape[1]
    return start(
        how, clusters=clusters, columns=columns, n_rows=n_rows, n_blocks=n_blocks, seed=seed
    )


def answered(questions, *members):
    """Answer for members with these chunks, and merge the answers as a collective does."""
    try:
        exchange = next(questions)
        while True:
            work = ExchangeHeader(
                exchange=ExchangeId(1),
                operation=exchange.operation,
                model=exchange.model,
                parameters=exchange.parameters,
                returns=exchange.returns,
            )
            parts = [answer(work, chunks, Serial()) for chunks in members]
            merge = np.maximum.reduce if exchange.reduce == "max" else sum
            arrays = {name: merge([part[name] for part in parts]) for name in exchange.returns}
            exchange = questions.send(
                Outcome(exchange=work.exchange, arrays=arrays, examples=1, absent_examples=0)
            )
    except StopIteration as end:
        return end.value


def test_each_of_well_separated_clusters_gets_a_centre():
    chunks = chunks_of(SOURCE)
    result = answered(starting("kmeans++", chunks), chunks)["centres"]
    assert centre_error(result, SOURCE.centres()) < 0.1


@pytest.mark.parametrize("how", ["kmeans++", "sample"])
def test_seeding_does_not_depend_on_which_member_has_which_chunk(how):
    chunks = chunks_of(SOURCE)
    one = answered(starting(how, chunks), chunks)["centres"]
    several = answered(starting(how, chunks), chunks[5:], chunks[:2], chunks[2:5], [])["centres"]
    # Sums over members are added in another order; the drawn rows are the same.
    np.testing.assert_allclose(several, one, rtol=1e-12)


def test_centres_are_rows_and_small_data_are_used_whole():
    X = np.random.default_rng(0).standard_normal((30, 2))
    chunks = [
        dense_chunk(ChunkId("test", k, 0), np.zeros(10), X[10 * k : 10 * k + 10]) for k in range(3)
    ]
    for how in ("kmeans++", "sample"):
        result = answered(starting(how, chunks, clusters=30), chunks)["centres"]
        assert sorted(map(tuple, result)) == sorted(map(tuple, X))


@pytest.mark.parametrize("how", ["kmeans++", "sample"])
def test_fewer_different_rows_than_centres_are_refused(how):
    X = np.repeat(np.eye(3), 20, axis=0)
    chunks = [chunk_of("dense", X)]
    with pytest.raises(DataError, match="k is 5, but the data have only 3 different rows"):
        answered(starting(how, chunks, clusters=5, n_blocks=1), chunks)


@pytest.mark.parametrize(
    ("kind", "offset"),
    [(np.asarray, 0.0), (np.asarray, 1e6), (sp.csr_matrix, 0.0)],
)
def test_clusters_far_smaller_than_their_distances_are_told_apart(kind, offset):
    """Distances within them are below the error of single precision."""
    rng = np.random.default_rng(2)
    truth = np.repeat(np.array([[0.0, 0.0], [1e3, 0.0], [1e3, 1e-3]]), 100, axis=0) + offset
    rows = truth + 1e-7 * rng.standard_normal(truth.shape)
    centres = plus_plus(kind(rows), np.ones(300), 3, rng)
    assert centre_error(centres, truth[::100]) < 1e-5


def test_rows_far_from_the_mean_are_told_apart():
    """Their squared distances are below rounding errors of their squared norms."""
    rows = np.array([[0.0], [1.0], [1e8], [1e8 + 1.0]])
    centres = plus_plus(rows, np.ones(4), 4, np.random.default_rng(0))
    assert sorted(centres[:, 0]) == sorted(rows[:, 0])


def test_times_in_milliseconds_that_differ_by_seconds_are_told_apart():
    rng = np.random.default_rng(0)
    days = 8.64e7 * np.array([0, 30, 60, 90])
    truth = 1.7e12 + np.add.outer(days, [0.0, 1e3, 2e3]).reshape(-1, 1)
    rows = np.repeat(truth, 100, axis=0) + rng.standard_normal((1200, 1))
    centres = plus_plus(rows, np.ones(1200), 12, rng)
    assert centre_error(centres, truth) < 5.0


def test_swaps_among_far_rows_count_small_distances():
    """Three of six points lack a centre; each other centre is the second of its point."""
    truth = np.add.outer([0.0, 1e9, 2e9], [0.0, 10.0]).reshape(-1, 1)
    rows = np.repeat(truth, 50, axis=0)
    centres = np.repeat(truth[::2], 2, axis=0)
    uniforms = np.random.default_rng(0).random(40)
    assert swap_centres(Rows(rows, None), np.ones(300), centres, uniforms) == 3
    np.testing.assert_array_equal(np.sort(centres, axis=0), truth)


def test_squares_that_overflow_give_no_warnings():
    rows = 1e160 * np.random.default_rng(0).standard_normal((50, 2))
    with np.errstate(all="raise"):
        centres = plus_plus(rows, np.ones(50), 3, np.random.default_rng(0))
    assert all(any((row == centre).all() for row in rows) for centre in centres)


def test_rows_that_a_sample_lacks_become_centres_where_there_are_few_distinct_ones():
    rows = np.zeros((30_000, 1))
    rows[:20, 0] = np.arange(1, 21)
    rows[20:10_000, 0] = 1000.0
    centres = plus_plus(rows, np.ones(30_000), 22, np.random.default_rng(0))
    assert sorted(centres[:, 0]) == [*range(21), 1000.0]


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_swaps_find_the_cluster_left_without_a_centre(kind):
    rng = np.random.default_rng(2)
    truth = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    rows = truth[np.arange(300) % 3] + 0.1 * rng.standard_normal((300, 2))
    centres = np.ascontiguousarray(rows[[0, 3, 1]])
    assert swap_centres(Rows(kind(rows), None), np.ones(300), centres, rng.random(10)) >= 1
    assert centre_error(centres, truth) < 0.5


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_swaps_lower_the_inertia(kind):
    """Against an inertia that is recomputed after the swaps of each draw."""
    rng = np.random.default_rng(3)
    rows, weights = rng.standard_normal((400, 3)), rng.random(400)
    chunk = chunk_of("dense", rows, weights=weights)
    centres = rows[:15].copy()
    values, numbers, swaps = [inertia(centres, [chunk])], rng.random((10, DRAWN)), 0
    for some in numbers:
        done = swap_centres(Rows(kind(rows), None), weights, centres, some)
        values.append(inertia(centres, [chunk]))
        assert values[-1] < values[-2] if done else values[-1] == values[-2]
        swaps += done
    assert swaps >= 5
    # Applying all swaps at once keeps the tables of nearest centres correct.
    at_once = rows[:15].copy()
    assert swap_centres(Rows(kind(rows), None), weights, at_once, numbers.ravel()) == swaps
    np.testing.assert_array_equal(at_once, centres)


# --- baselines -----------------------------------------------------------------------------------


def test_lloyd_never_increases_the_inertia_and_ends_at_means():
    chunks = chunks_of(SOURCE)
    centres = answered(starting("sample", chunks), chunks)["centres"]
    values = [inertia(centres, chunks)]
    for _ in range(8):
        centres = answered(lloyd(centres, 1), chunks)["centres"]
        values.append(inertia(centres, chunks))
    assert np.all(np.diff(values) <= 1e-9 * values[0])
    again = answered(lloyd(centres, 400), chunks)
    np.testing.assert_allclose(
        answered(lloyd(again["centres"], 1), chunks)["centres"], again["centres"]
    )
    assert again["counts"].sum() == 9000


def test_a_batch_of_all_rows_is_one_iteration_of_lloyd():
    chunks = chunks_of(SOURCE)
    begun = answered(starting("sample", chunks), chunks)
    problem = KMeans(clusters=12, columns=4)
    state = problem.begin(begun)
    problem.step(state, Sampler(chunks, seed=0).next(float("inf")))
    np.testing.assert_allclose(
        state["centres"], answered(lloyd(begun["centres"], 1), chunks)["centres"]
    )


def test_the_error_matches_each_true_centre_with_one_estimate():
    truth = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    result = truth[[2, 0, 1]] + np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]])
    assert centre_error(result, truth) == pytest.approx(2.0)
    # Two estimates near one true centre: the missed centre counts in full.
    doubled = np.array([[0.0, 0.0], [0.0, 0.0], [10.0, 0.0]])
    assert centre_error(doubled, truth) == pytest.approx(10.0 / 3.0)
