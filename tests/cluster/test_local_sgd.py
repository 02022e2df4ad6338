"""Local SGD on real processes: kills and returns lose no sample, and models are reproducible."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em

pytest.importorskip("torch")
pytestmark = [pytest.mark.cluster, pytest.mark.torch]

MEMBERS, ROWS, EPOCHS = 3, 1200, 4
_rng = np.random.default_rng(3)
_centres = 1.5 * _rng.normal(size=(4, 16))
_y = np.arange(ROWS) % 4.0
_X = (_rng.normal(size=(ROWS, 16)) + _centres[_y.astype(int)]).astype(np.float32)
DATA = em.from_arrays(_X, _y)
TEST = em.from_arrays(
    (_rng.normal(size=(400, 16)) + _centres[np.arange(400) % 4]).astype(np.float32),
    np.arange(400) % 4.0,
)


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(MEMBERS) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def run(client: Client, name: str, run_dir: Any = None, **changes: Any) -> Any:
    job = em.Job(
        em.LocalSGD(
            model="tests.networks:linear",
            batch=4,
            local_steps=4,
            learning_rate=0.02,
            holdout=0.1,
        ),
        DATA,
        test=TEST,
        name=name,
        stop=em.Stop(epochs=EPOCHS),
        chunk_size=4096,
        evaluate=em.settings.Evaluate(every=10),
        **changes,
    )
    return job.run(client, run_dir=run_dir)


def samples(result: Any) -> int:
    return sum(row["samples"] for row in result.history[:-1])


def test_members_that_are_killed_and_come_back_cost_no_sample(client: Client, tmp_path) -> None:
    still = run(client, "still", tmp_path / "still")
    faults = [
        {"round": 6, "lose": 1, "how": "kill", "phase": "compute"},
        {"round": 14, "return": 1},
        {"round": 20, "lose": 2, "how": "kill", "phase": "reduce"},
        {"round": 26, "return": 2},
    ]
    disturbed = run(client, "disturbed", faults=faults)
    trained = samples(still) // EPOCHS
    assert 0.85 * ROWS < trained < 0.95 * ROWS
    assert (samples(still), samples(disturbed)) == (EPOCHS * trained, EPOCHS * trained)
    # A busy machine may fence one more member, which comes back.
    assert disturbed.summary["lost"] >= 3
    assert disturbed.summary["returned"] >= 3
    assert disturbed.history[-2]["skipped"] == 0
    # The two runs differ in the batches of samples, which a tenth of a per cent shows.
    assert still.summary["test"]["accuracy"] > 0.9
    difference = still.summary["test"]["accuracy"] - disturbed.summary["test"]["accuracy"]
    assert abs(difference) <= 0.02
    rows = [row for row in still.history if row.get("test_accuracy") is not None]
    assert len(rows) >= 4
    assert rows[-1]["test_accuracy"] == still.summary["test"]["accuracy"]
    assert sum("holdout_accuracy" in row for row in still.history) == EPOCHS
    labels = still.model.predict(_X)
    assert np.mean(labels == _y) == pytest.approx(still.summary["train"]["accuracy"], abs=1e-12)


def test_a_job_starts_from_the_model_of_another(client: Client, tmp_path) -> None:
    first = run(client, "first", tmp_path / "first")
    again = run(client, "again", tmp_path / "again", warm_start=tmp_path / "first")
    begun = first.summary["test"]["accuracy"], again.history[1]["test_accuracy"]
    assert min(begun) > 0.9  # after its first round, in which a new model is one of four classes


def test_a_newcomer_holds_up_no_round_while_it_gets_ready(client: Client, tmp_path) -> None:
    """Rounds waited seconds for the first import of PyTorch in a process that had just joined."""
    gate, cluster = tmp_path / "closed", client.cluster
    algorithm = em.LocalSGD(
        model="tests.networks:gated",
        model_options={"gate": str(gate)},
        batch=4,
        local_steps=4,
        learning_rate=1e-4,
    )
    job = em.Job(
        algorithm, DATA, name="gated", stop=em.Stop(epochs=10**6), chunk_size=4096, evaluate=False
    )
    handle = job.start(client)
    records = iter(handle)
    next(record for record in records if record["event"] == "RoundEnded")
    gate.touch()
    cluster.lose([cluster.workers()[0].name])
    cluster.bring_back(1)
    lost = next(record for record in records if record["event"] == "MemberLost")
    joined = next(record for record in records if record["event"] == "MemberJoined")
    assert joined["member"] != lost["member"]
    after = [next(records) for _ in range(60)]
    assert sum(record["event"] == "RoundEnded" for record in after) >= 20
    assert "MemberActive" not in {record["event"] for record in after}
    gate.unlink()
    active = next(record for record in records if record["event"] == "MemberActive")
    assert active["member"] == joined["member"]
    handle.cancel()
