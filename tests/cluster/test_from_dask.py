"""Jobs on data in Dask collections, on a stock cluster: rows stay on the workers, which may die.

``LocalCluster`` of Dask with nannies: a worker that is killed comes back. No class of ours starts a
process here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, LocalCluster, wait
from sklearn.base import clone

import elasticml as em
from elasticml.errors import DataError
from elasticml.jobs.handle import workers_of
from tests.waiting import until

pytestmark = pytest.mark.cluster

N, D = 1200, 6
_rng = np.random.default_rng(0)
X = _rng.normal(size=(N, D))
Y = np.where(X @ _rng.normal(size=D) + _rng.normal(size=N) > 0.0, 1.0, 0.0)
ALGORITHM = em.CoCoA(loss="squared_hinge", l2=1e-2, intercept=False, tolerance=0.0, scale="none")
STOP = em.Stop(gap=1e-8, rounds=2000)


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def optimum(client: Client) -> float:
    result = em.Job(ALGORITHM, em.from_arrays(X, Y), stop=STOP).run(client)
    return float(result.summary["objective"])


def run(client: Client, data: Any) -> Any:
    result = em.Job(ALGORITHM, data, stop=STOP).run(client)
    assert result.summary["converged"]
    return result


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_members_score_collections_as_arrays(client: Client, loss: Any) -> None:
    data = em.from_dask(da.from_array(X, chunks=(150, D)), da.from_array(Y, chunks=150))
    scores = []
    for source in (data, em.from_arrays(X, Y)):
        algorithm = em.BatchGradient(loss=loss, l2=1e-2, tolerance=1e-9)
        summary = em.Job(algorithm, source).run(client).summary
        scores.append(summary["train"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-9)
    assert len(scores[0]) == 2


def held(dask_worker: Any) -> list[str]:
    """Return the keys of Dask's data on a worker."""
    return [str(key) for key in dask_worker.data]


def transfers(dask_worker: Any) -> int:
    """Return how often a worker has received data of Dask from others."""
    return int(dask_worker.state.transfer_incoming_count_total)


def test_persisted_partitions_become_chunks_on_their_workers(client: Client, optimum: float):
    workers = sorted(workers_of(client))
    rows, labels = (
        da.concatenate(
            [
                da.from_delayed(
                    client.submit(np.array, part, workers=[workers[k % 3]]), part.shape, float
                )
                for k, part in enumerate(np.split(whole, 12))
            ]
        ).persist()
        for whole in (X, Y)
    )
    wait([rows, labels])
    before = client.run(transfers)
    result = run(client, em.from_dask(rows, labels))
    assert result.summary["objective"] == pytest.approx(optimum, abs=2e-8)
    assert client.run(transfers) == before
    events = [record["event"] for record in result.story]
    assert "ChunksGiven" not in events[: events.index("DataDealt")]


def test_lazy_partitions_are_freed_when_their_chunks_are_made(client: Client, optimum: float):
    rows = da.from_array(X, chunks=(100, 2)) + 0.0
    assert run(client, em.from_dask(rows, Y)).summary["objective"] == pytest.approx(
        optimum, abs=2e-8
    )
    until(lambda: not any(client.run(held).values()), "workers without Dask's data")


def test_a_killed_worker_and_released_data(client: Client, optimum: float):
    """A partition that nobody wants any more is computed again from its graph."""
    rows, labels = client.persist([da.from_array(X, chunks=(100, D)) + 0.0, da.from_array(Y, 100)])
    wait([rows, labels])
    # On a busy machine Dask may have computed no partition on a worker: its member owns no chunks.
    held = client.has_what()
    victim = max(held, key=lambda address: len(held[address]))
    data = em.from_dask(rows, labels)
    job = em.Job(ALGORITHM, data, stop=em.Stop(gap=1e-9, rounds=4000))
    handle = job.start(client)
    handle.source = None
    del rows, labels, data, job
    seen = 0
    for record in handle:
        seen += record["event"] == "RoundEnded"
        if seen == 1:
            seen += 1
            kill_one(client, victim)
    result = handle.result()
    assert result.summary["converged"]
    assert result.summary["objective"] == pytest.approx(optimum, abs=2e-8)
    lost = [record for record in result.story if record["event"] == "MemberLost"]
    assert lost
    assert lost[0]["chunks"] > 0


