"""Solver groups of a member: true sums, undone losses, bits that depend on groups, not threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa.contention import PATIENCE, PATIENCE_MAX, Contention
from elasticml.algorithms.cocoa.local_pass import DualSolver, PassRequest, PassResult
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.algorithms.parallel import Serial
from elasticml.objectives.conjugates import DUAL_LOSSES
from elasticml.runtime.executors import ThreadParallel
from tests.unit.algorithms.cocoa.local_problem import KINDS, Problem, SerialExecutor, problem

LOSSES = list(DUAL_LOSSES)


def grouped(
    p: Problem, n: int, *, searches: bool = True, redeals: bool = True, **changed: Any
) -> GroupedSolver:
    caches: Any = {} if redeals else None
    solvers = [p.solver(caches=caches, **changed) for _ in range(n)]
    return GroupedSolver(solvers, loss=p.loss, searches=searches, caches=caches)


# --- a pass of several groups --------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "threads"), [(1, 2), (2, 1), (2, 5), (3, 3)])
def test_a_pass_of_groups_reports_its_sums_and_never_lowers_the_dual(
    kind: str, loss: str, n: int, threads: int
) -> None:
    p = problem(kind, loss)
    solver, v = grouped(p, n), np.zeros(p.X.shape[1])
    dual = p.dual()
    for serial in range(4):
        before = p.dual() + 0.5 * p.l2 * float(v @ v)
        update = p.run(solver, v, serial, parallel=SerialExecutor(threads), epochs=2)
        v = v + update.dv
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13 * np.abs(v).max())
        after = p.dual() + 0.5 * p.l2 * float(v @ v)
        np.testing.assert_allclose(update.dual / p.s.sum(), after - before, rtol=1e-9, atol=1e-13)
        # The member has all rows: its subproblem is the whole problem.
        assert p.dual() >= dual - 1e-14
        dual = p.dual()
        assert update.groups == n


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("searches", [True, False])
@pytest.mark.parametrize("redeals", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_gap_closes_with_groups(loss: str, dtype: str, searches: bool, redeals: bool) -> None:
    p = problem("csr", loss, dtype)
    solver, v = grouped(p, 3, searches=searches, redeals=redeals), np.zeros(p.X.shape[1])
    for serial in range(400):
        v = v + p.run(solver, v, serial).dv
    gap = p.primal(v) - p.dual()
    # The quantile loss has kinks on both sides of its targets.
    assert -1e-12 <= gap <= (5e-6 if loss == "quantile" else 2e-6)
    assert np.abs(v - p.image()).max() <= (1e-4 if dtype == "float32" else 1e-12)


def test_inner_rounds_bring_a_member_nearer_to_the_optimum_of_its_subproblem() -> None:
    duals = []
    for epochs in (1, 2, 4, 8):
        p = problem("csr", "hinge")
        # Half of the data are elsewhere: sigma' of the member is 2.
        solver, total = grouped(p, 2), 2.0 * p.s.sum()
        solver.bind(p.pieces)
        request = p.request(0, l2_total=p.l2 * total, total_weight=total, epochs=epochs)
        update = solver.run(np.zeros(p.X.shape[1]), request, Serial())
        assert update.sigma == 2.0
        duals.append(update.dual - p.l2 * total * update.dv @ update.dv)
    assert duals == sorted(duals)
    assert duals[-1] > duals[0]


def test_a_fixed_sigma_covers_members_and_is_multiplied_by_the_number_of_groups() -> None:
    seen: list[float | None] = []
    p = problem("csr", "hinge")
    solver = GroupedSolver(
        [RecordingSolver(p.solver(), seen) for _ in range(2)], loss=p.loss, searches=False
    )
    p.run(solver, np.zeros(p.X.shape[1]), 0, sigma=4.0)
    assert seen == [8.0, 8.0]


@dataclass
class RecordingSolver:
    """A solver that records the sigma' of its calls."""

    inner: DualSolver
    seen: list[float | None]

    def bind(self, pieces: Any) -> None:
        self.inner.bind(pieces)

    def run(self, v: np.ndarray, request: PassRequest, parallel: Parallel) -> PassResult:
        self.seen.append(request.sigma)
        return self.inner.run(v, request, parallel)

    def undo(self) -> None:
        self.inner.undo()


