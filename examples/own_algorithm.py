"""Mini-batch SGD, the uni-task paper's Listing 1 (python examples/own_algorithm.py a9a.svm.gz)."""

import sys

import numpy as np
from distributed import Client

import elasticml as em
from elasticml.algorithms.base import Algorithm, Exchange, Model, RoundEnd
from elasticml.algorithms.matrix import Matrix
from elasticml.objectives.loss_kernels import loss_named

LOGISTIC = loss_named("logistic")


def trainer(settings, facts, absent):
    w, rounds, go_on = np.zeros(facts.n_columns), 0, True
    while go_on:
        step = settings["step"] / (1.0 + rounds)
        updates = yield Exchange(  # broadcast the model, let all members train, sum the updates
            operation="train",
            model={"w": w},
            parameters={"step": step, "round": rounds},
            returns={"w": w.shape, "loss": ()},
        )
        loss = updates.arrays["loss"] / updates.examples + settings["l2"] / 2 * w @ w
        w_next = updates.arrays["w"] / updates.examples  # merge, weighted by examples
        go_on = yield RoundEnd(objective=float(loss), model={"w": w}, next_model={"w": w_next})
        w, rounds = w_next, rounds + 1
    return Model(arrays={"w": w}, converged=True, reason="all rounds done")


class Solver:
    """Train on this member's chunks of the round, in random order."""

    def __init__(self, settings, facts):
        self.l2, self.d = settings["l2"], facts.n_columns

    def compute(self, work, chunks, parallel):
        """Return the trained model times this member's examples, and the loss before."""
        model, loss = work.model["w"].copy(), 0.0
        for k in np.random.default_rng(work.parameters["round"]).permutation(len(chunks)):
            X, y = Matrix(chunks[k], self.d), chunks[k].labels  # a chunk is a mini-batch
            slopes = np.empty(y.size)
            loss += LOGISTIC.value_and_slope(X @ work.model["w"], y, None, slopes)
            LOGISTIC.value_and_slope(X @ model, y, None, slopes)
            model -= work.parameters["step"] * (slopes @ X / y.size + self.l2 * model)
        return {"w": model * sum(c.n_rows for c in chunks), "loss": np.array(loss)}


SGD = Algorithm(name="sgd", trainer=trainer, solver=Solver)

if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    sgd = em.ImportedAlgorithm(name="own_algorithm:SGD", step=2.0, l2=1e-3)
    job = em.Job(sgd, em.read_svmlight(path), stop=em.Stop(rounds=20), chunk_size="16 KiB")
    with em.LocalCluster(2) as cluster, Client(cluster) as client:
        result = job.run(client)
    print("\n".join(f"{row['round']:5d}  {row['objective']:.6f}" for row in result.history[:-1]))
