"""Passes over rows that stream from disk: every row once, true sums, the same optimum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import parallel_epoch
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.parallel_epoch import ModelReplicas
from elasticml.algorithms.cocoa.permutation import VisitOrder
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.algorithms.parallel import Serial
from elasticml.data.out_of_core import mapped_memory
from elasticml.data.out_of_core.store import OutOfCoreStore
from tests.unit.algorithms.cocoa.local_problem import KINDS, Problem, SerialExecutor, problem
from tests.unit.algorithms.cocoa.test_solver import ZERO, ask, image, make


def out_of_core(folder: Path, batch_bytes: int) -> OutOfCoreStore:
    made = OutOfCoreStore(2**20, folder, lambda: 0)
    made.batch_bytes = batch_bytes
    return made


def out_of_core_problem(p: Problem, folder: Path, batch_bytes: int = 10_000) -> Problem:
    """Return the same problem with its chunks on disk, about two in a batch."""
    chunks = out_of_core(folder, batch_bytes).settle([piece.chunk for piece in p.pieces])
    pieces = [
        Piece(chunk, piece.targets, piece.weights, np.zeros(chunk.n_rows))
        for chunk, piece in zip(chunks, p.pieces, strict=True)
    ]
    return replace(p, pieces=pieces)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_each_bucket_is_visited_once_whatever_stays_in_memory(tmp_path: Path, share: float) -> None:
    p = out_of_core_problem(problem("csr", "hinge"), tmp_path)
    orders, here = VisitOrder(8), p.pieces[0].chunk.out_of_core
    orders.bind(p.pieces)
    assert here is not None
    first = [part.tolist() for part in orders.epoch((3, 1, 0), share)]
    visits = sorted(visit for part in first for visit in part)
    numbers = {visit >> 32 for visit in visits}
    assert len(numbers) == len(p.pieces) * share
    assert visits == [
        (k << 32) + row for k in sorted(numbers) for row in range(0, p.pieces[k].chunk.n_rows, 8)
    ]
    here.set_importance({p.pieces[2].chunk.id: 1.0})
    here.plan([piece.chunk for piece in p.pieces])
    assert first == [part.tolist() for part in orders.epoch((3, 1, 0), share)]
    assert first != [part.tolist() for part in orders.epoch((3, 2, 0), share)]


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_streamed_pass_reports_its_sums(
    tmp_path: Path, kind: str, loss: str, threads: int
) -> None:
    p = out_of_core_problem(problem(kind, loss), tmp_path)
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(4):
        dual = p.dual() + 0.5 * p.l2 * float(v @ v)
        update = p.run(solver, v, serial, parallel=SerialExecutor(threads), epochs=1.5)
        v = v + update.dv
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13 * np.abs(v).max())
        after = p.dual() + 0.5 * p.l2 * float(p.image() @ p.image())
        np.testing.assert_allclose(update.dual / p.s.sum(), after - dual, rtol=1e-9, atol=1e-13)


def test_the_optimum_is_that_of_rows_in_memory(tmp_path: Path) -> None:
    results = []
    for p in (
        problem("csr", "logistic"),
        out_of_core_problem(problem("csr", "logistic"), tmp_path),
    ):
        solver, v = p.solver(), np.zeros(p.X.shape[1])
        for serial in range(60):
            v = v + p.run(solver, v, serial).dv
        assert p.primal(v) - p.dual() < 1e-12
        results.append(v)
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)


@pytest.mark.parametrize("l2", [0.01, 0.2])
def test_a_first_pass_grows_as_it_does_in_memory(tmp_path: Path, l2: float) -> None:
    models = []
    for grow in (True, False):
        p = replace(out_of_core_problem(problem("dense", "hinge"), tmp_path), l2=l2)
        zero = np.zeros(p.X.shape[1])
        solver = p.solver(grow=grow)
        models.append(p.run(solver, zero, 0).dv)
        for piece in p.pieces:
            piece.alpha[:] = 0.0
        # Again, with all norms known.
        np.testing.assert_array_equal(p.run(solver, zero, 0).dv, models[-1])
    assert np.array_equal(*models) == (l2 == 0.01)


def test_certificates_rank_chunks_by_their_share_of_the_gap(tmp_path: Path) -> None:
    solver, loose = make()
    here = out_of_core(tmp_path, 1)
    ranked: dict[object, float] = {}
    chunks = here.settle(loose)
    here.set_importance = ranked.update  # type: ignore[method-assign]
    ask(solver, chunks, "certify", ZERO, serial=1, settle=0)
    step = ask(solver, chunks, "pass", ZERO, serial=2, settle=1)["dv"]
    partial = ask(solver, chunks, "certify", step, serial=3, settle=2, gamma=1.0)
    np.testing.assert_allclose(image(chunks), step, rtol=1e-12, atol=1e-15)
    gap = float(partial["primal"] - partial["dual"]) + 0.1 * 60 * float(step @ step)
    np.testing.assert_allclose(sum(ranked.values()), gap, rtol=1e-9)
    assert ranked.keys() == {chunk.id for chunk in chunks}
    assert min(ranked.values()) > -1e-12


def test_a_new_job_reads_bodies_once_in_its_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate at zero reads nothing, and rows' norms come from a sample."""
    solver, loose = make()
    chunks = out_of_core(tmp_path, 1).settle(loose)
    fetched: list[int] = []
    monkeypatch.setattr(mapped_memory, "fetch", lambda body: fetched.append(id(body)))
    partial = ask(solver, chunks, "certify", ZERO, serial=1, settle=0)
    assert (float(partial["primal"]), float(partial["dual"])) == (60.0, 0.0)
    assert not partial["image"].any()
    assert fetched == []
    step = ask(solver, chunks, "pass", ZERO, serial=2, settle=1)["dv"]
    assert sorted(fetched) == sorted(id(chunk.body) for chunk in chunks)
    # A repeated exchange with nonzero states reads everything.
    ask(solver, chunks, "certify", step, serial=3, settle=2, gamma=1.0)
    assert len(fetched) == 2 * len(chunks)
    ask(solver, chunks, "certify", ZERO, serial=4, settle=3)
    assert len(fetched) == 3 * len(chunks)
    np.testing.assert_allclose(image(chunks), step, rtol=1e-12, atol=1e-15)


