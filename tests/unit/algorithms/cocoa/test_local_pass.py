"""A member's passes, by one thread, several, groups of threads, in memory and on disk."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import parallel_epoch
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassOptions, PassRequest, PassResult
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.algorithms.parallel import FixedPieces, Serial
from elasticml.objectives.loss_kernels import loss_named
from elasticml.runtime.executors import ThreadParallel
from elasticml.specification.algorithms import DUAL_LOSSES
from tests.unit.algorithms.cocoa.local_problem import (
    KINDS,
    Problem,
    SerialExecutor,
    on_disk,
    problem,
)
from tests.unit.data.rows import chunk_of

LOSSES = list(DUAL_LOSSES)
#: Passes that reach a gap of rounding, whatever the order of rows.
GAP_PASSES_MAX = 20_000


@dataclass(frozen=True, kw_only=True)
class Way:
    """Who visits the rows, and where they are."""

    threads: int = 1
    #: Groups of threads, at least two; none: a solver alone.
    groups: int = 0
    #: Threads merge their copies of the model within an epoch, after this many values.
    values: int = 0
    is_on_disk: bool = False

    def problem(self, folder: Path, kind: str, loss: str, dtype: str = "float64") -> Problem:
        p = problem(kind, loss, dtype)
        return on_disk(p, folder) if self.is_on_disk else p

    def solver(self, p: Problem, **changed: Any) -> Any:
        """Make a solver; its groups are dealt other chunks in every pass."""
        given = {"values_per_thread": self.values, **changed}
        if not self.groups:
            return p.solver(**given)
        solvers = [p.solver(**given) for _ in range(self.groups)]
        return GroupedSolver(solvers, loss=loss_named(p.loss), searches=True, redeals=True)

    def run(self, p: Problem, solver: Any, v: np.ndarray, serial: int, **more: Any) -> PassResult:
        given = {"parallel": SerialExecutor(self.threads), **more}
        return p.run(solver, v, serial, **given)


WAYS = {
    "one thread": Way(),
    "threads": Way(threads=3),
    "threads that merge": Way(threads=3, values=100),
    "groups": Way(threads=3, groups=3),
    "groups of threads": Way(threads=5, groups=2, values=100),
    "on disk": Way(is_on_disk=True),
    "threads on disk": Way(threads=3, is_on_disk=True),
    "groups on disk": Way(threads=4, groups=2, is_on_disk=True),
}
ALL = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


# --- whoever visits the rows ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "loss"),
    [
        pytest.param(way, loss, id=f"{name} {loss}")
        for name, way in WAYS.items()
        for loss in (LOSSES if name == "one thread" else ("hinge", "squared"))
    ],
)
def test_a_pass_reports_its_sums_and_lowers_no_dual(way: Way, loss: str, tmp_path: Path) -> None:
    for kind in KINDS:
        p = way.problem(tmp_path, kind, loss)
        solver, v, dual = way.solver(p), np.zeros(p.X.shape[1]), p.dual()
        for serial in range(4):
            before = p.dual() + 0.5 * p.l2 * float(v @ v)
            update = way.run(p, solver, v, serial, epochs=1.5)
            v = v + update.dv
            np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13 * np.abs(v).max())
            after = p.dual() + 0.5 * p.l2 * float(v @ v)
            np.testing.assert_allclose(
                update.dual / p.s.sum(), after - before, rtol=1e-9, atol=1e-13
            )
            # The first pass is left to the line search of the members.
            assert p.dual() >= dual - 1e-13 or serial == 0
            dual = p.dual()


@ALL
@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "quantile"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_gap_closes(way: Way, loss: str, dtype: str, tmp_path: Path) -> None:
    p = way.problem(tmp_path, "csr", loss, dtype)
    solver, v = way.solver(p), np.zeros(p.X.shape[1])
    for serial in range(400):
        v = v + way.run(p, solver, v, serial).dv
        gap = p.primal(v) - p.dual()
        if gap <= 1.5e-6:
            break
    # The quantile loss has kinks on both sides of its targets.
    assert -1e-12 <= gap <= (5e-6 if loss == "quantile" else 2e-6)
    assert np.abs(v - p.image()).max() <= (1e-4 if dtype == "float32" else 1e-12)


def bits_after(way: Way, parallel: Parallel) -> tuple[bytes, bytes]:
    p = problem("csr", "hinge", "float32")
    solver, v = way.solver(p), np.zeros(p.X.shape[1])
    for serial in range(12):
        v = v + p.run(solver, v, serial, parallel=parallel, epochs=1.5).dv
    return v.tobytes(), p.alpha.tobytes()


@pytest.mark.parametrize("name", ["threads", "threads that merge", "groups", "groups of threads"])
def test_results_do_not_depend_on_how_threads_are_scheduled(name: str) -> None:
    way = WAYS[name]
    pool = ThreadParallel(way.threads)
    executors: list[Any] = [SerialExecutor(way.threads), pool]
    if name == "groups":  # a thread may do the work of several
        executors += [Serial(), SerialExecutor(2)]
    elif not way.groups:
        executors.append(FixedPieces(pool, way.threads))
    results = {bits_after(way, parallel) for parallel in executors}
    pool.close()
    assert len(results) == 1


# --- what a pass is worth -------------------------------------------------------------------------


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
    assert 1 / 3 <= min(ratios[1:]) <= max(ratios[1:]) <= 2.2
    assert 0.5 <= np.mean(ratios[1:]) <= 1.4


@pytest.mark.parametrize("loss", ["hinge", "logistic", "quantile"])
def test_shrinking_does_not_change_the_optimum(loss: str) -> None:
    models, gaps, early = [], [], []
    for shrink in (True, False):
        p = problem("csr", loss)
        solver, v, rows, gap = p.solver(shrink=shrink), np.zeros(p.X.shape[1]), 0, np.inf
        for serial in range(GAP_PASSES_MAX):
            update = p.run(solver, v, serial)
            v, rows = v + update.dv, rows + update.visited
            if serial == 29:
                early.append(rows)
            if serial >= 99 and serial % 100 == 99:
                gap = p.primal(v) - p.dual()
                if gap <= 1e-11:
                    break
        assert gap <= 1e-11
        models.append(v)
        gaps.append(max(gap, 1e-15))
    # The primal objective is l2-strongly convex: any model with such a gap is this close to the
    # optimum.
    reach = sum(np.sqrt(2.0 * gap / p.l2) for gap in gaps)
    assert float(np.linalg.norm(models[0] - models[1])) <= reach
    assert early[1] == 30 * 230
    if loss == "hinge":
        # Until only rounding is left, which wakes all rows.
        assert early[0] < 0.25 * early[1]


def test_rows_that_were_skipped_are_visited_after_a_jump_of_the_model() -> None:
    """Members were absent: the others had nearly converged, and skipped most rows for long.

    When the absent members returned the model jumped, and a job took 175 rounds instead of 25.
    """
    p = problem("csr", "hinge")
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(40):
        update = p.run(solver, v, serial)
        v = v + update.dv
    assert update.visited < 230
    jumped = v + 3.0
    p.run(solver, jumped, 40)
    assert p.run(solver, jumped + 0.01, 41).visited > 2 * update.visited


def test_a_pass_that_did_not_count_is_repeated_with_all_rows() -> None:
    """Its steps were not taken, so that the rows that it skipped were chosen by another model."""
    p = problem("csr", "hinge")
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(40):
        before, alphas = v, [piece.alpha.copy() for piece in p.pieces]
        update = p.run(solver, v, serial)
        v = v + update.dv
    assert update.visited < 230
    for piece, alpha in zip(p.pieces, alphas, strict=True):
        piece.alpha[:] = alpha
    assert p.run(solver, before, 39).visited == 230


@pytest.mark.parametrize("threads", [1, 3])
def test_a_first_pass_from_zero_is_worth_several(threads: int) -> None:
    p = problem("csr", "hinge", n=2000)
    solver, v, after = p.solver(), np.zeros(p.X.shape[1]), {}
    for serial in range(50):
        v = v + p.run(solver, v, serial).dv
    for grow in (True, False):
        q = problem("csr", "hinge", n=2000)
        zero, parallel = np.zeros(v.size), SerialExecutor(threads)
        after[grow] = q.primal(q.run(q.solver(grow=grow), zero, 0, parallel=parallel).dv)
    assert after[True] - p.primal(v) < 0.3 * (after[False] - p.primal(v))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_curvature_of_a_pass_is_that_of_its_steps(loss: str) -> None:
    """Each row takes one step, so that the sum over the steps is known."""
    p = problem("csr", loss)
    start = p.alpha
    update = p.run(p.solver(), np.zeros(p.X.shape[1]), 0)
    step = p.alpha - start
    pairs = zip(start, p.alpha, strict=True)
    each = np.array([loss_named(loss).terms.minus_curvature(a, b) for a, b in pairs])
    expected = 0.5 * float((p.s * each) @ (step * step))
    np.testing.assert_allclose(update.curvature, expected, rtol=1e-12)


# --- a member among others ------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [0, 2])
def test_inner_rounds_bring_a_member_nearer_to_the_optimum_of_its_subproblem(groups: int) -> None:
    duals = []
    for epochs in (1, 2, 4, 8):
        p = problem("csr", "hinge")
        # Half of the data are elsewhere: sigma' of the member is 2.
        solver, total = Way(groups=groups).solver(p), 2.0 * p.s.sum()
        given = {"l2_total": p.l2 * total, "total_weight": total, "epochs": epochs}
        update = p.run(solver, np.zeros(p.X.shape[1]), 0, **given)
        duals.append(update.dual - p.l2 * total * update.dv @ update.dv)
    assert duals == sorted(duals)
    assert duals[-1] > duals[0]


@pytest.mark.parametrize("groups", [0, 2])
def test_a_pass_of_many_epochs_ends_when_its_subproblem_is_solved_well_enough(groups: int) -> None:
    def run(epochs: int, enough: float) -> PassResult:
        p = problem("csr", "squared_hinge", n=2000)
        solver = Way(groups=groups).solver(p, shrink=False)
        return p.run(solver, np.zeros(p.X.shape[1]), 0, epochs=epochs, enough=enough)

    first, ended, whole = run(1, 0.0), run(8, 0.25), run(8, 0.0)
    assert (first.visited, whole.visited) == (2000, 16_000)
    assert 4000 <= ended.visited < 16_000
    assert ended.gap <= 0.25 * first.gap


def test_chunks_may_come_go_and_be_moved_to_disk(tmp_path: Path) -> None:
    p = problem("csr", "hinge")
    for way in (WAYS["one thread"], WAYS["groups"]):
        for piece in p.pieces:
            piece.alpha[:] = 0.0
        solver, v = way.solver(p), np.zeros(p.X.shape[1])
        for serial, pieces in enumerate((p.pieces[:2], p.pieces, p.pieces[1:], p.pieces)):
            v = v + way.run(replace(p, pieces=pieces), solver, v, serial).dv
            np.testing.assert_allclose(v, p.image(), atol=1e-13)
        out = on_disk(p, tmp_path)
        for piece, old in zip(out.pieces, p.pieces, strict=True):
            piece.alpha[:] = old.alpha
        v = v + way.run(out, solver, v, 4).dv
        np.testing.assert_allclose(v, out.image(), rtol=0, atol=1e-13)


def test_empty_rows_rows_without_weight_and_no_rows_are_fine() -> None:
    empty = chunk_of("csr", np.zeros((5, 12)), np.ones(5))
    weights = np.array([1.0, 0.0, 2.0, 0.0, 1.0])
    piece = Piece(empty, np.ones(5), weights, np.zeros(5))
    solver = LocalSolver(
        loss=loss_named("hinge"),
        dtype="float64",
        intercept_scaling=None,
        options=PassOptions(bucket=2),
    )
    solver.bind([piece])
    request = PassRequest(l2_total=0.4, total_weight=4.0, damping=1.0, epochs=1, seed=0, serial=0)
    update = solver.run(np.zeros(12), request, SerialExecutor(2))
    np.testing.assert_array_equal(piece.alpha, [1.0, 0.0, 1.0, 0.0, 1.0])
    assert (update.dual, update.visited) == (4.0, 5)
    solver.bind([])
    update = solver.run(np.zeros(12), request, SerialExecutor(2))
    assert (update.dual, update.visited, update.dv.size) == (0.0, 0, 12)


# --- threads ------------------------------------------------------------------------------------


def test_without_a_line_search_no_pass_of_threads_lowers_the_dual() -> None:
    """Columns are nearly equal: threads that damp their steps less than is safe overshoot."""
    rng, n, falls = np.random.default_rng(0), 4000, {}
    X = rng.standard_normal((n, 1)) + 0.001 * rng.standard_normal((n, 20))
    y = np.sign(X[:, 0] + rng.standard_normal(n))
    dense = np.column_stack([X, np.full(n, 0.5)])
    for searches in (True, False):
        piece = Piece(chunk_of("dense", X, y), y, None, np.zeros(n))
        p = Problem([piece], dense, y, np.ones(n), "logistic", "float64", l2=1e-7)
        # Four slices: too few for a last one that is safe.
        solver, v, duals = p.solver(values_per_thread=20_000), np.zeros(21), []
        for serial in range(40):
            given = {"parallel": SerialExecutor(4), "searches": searches}
            v = v + p.run(solver, v, serial, **given).dv
            duals.append(p.dual())
        falls[searches] = float(np.max(-np.diff(duals)))
    assert falls[False] <= 0.0
    assert falls[True] > 1e-3


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
