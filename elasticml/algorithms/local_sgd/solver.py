"""A member's half of local SGD: H steps on samples of its chunks, and weighted sums of the results.

Its state is caches only: the module, the order of an epoch, and the frozen parameters, which are
sent once. If it lacks these, it reports so and takes no step. Otherwise its result is a function of
the arrays sent, its chunks and its number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elasticml.algorithms import chunk_numbers
from elasticml.algorithms.base import Arrays, Parallel, Work
from elasticml.algorithms.local_sgd import local_sgd_exchanges, step_schedule
from elasticml.algorithms.local_sgd.network import Network
from elasticml.algorithms.local_sgd.sampler import Sampler, Taken, held_out, noise_seed
from elasticml.algorithms.local_sgd.torch_import import load_torch
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.specification.algorithms import LocalSGD, settings_from_section


class LocalSGDSolver:
    """Computes the exchanges of ``local_sgd`` on a member.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section.
    facts : DatasetStats
    """

    def __init__(self, settings: Any, facts: DatasetStats) -> None:
        self._settings = settings_from_section(LocalSGD, settings)
        self._facts = facts
        self._sampler = Sampler(self._settings.random_seed, self._settings.holdout)
        #: Created in the computing thread.
        self._network: Network | None = None
        #: The frozen parameters have been received.
        self._is_whole = False

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays named in ``work.returns``, over these chunks."""
        match work.operation:
            case chunk_numbers.CHUNK_COUNTS:
                return chunk_numbers.chunk_counts(work, chunks)
            case local_sgd_exchanges.SURVEY:
                return self._survey(work, chunks, parallel)
            case local_sgd_exchanges.EVALUATE:
                return self._evaluate(work, chunks, parallel)
        return self._train(work, chunks, parallel)

    def warm_up(self, parallel: Parallel) -> None:
        """Import PyTorch, create the module, and run it once."""
        self._ready(parallel)

    def _ready(self, parallel: Parallel) -> Network:
        torch = load_torch()
        if torch.get_num_threads() != parallel.n_threads:
            torch.set_num_threads(parallel.n_threads)
        if self._network is None:
            self._network = Network(self._settings, self._facts)
        return self._network

    # --- before the first round -----------------------------------------------------------------

    def _survey(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        rows = np.zeros(work.returns["rows"])
        numbers = chunk_numbers.numbers_of(work.model["starts"], chunks)
        rows[numbers] = [self._sampler.n_trained(chunk) for chunk in chunks]
        measured = chunks if self._settings.normalize == "auto" else []
        moments = np.sum([np.zeros(3), *parallel.map(_moments, measured)], axis=0)
        return {"rows": rows, "moments": moments}

    # --- rounds ---------------------------------------------------------------------------------

    def _train(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        settings, parameters, model = self._settings, work.parameters, work.model
        numbers = chunk_numbers.numbers_of(model["starts"], chunks)
        position = model["positions"][numbers].astype(np.int64)
        n_local = self._sampler.begin(chunks, position, int(parameters["epoch"]))
        sizes = step_schedule.steps(
            rule=settings.rate_rule,
            batch=settings.batch,
            local_steps=settings.local_steps,
            n_members=work.members,
            n_local=n_local,
            n_left=int(parameters["left"]),
        )
        n = sum(sizes)
        seen = np.zeros(work.returns["seen"])
        self._freeze(work, parallel)
        lacks = bool(parameters["frozen"]) and not self._is_whole
        if n == 0 or lacks:
            empty = {name: np.zeros(shape) for name, shape in work.returns.items()}
            return empty | {"sums": np.array([0.0, 0.0, n_local, 0.0, lacks])}
        taken, counts = self._sampler.take(n)
        seen[numbers] = counts
        network = self._ready(parallel)
        network.fill(model["weights"], model["momentum"], model["buffers"])
        x, y, weights = self._batch(network, chunks, taken, model["inputs"])
        rate = step_schedule.rate(settings.rate_rule, settings.learning_rate, work.members)
        with network.seeded(noise_seed(settings.random_seed, int(parameters["serial"]), chunks)):
            loss = network.train(x, y, weights, sizes, rate)
        momentum = network.momentum() if work.returns["momentum"] != (0,) else np.zeros(0)
        return {
            "weights": network.weights() * n,
            "momentum": momentum * n,
            "buffers": network.buffers() * n,
            "seen": seen,
            "sums": np.array([n, loss, n_local - n, n * network.is_on_cuda, 0.0]),
        }

    def _freeze(self, work: Work, parallel: Parallel) -> None:
        """Load the frozen parameters if the exchange contains them."""
        frozen = work.model["frozen"]
        if frozen.size:
            self._ready(parallel).freeze(frozen)
            self._is_whole = True

    def _evaluate(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        self._freeze(work, parallel)
        network = self._ready(parallel)
        network.fill(work.model["weights"], np.zeros(0), work.model["buffers"])
        sums = np.zeros(3)
        settings = self._settings
        for chunk in chunks:
            held = held_out(settings.random_seed, chunk.id, chunk.n_rows, settings.holdout)
            rows = np.flatnonzero(held)
            if rows.size:
                scores = network.scores(*network.whole(chunk, work.model["inputs"], rows))
                sums += (scores.weight, scores.loss, scores.correct)
        return {"scores": sums}

    def _batch(
        self, network: Network, chunks: Sequence[Chunk], taken: Taken, inputs: F64
    ) -> tuple[Any, Any, Any]:
        """Gather examples in sampling order; return inputs, targets, and weights or None."""
        pairs = list(zip(taken.chunk.tolist(), taken.row.tolist(), strict=True))
        rows = np.empty((len(pairs), self._facts.n_columns), chunks[0].values.dtype)
        values = [chunk.values for chunk in chunks]
        for at, (chunk, row) in enumerate(pairs):
            rows[at] = values[chunk][row]
        labels = np.array([chunks[chunk].labels[row] for chunk, row in pairs])
        x = network.inputs(network.tensor(rows), float(inputs[0]), float(inputs[1]))
        weights = None
        if any(chunk.weights is not None for chunk in chunks):
            values_of_rows = [_weight(chunks[chunk], row) for chunk, row in pairs]
            weights = network.sample_weights(np.array(values_of_rows))
        return x, network.targets(labels), weights


def _weight(chunk: Chunk, row: int) -> float:
    return 1.0 if chunk.weights is None else float(chunk.weights[row])


def _moments(chunk: Chunk) -> F64:
    """Return the count, the sum and the sum of squares of a chunk's values."""
    values = chunk.values.reshape(-1)
    first = float(values.sum(dtype=np.float64))
    return np.array([values.size, first, float(np.square(values, dtype=np.float64).sum())])
