"""Local SGD on Fashion-MNIST while real members leave and return, and the same in one process.

    python tests/bench/local_sgd_elastic.py [--rows 6000] [--epochs 8] [--members 8] [--every 6]

Each member is a process. Two leave with notice every few rounds until two are left, then two return
at a time. "replayed" is the run computed again in one process from its story; "simulated" is a job
with the same settings in one process, independent of the run. Reports the run's test accuracy, and
whether each has the run's model, bit for bit.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

DATA = harness.DATA / "fashion_mnist"


def read(name, rows):
    """Return ``rows`` evenly spread images and their labels."""
    import elasticml as em
    from elasticml.data.source import load_all

    chunks = load_all(em.read_images(str(DATA / f"{name}-images-idx3-ubyte.gz"), dtype="float32"))
    X = np.concatenate([chunk.values for chunk in chunks])
    y = np.concatenate([chunk.labels for chunk in chunks])
    chosen = np.linspace(0, len(y) - 1, min(rows, len(y))).astype(int)
    return X[chosen], y[chosen]


def faults_of(members, every):
    """Return faults by which two members leave at a time until two are left, then return."""
    times = range(1, (members - 2) // 2 + 1)
    leave = [{"round": k * every, "lose": 2, "how": "notice", "grace": 60.0} for k in times]
    back = [{"round": (len(times) + 1 + k) * every, "return": 2} for k in times]
    return leave + back


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--every", type=int, default=6, help="rounds between two changes")
    arguments = parser.parse_args()
    from distributed import Client

    import elasticml as em
    from elasticml.sim.simulation import simulate

    data = em.from_arrays(*read("train", arguments.rows), dtype="float32")
    test_X, test_y = read("t10k", 10_000)
    job = em.Job(
        em.LocalSGD(shape=(1, 28, 28)),
        data,
        stop=em.Stop(epochs=arguments.epochs),
        faults=faults_of(arguments.members, arguments.every),
    )
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        with em.LocalCluster(arguments.members) as cluster, Client(cluster) as client:
            ran = job.run(client, run_dir=run_dir)
        replayed = em.replay(run_dir, data=data)
    simulated = simulate(job.record("simulated", arguments.members), data).arrays
    members = [row["members"] for row in ran.history[:-1]]
    changes = [members[0], *(b for a, b in itertools.pairwise(members) if a != b)]
    print(f"rounds {len(members)}, members {' '.join(map(str, changes))}")
    samples = sum(row["samples"] for row in ran.history[:-1])
    print(f"samples {samples} of {arguments.epochs * len(data.rows.labels)}")
    accuracy = np.mean(ran.model.predict(test_X) == test_y)
    print(f"real       test accuracy {accuracy:.4f}")
    print(f"replayed   identical: {replayed.identical}")
    arrays = ran.model.arrays
    same = all(np.array_equal(arrays[name], simulated[name]) for name in arrays)
    print(f"simulated  identical: {same}")


if __name__ == "__main__":
    main()