def test_a_start_from_a_models_duals_reads_the_rows(tmp_path: Path) -> None:
    solver, loose = make()
    chunks = out_of_core(tmp_path, 1).settle(loose)
    partial = ask(solver, chunks, "certify", ZERO, serial=1, settle=0, fill="map")
    assert np.abs(partial["image"]).max() > 0.1


def test_norms_of_unvisited_chunks_are_computed_at_their_first_visit(tmp_path: Path) -> None:
    whole, parts = problem("csr", "hinge"), out_of_core_problem(problem("csr", "hinge"), tmp_path)
    solver, v = parts.solver(), np.zeros(parts.X.shape[1])
    for serial in range(200):
        v = v + parts.run(solver, v, serial, epochs=0.25).dv
        assert parts.dual() <= whole.primal(v)
    assert parts.primal(v) - parts.dual() < 1e-6


def test_scaled_rows_are_on_disk_as_well(tmp_path: Path) -> None:
    results = []
    for folder in (None, tmp_path):
        solver, chunks = make()
        if folder is not None:
            chunks = out_of_core(folder, 1).settle(chunks)
        factor = np.array([1.0, 2.0, 0.5, 3.0, 1.0])
        ask(solver, chunks, "certify", ZERO, serial=1, settle=0)
        known = {"serial": 2, "settle": 1, "exact": True}
        done = ask(solver, chunks, "pass", ZERO, model={"factor": factor}, **known)
        held = solver._held[chunks[0].id].piece
        assert held is not None
        assert held.chunk.is_mapped == (folder is not None)
        results.append(float(np.abs(done["dv"]).sum()))
    assert results[1] > 0.0


@pytest.mark.parametrize(
    "parallel", [Serial(), SerialExecutor(2)], ids=["one thread", "two threads"]
)
def test_row_arrays_of_streamed_chunks_are_in_files(tmp_path: Path, parallel: Parallel) -> None:
    solver, loose = make()
    here = out_of_core(tmp_path, 1)
    chunks = here.settle(loose)
    ask(solver, chunks, "certify", ZERO, serial=1, settle=0, parallel=parallel)
    for serial in (2, 3):
        known = {"serial": serial, "settle": serial - 1, "parallel": parallel}
        ask(solver, chunks, "pass", ZERO, **known)
    grouped: Any = solver._local
    rows = [] if parallel.n_threads == 1 else grouped._rows
    for chunk in chunks:
        piece = solver._held[chunk.id].piece
        assert piece is not None
        arrays = [chunk.state["alpha"], chunk.state["step"], piece.alpha, piece.targets]
        assert all(here.maps(memoryview(array)) for array in arrays)
    assert all(here.maps(memoryview(own.before)) and not own.step.size for own in rows)


@pytest.mark.parametrize("n", [2, 3])
def test_streamed_rows_belong_to_one_group_with_all_threads(tmp_path: Path, n: int) -> None:
    results = []
    for n_groups in (1, n):
        p = out_of_core_problem(problem("csr", "hinge"), tmp_path)
        solvers = [p.solver() for _ in range(n_groups)]
        solver: Any = GroupedSolver(solvers, loss=p.loss, searches=True, caches={})
        v = np.zeros(p.X.shape[1])
        for serial in range(4):
            update = p.run(solver, v, serial, parallel=SerialExecutor(4))
            assert update.groups == 1
            v = v + update.dv
        results.append(v)
    np.testing.assert_array_equal(*results)


def test_groups_forget_rows_that_stream_from_now_on(tmp_path: Path) -> None:
    p = problem("csr", "hinge")
    solvers = [p.solver() for _ in range(2)]
    solver: Any = GroupedSolver(solvers, loss=p.loss, searches=True)
    v = p.run(solver, np.zeros(p.X.shape[1]), 0, parallel=SerialExecutor(2)).dv
    assert all(own._pieces for own in solvers)
    out = out_of_core_problem(p, tmp_path)
    for piece, old in zip(out.pieces, p.pieces, strict=True):
        piece.alpha[:] = old.alpha
    v = v + out.run(solver, v, 1, parallel=SerialExecutor(2)).dv
    np.testing.assert_allclose(v, out.image(), rtol=0, atol=1e-13)
    assert [len(own._pieces) for own in solvers] == [len(p.pieces), 0]


@pytest.mark.parametrize("sigma", [None, 2.0])
def test_one_thread_on_a_wide_model_continues_with_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigma: float | None
) -> None:
    results, merges = [], []
    merge = ModelReplicas.is_due

    def counted(self: ModelReplicas, values: float) -> bool:
        is_due = merge(self, values)
        merges[-1] += is_due
        return is_due

    monkeypatch.setattr(ModelReplicas, "is_due", counted)
    for least in (0, 10**9):
        monkeypatch.setattr(parallel_epoch, "VALUES_PER_MERGE", least)
        merges.append(0)
        p = out_of_core_problem(problem("csr", "logistic"), tmp_path)
        solver, v = p.solver(), np.zeros(p.X.shape[1])
        for serial in range(5):
            v = v + p.run(solver, v, serial, epochs=2.5, sigma=sigma).dv
            np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-12 * np.abs(v).max())
        results.append(v)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9)
    assert merges[0] > merges[1] == 0
