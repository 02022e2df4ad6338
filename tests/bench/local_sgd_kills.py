"""Local SGD on Fashion-MNIST on real worker processes under SIGKILL: every sample, every epoch.

    python tests/bench/local_sgd_kills.py [--members 3] [--epochs 3] [--seeds 3] [--first-seed 0]

For each seed one undisturbed run, and one in which members are killed three times, in the middle of
computing, of adding up and of sending the model, and come back some dozen rounds later. Counts the
samples of every epoch, which must be all examples once; the difference of the test accuracies is to
be seen beside those of undisturbed runs with different seeds. Ends with status 1 where an epoch has
another number of samples, or nobody was killed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import mean, stdev

from distributed import Client

import elasticml as em

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("ELASTICML_DATA") or ROOT.parent / "shared" / "data") / "fashion_mnist"


def faults_of(rounds):
    """Plan losses and returns over a run of so many rounds."""
    planned = ((0.15, 1, "compute"), (0.4, 2, "reduce"), (0.7, 1, "broadcast"))
    for at, count, phase in planned:
        begin = round(at * rounds)
        yield {"round": begin, "lose": count, "how": "kill", "phase": phase}
        yield {"round": begin + max(2, rounds // 10), "return": count}


def samples_by_epoch(history):
    """Add up the samples of the rounds of each epoch."""
    found = {}
    for row in history[:-1]:
        if row.get("samples"):
            found[int(row["epoch"])] = found.get(int(row["epoch"]), 0) + int(row["samples"])
    return [found[epoch] for epoch in sorted(found)]


def run(client, options, seed, faults):
    """Run one job."""
    job = em.Job(
        em.LocalSGD(batch=8, local_steps=16, learning_rate=options.rate),
        em.read_images(str(DATA / "train-images-idx3-ubyte.gz"), dtype="float32"),
        test=em.read_images(str(DATA / "t10k-images-idx3-ubyte.gz"), dtype="float32"),
        stop=em.Stop(epochs=options.epochs),
        faults=faults,
        threads=1,
        seed=seed,
    )
    return job.run(client)


def main():
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=5e-4)
    options = parser.parse_args()
    rounds = options.epochs * -(-60_000 // (options.members * 8 * 16))
    found, wrong = {False: [], True: []}, 0
    print("| seed | killed | returned | rounds | samples of each epoch | skipped | accuracy |")
    print("|---|---|---|---|---|---|---|")
    with em.LocalCluster(options.members) as cluster, Client(cluster) as client:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for disturbed in (False, True):
                result = run(client, options, seed, list(faults_of(rounds)) if disturbed else [])
                epochs, summary = samples_by_epoch(result.history), result.summary
                accuracy, skipped = summary["test"]["accuracy"], result.history[-2]["skipped"]
                lost, back = summary["lost"], summary["returned"]
                wrong += epochs != [60_000] * options.epochs or (lost > 0) != disturbed
                found[disturbed].append(accuracy)
                told = (seed, lost, back, len(result.history) - 1, epochs, skipped, accuracy)
                print("| " + " | ".join(map(str, told)) + " |", flush=True)
                cluster.scale(options.members)
                client.wait_for_workers(options.members)
    if options.seeds > 1:
        spread = stdev(found[False])
        difference = mean(found[True]) - mean(found[False])
        print(f"accuracy with kills - without: {difference:+.4f}; deviation by seed {spread:.4f}")
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