# --- the same bits ------------------------------------------------------------------------------


def after(n: int, parallel: Parallel) -> tuple[np.ndarray, np.ndarray]:
    p = problem("csr", "hinge", "float32")
    solver, v = grouped(p, n, values_per_thread=100), np.zeros(p.X.shape[1])
    for serial in range(20):
        v = v + p.run(solver, v, serial, parallel=parallel, epochs=1.5).dv
    return v, p.alpha


@pytest.mark.parametrize("n", [2, 4])
def test_groups_give_the_same_bits_for_any_threads_up_to_their_number(n: int) -> None:
    pools = [ThreadParallel(k) for k in range(2, n + 1)]
    results = [after(n, parallel) for parallel in (Serial(), SerialExecutor(n), *pools)]
    for pool in pools:
        pool.close()
    for v, alpha in results[1:]:
        np.testing.assert_array_equal(v, results[0][0])
        np.testing.assert_array_equal(alpha, results[0][1])


def test_groups_of_several_threads_give_the_same_bits_for_any_scheduling() -> None:
    pool = ThreadParallel(5)
    (v, alpha), (w, beta) = after(2, SerialExecutor(5)), after(2, pool)
    pool.close()
    np.testing.assert_array_equal(v, w)
    np.testing.assert_array_equal(alpha, beta)


def test_one_group_of_several_threads_gives_the_bits_of_its_solver_alone() -> None:
    models = []
    for wraps in (True, False):
        p = problem("csr", "hinge", "float32")
        solver: Any = grouped(p, 1) if wraps else p.solver()
        v = np.zeros(p.X.shape[1])
        for serial in range(20):
            update = p.run(solver, v, serial, parallel=SerialExecutor(3))
            assert update.discarded == 0
            v = v + update.dv
        models.append(v)
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize(("n", "threads"), [(1, 3), (2, 1), (2, 4)])
@pytest.mark.parametrize("redeals", [True, False])
def test_a_pass_of_groups_that_is_repeated_gives_the_same_bits(
    n: int, threads: int, redeals: bool
) -> None:
    p = problem("csr", "hinge")
    solver, v = grouped(p, n, redeals=redeals, values_per_thread=100), np.zeros(p.X.shape[1])
    for serial in range(12):
        before = [piece.alpha.copy() for piece in p.pieces]
        first = p.run(solver, v, serial, parallel=SerialExecutor(threads), epochs=3)
        after = p.alpha
        for piece, old in zip(p.pieces, before, strict=True):
            piece.alpha[:] = old
        again = p.run(solver, v, serial, parallel=SerialExecutor(threads), epochs=3)
        assert again.visited == first.visited
        np.testing.assert_array_equal(again.dv, first.dv)
        np.testing.assert_array_equal(p.alpha, after)
        v = v + first.dv


# --- adaptive damping ---------------------------------------------------------------------------


@dataclass
class OvershootingSolver:
    """A solver that overshoots in its first passes, as racing threads may."""

    inner: DualSolver
    losses: int
    pieces: list[Any] = field(default_factory=list)
    undone: int = 0

    def bind(self, pieces: Any) -> None:
        self.pieces = list(pieces)
        self.inner.bind(pieces)

    def run(self, v: np.ndarray, request: PassRequest, parallel: Parallel) -> PassResult:
        update = self.inner.run(v, request, parallel)
        if self.losses == 0:
            return update
        self.losses -= 1
        return replace(update, is_loss=True)

    def undo(self) -> None:
        self.undone += 1
        self.inner.undo()