@pytest.mark.slow
def test_held_out_rows_of_partitions_are_scored_also_after_a_kill(client: Client):
    rows = da.from_array(X, chunks=(100, D)) + 0.0
    algorithm = em.BatchGradient(l2=1e-8, optimizer="gd", scale="none")

    def scores(validate: Any, kill_after: int | None = None) -> tuple[Any, list[Any]]:
        data = em.from_dask(rows, Y)
        job = em.Job(algorithm, data, validate=validate, absent="reload", stop=em.Stop(rounds=40))
        handle, n = job.start(client), 0
        for record in handle:
            n += record["event"] == "RoundEnded"
            if n == kill_after:
                kill_after = None
                kill_one(client)
        result = handle.result()
        column = [row.get("validation_neg_log_loss") for row in result.history]
        return result.summary["validation"], column

    share = em.Validate(share=0.25, patience=0)
    still, expected = scores(share)
    assert 200 < still["rows"] < 400
    assert still["withheld"] == 0
    killed, _ = scores(share, kill_after=3)
    assert killed["rows"] == still["rows"]
    assert killed["score"] == pytest.approx(still["score"], abs=1e-3)
    other = em.from_dask(da.from_array(X[:300], chunks=(100, D)), Y[:300])
    kept, _ = scores(em.Validate(data=other, patience=0))
    assert kept["rows"] == 300
    assert kept["score"] > expected[1]


def test_workers_are_killed_while_they_load(client: Client, optimum: float):
    def held_up(part: Any) -> Any:
        Event("killed").wait()
        return part

    rows = da.from_array(X, chunks=(50, D)).map_blocks(held_up, meta=np.empty((0, 0)))
    handle = em.Job(ALGORITHM, em.from_dask(rows, Y), stop=STOP).start(client)
    for record in handle:
        if record["event"] == "MemberJoined" and record["member"].startswith("2."):
            break
    kill_one(client)
    Event("killed", client).set()
    result = handle.result()
    assert result.summary["objective"] == pytest.approx(optimum, abs=2e-8)


def test_an_error_in_the_users_graph_ends_the_job(client: Client):
    def broken(part: Any) -> Any:
        raise RuntimeError("no such shard")

    rows = da.from_array(X, chunks=(400, D)).map_blocks(broken, meta=np.empty((0, 0)))
    with pytest.raises(DataError, match="could not be computed: RuntimeError: no such shard"):
        em.Job(ALGORITHM, em.from_dask(rows, Y), stop=STOP).run(client)


# --- estimators --------------------------------------------------------------------------------


def test_words_as_classes_and_frames(client: Client):
    table = pd.DataFrame(X, columns=list("abcdef"))
    words = pd.Series(np.where(X[:, 0] > 0.7, "high", np.where(X[:, 1] > 0, "mid", "low")))
    frame, labels = dd.from_pandas(table, npartitions=4), dd.from_pandas(words, npartitions=4)
    ours = em.LinearSVC(C=0.1, client=client).fit(frame, labels)
    here = em.LinearSVC(C=0.1).fit(table, words)
    assert ours.classes_.tolist() == ["high", "low", "mid"]
    assert ours.feature_names_in_.tolist() == list("abcdef")
    np.testing.assert_allclose(ours.coef_, here.coef_, atol=0.02)
    predicted = ours.predict(frame)
    assert isinstance(predicted, dd.Series)
    pd.testing.assert_index_equal(predicted.compute().index, table.index)
    assert predicted.compute().tolist() == ours.predict(table).tolist()
    assert ours.decision_function(frame).compute().shape == (N, 3)
    with pytest.warns(UserWarning, match="all rows are loaded into this process"):
        em.LogisticRegression(l1_ratio=1.0, max_iter=5, tol=1.0).fit(frame, labels)


