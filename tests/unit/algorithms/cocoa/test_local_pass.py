"""The local solver: true sums, a fixed point at the optimum, a reproducible order."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.cocoa import parallel_epoch
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.contention import Contention, adapted_contention
from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassOptions, PassRequest
from elasticml.algorithms.parallel import FixedPieces
from elasticml.objectives.conjugates import DUAL_LOSSES
from elasticml.objectives.dual_kernels import gap_of
from elasticml.runtime.executors import ThreadParallel
from tests.unit.algorithms.cocoa.local_problem import KINDS, SerialExecutor, chunk_of, problem

LOSSES = list(DUAL_LOSSES)
#: Passes that reach a gap of rounding, whatever the order of rows.
GAP_PASSES_MAX = 20_000


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_pass_reports_its_sums(kind: str, loss: str, threads: int) -> None:
    p = problem(kind, loss)
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(3):
        before, dual = p.alpha, p.dual() + 0.5 * p.l2 * float(v @ v)
        update = p.run(solver, v, serial, parallel=SerialExecutor(threads), epochs=2)
        v = v + update.dv
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13 * np.abs(v).max())
        after = p.dual() + 0.5 * p.l2 * float(p.image() @ p.image())
        np.testing.assert_allclose(update.dual / p.s.sum(), after - dual, rtol=1e-9, atol=1e-13)
        if threads == 1 and serial == 0:
            step = p.alpha - before
            bound = 0.5 * DUAL_LOSSES[loss].curvature * float(p.s @ (step * step))
            # Over two epochs the curvature of the parts is not that of their sum.
            assert update.curvature >= 0.4 * bound


@pytest.mark.parametrize("loss", LOSSES)
def test_row_contributions_sum_to_the_gap(loss: str) -> None:
    p = problem("csr", loss)
    p.run(p.solver(), np.zeros(p.X.shape[1]), 0)
    v, dual = p.image(), DUAL_LOSSES[loss]
    margins = p.X @ v * (p.y if dual.folds_labels() else 1.0)
    rows = zip(p.s, p.alpha, margins, p.y, strict=True)
    added = sum(s * gap_of(dual.code, a, m, y, dual.box) for s, a, m, y in rows)
    np.testing.assert_allclose(added / p.s.sum(), p.primal(v) - p.dual(), rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_pass_estimates_the_gap_at_its_start(loss: str, threads: int) -> None:
    p = problem("csr", loss)
    solver, v, ratios = p.solver(), np.zeros(p.X.shape[1]), []
    for serial in range(12):
        met = p.primal(v) - p.dual()
        update = p.run(solver, v, serial, parallel=SerialExecutor(threads))
        v = v + update.dv
        ratios.append(update.gap / p.s.sum() / met)
    # Rows are visited while the gap closes, each after half a pass on average, and their dual
    # variables change meanwhile; the first pass differs from all others.
    assert 1 / 3 <= min(ratios[1:]) <= max(ratios[1:]) <= 2.0
    assert 0.5 <= np.mean(ratios[1:]) <= 1.4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gap_closes(kind: str, loss: str, dtype: str) -> None:
    p = problem(kind, loss, dtype)
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(400):
        v = v + p.run(solver, v, serial).dv
    gap = p.primal(v) - p.dual()
    assert -1e-12 <= gap <= 2e-6
    assert np.abs(v - p.image()).max() <= (1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_chunks_threads_and_seed_give_the_same_bits(threads: int) -> None:
    results = []
    for _ in range(2):
        p = problem("csr", "hinge", "float32")
        solver, v = p.solver(), np.zeros(p.X.shape[1])
        for serial in range(4):
            v = v + p.run(solver, v, serial, parallel=SerialExecutor(threads), epochs=1.5).dv
        results.append((v, p.alpha))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_the_seed_and_the_serial_change_the_order() -> None:
    def model(seed: int, serial: int) -> np.ndarray:
        p = problem("csr", "hinge")
        return p.run(p.solver(), np.zeros(p.X.shape[1]), serial, seed=seed).dv

    assert np.any(model(0, 0) != model(1, 0))
    assert np.any(model(0, 0) != model(0, 1))


@pytest.mark.parametrize("loss", LOSSES)
def test_shrinking_does_not_change_the_optimum(loss: str) -> None:
    models, gaps, visited, early = [], [], [], []
    for shrink in (True, False):
        p = problem("csr", loss)
        solver, v, rows, gap = p.solver(shrink=shrink), np.zeros(p.X.shape[1]), 0, np.inf
        for serial in range(GAP_PASSES_MAX):
            update = p.run(solver, v, serial)
            v, rows = v + update.dv, rows + update.visited
            if serial == 29:
                early.append(rows)
            if serial >= 799 and serial % 100 == 99:
                gap = p.primal(v) - p.dual()
                if gap <= 1e-11:
                    break
        assert gap <= 1e-11
        models.append(v)
        gaps.append(max(gap, 1e-15))
        visited.append(rows / (230 * (serial + 1)))
    # The primal objective is l2-strongly convex: any model with such a gap is this close to the
    # optimum.
    reach = sum(np.sqrt(2.0 * gap / p.l2) for gap in gaps)
    assert float(np.linalg.norm(models[0] - models[1])) <= reach
    assert visited[1] == 1.0
    if loss == "hinge":
        # Until only rounding is left, which wakes all rows.
        assert early[0] < 0.25 * early[1]
    if loss in ("logistic", "squared"):
        assert visited[0] == 1.0


def first_models(l2: float, *, grow: bool) -> tuple[float, np.ndarray]:
    p = replace(problem("dense", "hinge"), l2=l2)
    v = p.run(p.solver(grow=grow), np.zeros(p.X.shape[1]), 0).dv
    return p.primal(v), v


def test_a_first_pass_takes_longer_steps_where_rows_hardly_change_their_own_margins() -> None:
    (grown, _), (plain, _) = first_models(0.2, grow=True), first_models(0.2, grow=False)
    assert grown < plain
    (_, grown), (_, plain) = first_models(0.01, grow=True), first_models(0.01, grow=False)
    np.testing.assert_array_equal(grown, plain)


def test_a_pass_that_is_repeated_gives_the_same_bits() -> None:
    p = problem("csr", "hinge")
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(12):
        before = [piece.alpha.copy() for piece in p.pieces]
        first = p.run(solver, v, serial)
        after = p.alpha
        for piece, old in zip(p.pieces, before, strict=True):
            piece.alpha[:] = old
        again = p.run(solver, v, serial)
        assert (again.visited, again.dual) == (first.visited, first.dual)
        np.testing.assert_array_equal(again.dv, first.dv)
        np.testing.assert_array_equal(p.alpha, after)
        v = v + first.dv
    assert first.visited < 230


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bucket", [1, 8, 64, 1000])
def test_every_row_is_visited_once_an_epoch(loss: str, bucket: int) -> None:
    p = problem("dense", loss)
    update = p.run(p.solver(bucket=bucket, shrink=False), np.zeros(p.X.shape[1]), 0, epochs=3)
    assert update.visited == 3 * 230
    assert update.stored == 3 * p.pieces[0].chunk.layout.n_columns * 230


@pytest.mark.parametrize("threads", [1, 3])
def test_a_first_pass_from_zero_is_worth_several(threads: int) -> None:
    def primal_after_one_pass(grow: bool) -> float:
        p = problem("csr", "hinge", n=2000)
        v = p.run(
            p.solver(grow=grow), np.zeros(p.X.shape[1]), 0, parallel=SerialExecutor(threads)
        ).dv
        return p.primal(v)

    p = problem("csr", "hinge", n=2000)
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(50):
        v = v + p.run(solver, v, serial).dv
    best = p.primal(v)
    assert primal_after_one_pass(True) - best < 0.3 * (primal_after_one_pass(False) - best)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_dual_never_falls_with_safe_sigma(loss: str) -> None:
    p = problem("csr", loss)
    solver, v = p.solver(grow=False), np.zeros(p.X.shape[1])
    duals = [p.dual()]
    for serial in range(30):
        v = v + p.run(solver, v, serial, parallel=SerialExecutor(4)).dv
        duals.append(p.dual())
    assert np.diff(duals).min() >= -1e-13


def test_small_data_are_not_split_over_many_threads() -> None:
    p, zero = problem("dense", "hinge"), np.zeros(13)
    stored = 12 * 230

    def parts(values_per_thread: int) -> int:
        solver, counts = p.solver(values_per_thread=values_per_thread), []
        parallel = SerialExecutor(4)
        parallel.map = lambda function, items: (
            counts.append(len(items)) or list(map(function, items))
        )
        p.run(solver, zero, 0, parallel=parallel)
        return max(counts)

    assert [parts(each) for each in (0, stored // 3, stored, 10 * stored)] == [4, 3, 1, 1]


def test_a_fixed_sigma_replaces_the_damped_one() -> None:
    p, q = problem("csr", "hinge"), problem("csr", "hinge")
    zero = np.zeros(p.X.shape[1])
    fixed = p.run(p.solver(grow=False), zero, 0, sigma=2.0).dv
    # This member owns half of the weight: sigma' = 2 either way.
    solver = q.solver(grow=False)
    solver.bind(q.pieces)
    request = q.request(0, total_weight=2.0 * float(q.s.sum()))
    damped = solver.run(zero, request, SerialExecutor(1)).dv
    np.testing.assert_allclose(damped, fixed, rtol=1e-14)


def test_members_with_shares_of_the_chunks_add_up() -> None:
    p = problem("csr", "squared")
    v = np.zeros(p.X.shape[1])
    halves = [(p.solver(), p.pieces[:2]), (p.solver(), p.pieces[2:])]
    for serial in range(300):
        changes = []
        for solver, pieces in halves:
            solver.bind(pieces)
            changes.append(solver.run(v, p.request(serial), SerialExecutor(1)).dv)
        v = v + changes[0] + changes[1]
    np.testing.assert_allclose(v, p.image(), atol=1e-12)
    assert p.primal(v) - p.dual() <= 1e-9


def test_chunks_that_come_and_go_get_new_pointers() -> None:
    p = problem("csr", "hinge")
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    solver.bind(p.pieces[:2])
    v = v + p.run(solver, v, 0).dv
    np.testing.assert_allclose(v, p.image(), atol=1e-13)


def test_empty_rows_rows_without_weight_and_no_rows_are_fine() -> None:
    empty = chunk_of("csr", 9, np.zeros((5, 12)), np.ones(5), "float64")
    weights = np.array([1.0, 0.0, 2.0, 0.0, 1.0])
    piece = Piece(empty, np.ones(5), weights, np.zeros(5))
    solver = LocalSolver(
        loss="hinge", dtype="float64", intercept_scaling=None, options=PassOptions(bucket=2)
    )
    solver.bind([piece])
    request = PassRequest(l2_total=0.4, total_weight=4.0, damping=1.0, epochs=1, seed=0, serial=0)
    update = solver.run(np.zeros(12), request, SerialExecutor(2))
    np.testing.assert_array_equal(piece.alpha, [1.0, 0.0, 1.0, 0.0, 1.0])
    assert (update.dual, update.visited) == (4.0, 5)
    np.testing.assert_array_equal(update.dv, np.zeros(12))
    solver.bind([])
    update = solver.run(np.zeros(12), request, SerialExecutor(2))
    assert (update.dual, update.visited, update.dv.size) == (0.0, 0, 12)


def test_arrays_that_do_not_fit_are_refused() -> None:
    p = problem("csr", "hinge")
    chunk = p.pieces[0].chunk
    good = np.zeros(chunk.n_rows)
    with pytest.raises(ValueError, match=r"alpha has shape \(3,\)"):
        p.solver().bind([Piece(chunk, good, None, np.zeros(3))])
    with pytest.raises(ValueError, match=r"targets has .* type float32"):
        p.solver().bind([Piece(chunk, good.astype(np.float32), None, good)])
    with pytest.raises(ValueError, match="has float64 values, the solver float32"):
        LocalSolver(loss="hinge", dtype="float32", intercept_scaling=None).bind(
            [Piece(chunk, good, None, good)]
        )
    with pytest.raises(ValueError, match="bucket is 0"):
        p.solver(bucket=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_models_merged_within_an_epoch_stay_those_of_their_duals(loss: str) -> None:
    p = problem("csr", loss)
    solver, v = p.solver(values_per_thread=100), np.zeros(p.X.shape[1])
    for serial in range(300):
        update = p.run(solver, v, serial, parallel=SerialExecutor(3), epochs=1.3)
        v = v + update.dv
        assert update.partitions == 1
        if serial < 5:
            np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13)
    assert -1e-12 <= p.primal(v) - p.dual() <= 5e-6


def test_a_repeated_pass_of_several_slices_gives_the_same_bits() -> None:
    p = problem("csr", "squared_hinge")
    solver, v = p.solver(values_per_thread=100), np.zeros(p.X.shape[1])
    for serial in range(6):
        before = [piece.alpha.copy() for piece in p.pieces]
        first = p.run(solver, v, serial, parallel=SerialExecutor(2))
        for piece, old in zip(p.pieces, before, strict=True):
            piece.alpha[:] = old
        again = p.run(solver, v, serial, parallel=SerialExecutor(2))
        np.testing.assert_array_equal(again.dv, first.dv)
        v = v + first.dv


def test_threads_take_larger_slices_until_they_contend() -> None:
    crowding = Contention()
    crowding.begin(0, 3)
    assert crowding.factor[0] == 3.0
    # The dual objective along the step: slope t - bend t^2 / 2.
    for slope, factor in ((8.0, 3.0 / 1.15), (4.2, 3.0 / 1.15), (3.0, 3.0), (9.0, 3.0 / 1.15)):
        crowding.factor[0] = adapted_contention(crowding.factor[0], slope, 4.0, 3.0)
        assert crowding.factor[0] == pytest.approx(factor)
    crowding.begin(0, 3)
    assert crowding.factor[0] == 3.0
    for _ in range(20):
        crowding.factor[0] = adapted_contention(crowding.factor[0], 9.0, 4.0, 3.0)
    assert crowding.factor[0] == 1.0
    assert adapted_contention(2.0, 0.0, 0.0, 3.0) == 2.0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_results_do_not_depend_on_how_many_threads_share_the_work(dtype: str) -> None:
    models = []
    pool = ThreadParallel(3)
    for parallel in (SerialExecutor(3), pool, FixedPieces(pool, 3)):
        p = problem("csr", "hinge", dtype)
        solver, v = p.solver(values_per_thread=100), np.zeros(p.X.shape[1])
        for serial in range(20):
            v = v + p.run(solver, v, serial, parallel=parallel, epochs=1.5).dv
        models.append((v, p.alpha))
    pool.close()
    for v, alpha in models[1:]:
        np.testing.assert_array_equal(v, models[0][0])
        np.testing.assert_array_equal(alpha, models[0][1])


@pytest.mark.timeout(120)
def test_a_failing_thread_leaves_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls, has_drawn = parallel_epoch.run_tasks, itertools.count(), threading.Event()

    def failing(*given: Any) -> None:
        if next(calls) == 0:
            counters = given[1]
            counters[0] += 1
            has_drawn.set()
            raise MemoryError("no room for a task that was drawn")
        has_drawn.wait()
        real(*given)

    monkeypatch.setattr(parallel_epoch, "run_tasks", failing)
    pool, p = ThreadParallel(2), problem("csr", "hinge")
    with pytest.raises(MemoryError, match="that was drawn"):
        p.run(p.solver(), np.zeros(p.X.shape[1]), 0, parallel=pool)
    pool.close()