@pytest.mark.parametrize("n", [1, 2])
def test_a_pass_that_lowers_the_dual_is_undone(n: int) -> None:
    p = problem("csr", "hinge")
    bold = [OvershootingSolver(p.solver(), 0) for _ in range(n)]
    solver, v = GroupedSolver(bold, loss=p.loss, searches=True), np.zeros(p.X.shape[1])
    for serial in range(6):
        v = v + p.run(solver, v, serial, parallel=SerialExecutor(2 * n)).dv
    before = [piece.alpha.copy() for piece in p.pieces]
    resting = [skipped_epochs(one.inner) for one in bold]
    for one in bold:
        one.losses = 1
    update = p.run(solver, v, 6, parallel=SerialExecutor(2 * n))
    assert (update.discarded, [one.undone for one in bold]) == (n, [1] * n)
    assert not update.dv.any()
    assert (update.dual, update.curvature) == (0.0, 0.0)
    assert update.visited > 0
    for piece, old in zip(p.pieces, before, strict=True):
        np.testing.assert_array_equal(piece.alpha, old)
    for one, old in zip(bold, resting, strict=True):
        np.testing.assert_array_equal(skipped_epochs(one.inner), old)
    # It continues from there.
    for serial in range(7, 200):
        v = v + p.run(solver, v, serial, parallel=SerialExecutor(2 * n)).dv
    assert p.primal(v) - p.dual() <= 1e-6


def skipped_epochs(solver: Any) -> np.ndarray:
    """Return the epochs for which each row is still skipped."""
    return np.concatenate([cached.skips for cached in solver._caches.values()])


def test_a_group_that_fails_does_not_hold_up_the_others() -> None:
    p = problem("csr", "hinge")
    solvers = [OvershootingSolver(p.solver(), 1), OvershootingSolver(p.solver(), 0)]
    solver = GroupedSolver(solvers, loss=p.loss, searches=True)
    update = p.run(solver, np.zeros(p.X.shape[1]), 0)
    assert (update.discarded, update.groups) == (1, 2)
    assert not any(piece.alpha.any() for piece in solvers[0].pieces)
    assert all(piece.alpha.any() for piece in solvers[1].pieces)
    np.testing.assert_allclose(update.dv, p.image(), rtol=0, atol=1e-14)


def similar_rows() -> Problem:
    """Make rows that are nearly all the same few: threads that each fit them alone overshoot."""
    p = replace(problem("dense", "squared"), l2=1e-3, y=np.full(230, 3.0))
    p.pieces[:] = [replace(piece, targets=np.full(piece.alpha.size, 3.0)) for piece in p.pieces]
    return p


def test_only_the_groups_whose_pass_loses_get_fewer_threads() -> None:
    p = similar_rows()
    solver, v, messages = p.solver(grow=False), np.zeros(p.X.shape[1]), []
    for serial in range(4):
        for piece in p.pieces:
            piece.alpha[:] = 0.0
        update = p.run(solver, v, serial, parallel=SerialExecutor(4), damping=0.01)
        gain = update.dual / p.s.sum() - 0.5 * p.l2 * float(update.dv @ update.dv)
        assert update.is_loss == (gain < 0.0)
        messages.append((update.is_loss, update.dampings))
    assert messages[0] == (True, 0.5)
    assert messages[-1][0] is False
    assert messages[-1][1] in (0.25, 0.5)


def test_losses_of_real_threads_are_undone_and_the_gap_still_closes() -> None:
    p = similar_rows()
    solver, v = grouped(p, 1, grow=False), np.zeros(p.X.shape[1])
    discarded, dual = 0, p.dual()
    for serial in range(2000):
        update = p.run(solver, v, serial, parallel=SerialExecutor(4), damping=0.01)
        v, discarded = v + update.dv, discarded + update.discarded
        assert p.dual() >= dual - 1e-13
        dual = p.dual()
    # Finally only one pass in many tries more threads.
    assert 0 < discarded < 2000 / PATIENCE_MAX + 10
    assert p.primal(v) - p.dual() <= 1e-6