def test_frames_with_text_are_encoded_where_they_are(client: Client):
    city = np.array(["Bern", "Genf", "Thun"])[np.arange(N) % 3]
    table = pd.DataFrame(X[:, :3], columns=list("abc")).assign(city=city)
    y = Y + 2.0 * (city == "Genf") > 1.0
    frame, labels = (
        dd.from_pandas(table, npartitions=4),
        dd.from_pandas(pd.Series(y), npartitions=4),
    )
    for model in (
        em.LogisticRegression(C=0.5, tol=1e-10),
        em.LinearSVC("l1", C=0.05, tol=1e-12, max_iter=3000),
    ):
        here = clone(model).fit(table, y)
        there = clone(model).set_params(client=client).fit(frame, labels)
        assert there.solver_path_ == "job"
        assert there.feature_names_in_.tolist() == ["a", "b", "c", "city"]
        assert there.get_feature_names_out().tolist() == here.get_feature_names_out().tolist()
        # With L1, a shift of a city's columns and the intercept is worth as much.
        margins = there.decision_function(frame).compute()
        np.testing.assert_allclose(margins, here.decision_function(table), atol=1e-4)
        assert there.predict(frame).compute().tolist() == here.predict(table).tolist()
        assert there.score(frame, labels) == pytest.approx(here.score(table, y))
    with pytest.raises(ValueError, match="offset of a Dask frame with text"):
        em.Ridge(client=client).fit(frame, labels, offset="a")


def test_an_offset_is_a_column_of_the_collections(client: Client):
    counts = np.random.default_rng(1).poisson(np.exp(0.3 * X[:, 0] + X[:, 2])).astype(float)
    weights, rest = np.linspace(0.0, 2.0, N), [0, 1, 3, 4, 5]
    parts = [da.from_array(a, chunks=(300, *a.shape[1:])) for a in (X, counts, Y, weights)]
    for model, column, tol in (
        (em.PoissonRegressor(alpha=0.2, tol=1e-13), 1, 1e-6),
        (em.LogisticRegression(C=0.5, tol=1e-12), 2, 1e-4),
        (em.LogisticRegression(C=0.5, tol=1e-6, fit_intercept=False), 2, 1e-2),
        (em.Lasso(0.1, tol=1e-13), 1, 1e-6),
    ):
        y = (counts, Y)[column - 1]
        here = clone(model).fit(X[:, rest], y, weights, offset=X[:, 2])
        there = clone(model).fit(parts[0], parts[column], parts[3], offset=2)
        sent = clone(model).set_params(client=client).fit(X, y, weights, offset=2)
        for other in (there, sent):
            assert other.solver_path_ == "job"
            coef = np.ravel(other.coef_)
            assert coef[2] == 1.0
            np.testing.assert_allclose(coef[rest], np.ravel(here.coef_), atol=tol)
            assert 0.0 <= other.dual_gap_ <= 1e-2
        np.testing.assert_array_equal(there.predict(parts[0]).compute(), there.predict(X))
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcdef")), npartitions=4)
    named = em.Ridge(2.0, tol=1e-10).fit(frame, dd.from_pandas(pd.Series(counts), 4), offset="c")
    here = em.Ridge(2.0).fit(X[:, rest], counts, offset=X[:, 2])
    np.testing.assert_allclose(named.coef_[rest], here.coef_, atol=1e-4)
    with pytest.raises(ValueError, match="offset of a Dask collection: got numbers"):
        em.Ridge().fit(parts[0], parts[1], offset=X[:, 2])


# --- helpers -----------------------------------------------------------------------------------


def kill_one(client: Client, address: str | None = None) -> None:
    """Kill a worker, and wait until its nanny has replaced it."""
    address = address or min(workers_of(client))
    (pid,) = client.run(os.getpid, workers=[address]).values()
    os.kill(pid, signal.SIGKILL)
    until(
        lambda: address not in workers_of(client) and len(workers_of(client)) == 3,
        "a worker in place of the killed one",
    )
