"""``absent: auto``: the curvature that it requests, its memory limit, and its estimates."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.batch_gradient import curvature_estimates, curvature_probes
from elasticml.algorithms.batch_gradient.curvature_estimates import Curvatures, curvatures_for
from elasticml.algorithms.batch_gradient.solver import BatchGradientSolver
from elasticml.algorithms.batch_gradient.stand_ins import Sums
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.scaling import Columns
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId, ExchangeId
from elasticml.protocol.events import ExchangeHeader
from elasticml.specification.algorithms import BatchGradient
from tests.serial_world import Return, Run, Vanish, World, facts_of, split_rows

RNG = np.random.default_rng(2)
ROWS = RNG.normal(size=(800, 5)) * [1.0, 2.0, 0.5, 1.0, 1.0]
LABELS = np.where(ROWS @ [1.0, -1.0, 2.0, 0.0, 0.5] + RNG.normal(size=800) > 0, 1.0, -1.0)
ORDER = np.argsort(np.abs(ROWS[:, 1]))
LOSE = (Vanish(round=8, members=(0, 1)), Return(round=20))


def train(*schedule: Vanish | Return) -> Run:
    """Run members with dissimilar data: the rows are sorted by a feature."""
    parts = split_rows(ROWS[ORDER], LABELS[ORDER], 4)
    settings = {"optimizer": "gd", "l2": 0.01}
    return World(settings=settings, parts=parts, absent="auto", schedule=schedule).run(25)


# --- majorants ------------------------------------------------------------------------------------


def test_a_majorant_of_dense_chunks_allocates_for_one_chunk_only() -> None:
    """New memory for each chunk cost ten times as much as the products, in page faults."""
    rows = RNG.normal(size=(6000, 50)).astype(np.float32)
    sizes = np.cumsum([0, 2000, 1000, 3000])
    chunks = [
        dense_chunk(ChunkId("s", 0, k), np.ones(stop - start), rows[start:stop], dtype="float32")
        for k, (start, stop) in enumerate(itertools.pairwise(sizes))
    ]
    facts = facts_of(chunks)
    weights = {chunk.id: RNG.uniform(size=chunk.n_rows) for chunk in chunks}
    tracemalloc.start()
    found = curvature_probes.majorant_of(chunks, lambda c: weights[c.id], 51, facts, Serial())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # sum_i s_i |x_ij| |x_i|_1 with a column of ones.
    absolute = np.column_stack([np.abs(rows).astype(float), np.ones(6000)])
    s = np.concatenate([*weights.values()])
    np.testing.assert_allclose(found, (s * absolute.sum(axis=1)) @ absolute, rtol=1e-12)
    assert peak < 1.2 * 3000 * 51 * 8


# --- requests -------------------------------------------------------------------------------------


def test_operations_of_very_different_cost_have_different_names() -> None:
    """A member far beyond its operation's median duration is declared stuck."""
    requests = [a.exchange for a in train(*LOSE).exchanges]
    sketches = {"products" in exchange.returns for exchange in requests}
    names = {
        sketches: {e.operation for e in requests if ("products" in e.returns) == sketches}
        for sketches in sketches
    }
    assert names[True] == {"sketch"}
    assert names[False] == {"gradient", "probe", "curvature", "survey"}


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rank"),
    [(4, 32), (47_028, 32), (131_072, 32), (524_288, 8), (1_048_576, 4), (3_200_000, 0)],
)
def test_wider_models_get_fewer_directions(columns: int, rank: int) -> None:
    made = curvatures_for(BatchGradient(), Columns(n_columns=columns, intercept=False))
    assert made.rank == rank
    assert 8 * rank * columns <= curvature_estimates.BASIS_BYTES_MAX


def test_models_too_wide_for_a_sketch_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature_estimates, "BASIS_BYTES_MAX", 8 * 5 * 3)
    run = train(*LOSE)
    assert "sketch" not in {a.exchange.operation for a in run.exchanges}
    assert run.rows[10].extra["likeness"] > 0.3
    assert run.rows[10].extra["curvature_from"] == "taylor 1"
    assert run.rows[-1].objective_kind == "exact"


def test_a_sketch_takes_the_memory_of_its_sums_and_their_total() -> None:
    d, rank = 20_000, 16
    rows = sp.random(40, d, density=1e-3, format="csr", rng=np.random.default_rng(3))
    (chunks,) = split_rows(rows, np.sign(RNG.normal(size=40)), 1)
    basis = np.linalg.qr(RNG.normal(size=(d, rank)))[0].T.copy()
    work = ExchangeHeader(
        exchange=ExchangeId(1),
        operation="sketch",
        model={"at": np.zeros(d), "basis": basis},
        parameters={},
        returns={"products": basis.shape},
        members=1,
    )

    solver = BatchGradientSolver({"loss": "squared"}, facts_of(chunks))

    def sketch() -> Any:
        return solver.compute(work, chunks, Serial())

    plain = rows.toarray()
    np.testing.assert_allclose(sketch()["products"], basis @ plain.T @ plain, atol=1e-12)
    tracemalloc.start()
    try:
        sketch()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    vectors = 8  # moments, and the buffer of their sum
    assert peak <= 2 * basis.nbytes + vectors * 8 * d


# --- estimates ------------------------------------------------------------------------------------


def state_before_losses(**changes: Any) -> Curvatures:
    """Make the state before the first loss."""
    made = curvatures_for(BatchGradient(), Columns(n_columns=3, intercept=False))
    made.majorant = np.ones(3)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def lose(made: Curvatures, left: float, changes: Any = None) -> Any:
    """Lose examples of weight 2; ``left`` is the weight of the remaining ones."""
    lost = Sums(loss=1.0, gradient=np.ones(3), weight=2.0)
    present = Sums(loss=left, gradient=left * np.ones(3), weight=left)
    answer = {"majorant": np.zeros(3)}
    return made.choose(np.zeros(3), lost, present, changes, answer, is_exact=True)


def test_similarity_stays_unknown_when_no_member_is_left() -> None:
    """The change of zero is zero: rho would be 1, and every later loss would seem dissimilar."""
    made, change = state_before_losses(), np.array([1.0, 2.0, 3.0])
    assert lose(made, 0.0, (change, 0.0 * change)).mode == "taylor"
    assert made.likeness is None
    made.majorant = np.ones(3)
    assert lose(made, 4.0).mode == "borrowed"


@pytest.mark.parametrize(
    ("likeness", "differ", "mode"),
    [
        (None, None, "borrowed"),
        (None, 0.2, "borrowed"),
        (None, 0.5, "taylor"),
        (0.1, 0.5, "borrowed"),
        (0.5, 0.1, "taylor"),
    ],
)
def test_similarity_comes_from_the_last_loss_or_else_from_the_members(
    likeness, differ, mode
) -> None:
    assert lose(state_before_losses(likeness=likeness, differ=differ), 4.0).mode == mode