@settings(max_examples=40)
@given(
    st.sampled_from(LOSSES),
    st.sampled_from(["dense", "csr"]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4, 7]),
    st.sampled_from([0, 100]),
    st.floats(0.01, 1.0),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_the_dual_objective_never_falls_whatever_the_groups_and_threads(
    loss: str, kind: str, n: int, threads: int, values: int, damping: float, epochs: float
) -> None:
    p = problem(kind, loss, n=130)
    solver, v = grouped(p, n, values_per_thread=values), np.zeros(p.X.shape[1])
    dual = p.dual()
    for serial in range(5):
        update = p.run(
            solver, v, serial, parallel=SerialExecutor(threads), damping=damping, epochs=epochs
        )
        v = v + update.dv
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-12)
        # the first pass of a lone group is left to the members' line search
        if serial > 0 or n > 1:
            assert p.dual() >= dual - 1e-13
        dual = p.dual()
        if threads <= n:
            assert update.discarded == 0


def test_threads_are_limited_after_a_loss_and_recover_slowly() -> None:
    crowding = Contention()
    crowding.begin(0, 4)
    crowding.factor[0] = 1.0
    assert not crowding.accepts(-1.0, 1.0, 1e-9)
    assert (crowding.damping, crowding.factor.tolist()) == (0.5, [2.0, 2.0])
    assert not crowding.accepts(-1.0, 1.0, 1e-9)
    assert (crowding.damping, crowding.factor.tolist()) == (0.25, [4.0, 4.0])
    # With full damping, only rounding is lost.
    assert crowding.accepts(-1.0, 1.0, 1e-9)
    for _ in range(PATIENCE):
        assert crowding.accepts(1.0, 1.0, 1e-9)
    assert crowding.damping == 0.5
    # A repeated pass starts in the same state; another number of threads, with whole steps.
    crowding.begin(1, 4)
    assert not crowding.accepts(-1.0, 1.0, 1e-9)
    crowding.begin(1, 4)
    assert crowding.damping == 0.5
    crowding.begin(2, 2)
    assert crowding.damping == 1.0


# --- assignment of chunks to groups --------------------------------------------------------------


def test_groups_get_other_chunks_in_each_pass_and_keep_their_row_state() -> None:
    p, caches = problem("csr", "hinge"), {}
    solvers = [OvershootingSolver(p.solver(caches=caches), 0) for _ in range(2)]
    solver = GroupedSolver(solvers, loss=p.loss, searches=True, caches=caches)
    v, had, norms = np.zeros(p.X.shape[1]), set(), []
    for serial in range(8):
        v = v + p.run(solver, v, serial).dv
        mine = [{piece.chunk.id for piece in one.pieces} for one in solvers]
        assert not mine[0] & mine[1]
        assert mine[0] | mine[1] == {piece.chunk.id for piece in p.pieces}
        had.add(frozenset(mine[0]))
        norms.append([id(cached.norms) for _, cached in sorted(caches.items())])
    assert len(had) > 2
    assert norms[1:] == norms[:-1]
    # Nothing is kept of a chunk that has left.
    solver.bind(p.pieces[1:])
    assert [key[0] for key in sorted(caches)] == [piece.chunk.id for piece in p.pieces[1:]]


def test_groups_that_share_nothing_keep_their_chunks() -> None:
    p = problem("csr", "hinge")
    solvers = [OvershootingSolver(p.solver(), 0) for _ in range(2)]
    solver, v = GroupedSolver(solvers, loss=p.loss, searches=True), np.zeros(p.X.shape[1])
    v = v + p.run(solver, v, 0).dv
    before = [list(one.pieces) for one in solvers]
    p.run(solver, v, 1)
    assert [list(one.pieces) for one in solvers] == before
