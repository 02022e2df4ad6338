"""Cases that ``test_cuda.py`` runs in a separate process, on numba's GPU simulator.

The simulator's threads are Python threads, and each barrier costs a thread switch per thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

from elasticml.algorithms.cocoa import (
    chunk_pointers,
    cuda_kernels,
    cuda_solver,
)
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.cuda_solver import CudaSolver, blocks_for, threads_for
from elasticml.algorithms.cocoa.device_selection import AUTO_VALUES_MIN, device_of, why_not_cuda
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import csr_chunk
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from elasticml.objectives.conjugates import DUAL_LOSSES
from elasticml.objectives.dual_kernels import logistic_newton_step, stepped
from tests.unit.algorithms.cocoa.cuda_simulator import alternating_threads
from tests.unit.algorithms.cocoa.local_problem import KINDS, Problem, chunk_of, problem

LOSSES = list(DUAL_LOSSES)
GAP = 1e-6
EXACT = [loss for loss in LOSSES if loss != "logistic"]


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    with alternating_threads(monkeypatch):
        yield


def on_cuda(p: Problem, *, blocks: int = 1, threads: int = 4, **more: Any) -> CudaSolver:
    settings = {"intercept_scaling": 0.5, "blocks": blocks, "threads": threads, **more}
    return CudaSolver(loss=p.loss, dtype=p.dtype, **settings)


def gap_after(p: Problem, solver: CudaSolver, epochs: int) -> float:
    """Return the gap after this many passes, or the passes until a gap is reached."""
    v, gap = np.zeros(p.X.shape[1]), np.inf
    for serial in range(epochs):
        v = v + p.run(solver, v, serial).dv
        gap = p.primal(v) - p.dual()
        assert gap >= -1e-7
        if gap <= GAP:
            break
    return gap


# --- one block: one row after another ---------------------------------------------------------


@pytest.mark.parametrize("loss", EXACT)
@pytest.mark.parametrize("kind", KINDS)
def test_one_block_takes_the_steps_of_the_cpu(kind: str, loss: str) -> None:
    p, q = problem(kind, loss, n=66), problem(kind, loss, n=66)
    cpu, gpu = p.solver(bucket=1, shrink=False, grow=False), on_cuda(q)
    v = w = np.zeros(p.X.shape[1])
    for serial in range(2):
        a = p.run(cpu, v, serial, epochs=1 + serial, sigma=1.7)
        b = q.run(gpu, w, serial, epochs=1 + serial, sigma=1.7)
        v, w = v + a.dv, w + b.dv
        assert (b.visited, b.partitions) == (a.visited, a.partitions)
        assert (a.visited, a.partitions) == (66 * (1 + serial), 1)
        np.testing.assert_allclose(b.dual, a.dual, rtol=1e-12)
        np.testing.assert_allclose(b.curvature, a.curvature, rtol=1e-12)
    np.testing.assert_allclose(q.alpha, p.alpha, rtol=0, atol=1e-13)
    np.testing.assert_allclose(w, v, rtol=0, atol=1e-13)
    assert gpu.damping == 1.0


def test_one_block_takes_one_newton_step_a_row_for_the_logistic_loss() -> None:
    p = problem("csr", "logistic", n=70)
    solver, r = on_cuda(p), np.zeros(p.X.shape[1])
    expected = np.zeros(70)
    unit = 1.0 / (p.l2 * p.s.sum())
    for serial in range(2):
        before = r.copy()
        for i in cuda_solver._order(70, 1.0, (3, serial, 0)):
            row = p.y[i] * p.X[i]
            q = unit * p.s[i] * float(row @ row)
            new = logistic_newton_step(expected[i], float(row @ r), q)
            r += unit * p.s[i] * (new - expected[i]) * row
            expected[i] = new
        update = p.run(solver, before, serial)
        np.testing.assert_allclose(update.dv, r - before, rtol=0, atol=1e-13)
    np.testing.assert_allclose(p.alpha, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_the_number_of_threads_of_a_block_changes_nothing_but_rounding(threads: int) -> None:
    p, q = problem("dense", "hinge", n=30), problem("dense", "hinge", n=30)
    v = np.zeros(p.X.shape[1])
    a, b = p.run(on_cuda(p), v, 0), q.run(on_cuda(q, threads=threads), v, 0)
    np.testing.assert_allclose(b.dv, a.dv, rtol=0, atol=1e-13)


# --- several blocks ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
def test_several_blocks_reach_the_certified_optimum(loss: str, dtype: str) -> None:
    p = problem("csr", loss, dtype, n=40)
    p.l2 = 0.5
    assert gap_after(p, on_cuda(p, blocks=4, threads=2), 25) <= GAP


@pytest.mark.parametrize("kind", KINDS)
def test_the_pass_reports_its_sums(kind: str) -> None:
    p = problem(kind, "squared_hinge", n=70)
    solver, v = on_cuda(p, blocks=5), np.zeros(p.X.shape[1])
    for serial in range(2):
        dual = p.dual() + 0.5 * p.l2 * float(v @ v)
        update = p.run(solver, v, serial, epochs=2)
        v = v + update.dv
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13)
        after = p.dual() + 0.5 * p.l2 * float(v @ v)
        np.testing.assert_allclose(update.dual / p.s.sum(), after - dual, rtol=1e-9, atol=1e-13)
        assert update.visited == 140
        assert update.stored == 2 * sum(chunk_pointers.stored_of(x.chunk) for x in p.pieces)


def test_rows_that_do_not_fit_come_in_batches_and_reach_the_same_optimum() -> None:
    p = problem("csr", "squared_hinge", n=130)
    p.l2 = 0.4
    room = 1.05 * max(cuda_solver.device_bytes(piece.chunk) for piece in p.pieces)
    solver = on_cuda(p, blocks=2, threads=2, room_bytes=room)
    solver.bind(p.pieces)
    assert len(solver._batches) == 3
    assert p.run(solver, np.zeros(p.X.shape[1]), 0).visited == 130
    for piece in p.pieces:
        piece.alpha[:] = 0.0
    assert gap_after(p, solver, 14) <= GAP


def test_rows_stay_on_the_device_while_the_pieces_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    real = cuda_solver.send_rows

    def counted(pieces: Any, *rest: Any) -> Any:
        sent.append(len(pieces))
        return real(pieces, *rest)

    monkeypatch.setattr(cuda_solver, "send_rows", counted)
    p = problem("csr", "hinge", n=130)
    nothing = chunk_of("csr", 9, np.zeros((0, 12)), np.zeros(0), "float64")
    p.pieces.append(Piece(nothing, np.zeros(0), np.zeros(0), np.zeros(0)))
    solver, v = on_cuda(p), np.zeros(p.X.shape[1])
    p.run(solver, v, 0)
    p.run(solver, v, 1)
    assert sent == [3]
    p.pieces.pop()
    solver.bind(p.pieces[1:])
    p.run(solver, v, 2)
    assert sent == [3, 3]


def test_a_batch_has_left_the_device_before_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[weakref.ref[Any]] = []
    real = cuda_solver.send_rows

    def watched(*given: Any) -> Any:
        assert [ref() for ref in sent] == [None] * len(sent)
        rows = real(*given)
        sent.append(weakref.ref(rows.targets))
        return rows

    monkeypatch.setattr(cuda_solver, "send_rows", watched)
    p = problem("csr", "hinge", n=130)
    p.run(on_cuda(p, threads=1, room_bytes=1), np.zeros(p.X.shape[1]), 0)
    assert len(sent) == 3


class DeviceWithRoomFor:
    """A ``send_rows`` for a device with room for this many pieces at a time."""

    def __init__(self, room: int, error: Exception) -> None:
        self._room, self._error = room, error
        self._real = cuda_solver.send_rows
        self.sent: list[int] = []

    def __call__(self, pieces: Any, *rest: Any) -> Any:
        self.sent.append(len(pieces))
        if len(pieces) > self._room:
            raise self._error
        return self._real(pieces, *rest)


def refused(code: int) -> CudaAPIError:
    error = CudaAPIError(code, "refused")
    error.code = code  # which the simulator does not free
    return error


def test_rows_that_no_longer_fit_are_split_until_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    full = DeviceWithRoomFor(1, refused(cuda_solver.OUT_OF_MEMORY))
    monkeypatch.setattr(cuda_solver, "send_rows", full)
    p = problem("csr", "hinge", n=190)
    solver, v = on_cuda(p, threads=1), np.zeros(p.X.shape[1])
    update = p.run(solver, v, 0)
    assert update.visited == 190
    np.testing.assert_allclose(update.dv, p.image(), rtol=0, atol=1e-13)
    assert full.sent[:2] == [4, 2]
    assert sorted(full.sent) == [1, 1, 1, 1, 2, 2, 4]
    p.run(solver, v + update.dv, 1)
    assert full.sent[7:] == [1, 1, 1, 1]


def test_a_chunk_that_does_not_fit_alone_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = problem("csr", "hinge", n=70)
    monkeypatch.setattr(
        cuda_solver, "send_rows", DeviceWithRoomFor(0, refused(cuda_solver.OUT_OF_MEMORY))
    )
    with pytest.raises(DataError, match=r"1 MiB of GPU memory, .* device: cpu") as caught:
        p.run(on_cuda(p), np.zeros(p.X.shape[1]), 0)
    assert "\n" not in str(caught.value)
    # Other errors of the CUDA driver are not about memory.
    other = refused(700)
    monkeypatch.setattr(cuda_solver, "send_rows", DeviceWithRoomFor(0, other))
    with pytest.raises(CudaAPIError) as raised:
        p.run(on_cuda(p), np.zeros(p.X.shape[1]), 0)
    assert raised.value is other


# --- damping ----------------------------------------------------------------------------------


class HostKernel:
    """Replace a kernel: ``kernel[grid](...)`` calls a function with host arrays."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._call

    def _call(self, *given: Any) -> None:
        arrays = [x.copy_to_host() if hasattr(x, "copy_to_host") else x for x in given]
        self._function(*arrays)
        for x, array in zip(given, arrays, strict=True):
            if hasattr(x, "copy_to_device") and array.size:
                x.copy_to_device(array)


def worse(r: np.ndarray, before: np.ndarray, sums: np.ndarray) -> None:
    """Report that the model's square grew by more than the dual variables gained."""
    sums[4:] = 1e9


def test_a_sub_epoch_that_lowers_the_dual_is_undone_and_steps_are_halved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = problem("dense", "squared", n=70)
    solver, v = on_cuda(p, blocks=2), np.zeros(p.X.shape[1])
    v = v + p.run(solver, v, 0).dv
    known = p.alpha
    with monkeypatch.context() as patch:
        patch.setattr(cuda_kernels, "compare", HostKernel(worse))
        update = p.run(solver, v, 1)
    np.testing.assert_array_equal(p.alpha, known)
    np.testing.assert_array_equal(update.dv, np.zeros(v.size))
    assert (update.dual, update.curvature, update.visited) == (0.0, 0.0, 70)
    assert solver.damping == 0.5
    # The first row of the next pass takes half a step.
    first = int(cuda_solver._order(70, 1.0, (3, 2, 0))[0])
    p.run(solver, v, 2, epochs=1 / 70)
    unit = p.s[first] / (p.l2 * p.s.sum())
    x = p.X[first]
    q, box = unit * float(x @ x), DUAL_LOSSES["squared"].box
    whole = stepped(1, known[first], float(x @ v), p.y[first], q, box) - known[first]
    step = p.alpha - known
    np.testing.assert_allclose(step[first], 0.5 * whole, rtol=1e-10)
    assert np.count_nonzero(step) == 1


def test_other_rows_start_with_whole_steps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("csr", "hinge", n=130)
    solver, v = on_cuda(p, blocks=2), np.zeros(p.X.shape[1])
    with monkeypatch.context() as patch:
        patch.setattr(cuda_kernels, "compare", HostKernel(worse))
        for serial in range(3):
            p.run(solver, v, serial)
    assert solver.damping == 0.5  # one in two: the rows of both blocks gain together in any case
    solver.bind(p.pieces[:1])
    assert solver.damping == 1.0


def blind(*given: Any) -> None:
    """Ascend like this many concurrent blocks of which none sees another's steps."""
    order, indptr, _, values, targets, weights, norms, alpha, code, box, unit, *rest = given
    intercept, share, r, sums = rest
    stale = r.copy()
    for i in order:
        x = values[indptr[i] : indptr[i + 1]]
        s = weights[i] if weights.size else 1.0
        fold = targets[i] if code != 1 else 1.0
        z = fold * (float(x @ stale[: x.size]) + intercept * stale[-1])
        q = unit * s * (norms[i] + intercept * intercept)
        step = share * (stepped(code, alpha[i], z, targets[i], q, box) - alpha[i])
        loss = DUAL_LOSSES["squared"]
        sums[0] -= loss.minus_conjugate(alpha[[i]], targets[[i]], np.array([s]))
        alpha[i] += step
        sums[0] += loss.minus_conjugate(alpha[[i]], targets[[i]], np.array([s]))
        r[: x.size] += unit * s * fold * step * x
        r[-1] += unit * s * fold * step * intercept
        sums[2] += 1


def test_concurrent_steps_are_damped_until_they_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = problem("dense", "squared", n=24)
    p.l2 = 0.5
    p.X[:] = p.X[0]
    for piece in p.pieces:
        values = np.array(piece.chunk.values)
        values[:] = p.X[0, :-1]
        piece.chunk.values = values
    monkeypatch.setattr(cuda_kernels, "ascend", HostKernel(blind))
    solver = on_cuda(p, blocks=24, threads=1)
    gap = gap_after(p, solver, 150)
    assert 1 / 24 <= solver.damping <= 1 / 2
    assert gap <= GAP


# --- edge cases -------------------------------------------------------------------------------


def test_no_rows_are_no_work() -> None:
    p = problem("csr", "hinge", n=70)
    solver, v = on_cuda(p), np.arange(13.0)
    solver.bind([])
    update = solver.run(v, p.request(0), Serial())
    np.testing.assert_array_equal(update.dv, np.zeros(13))
    assert update.visited == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_empty_rows_rows_without_weight_and_a_single_column_work(loss: str) -> None:
    chunk = csr_chunk(
        ChunkId("edge", 0, 0),
        np.array([1.0, -1.0, 1.0]),
        np.array([0, 0, 1, 2]),
        np.array([0, 0]),
        np.array([2.0, 3.0]),
        1,
    )
    weights = np.array([1.0, 0.0, 2.0])
    piece = Piece(chunk, np.array(chunk.labels), weights, np.zeros(3))
    X = np.array([[0.0], [2.0], [3.0]])
    p = Problem([piece], X, np.array(chunk.labels), weights, loss, "float64", l2=0.3)
    solver = on_cuda(p, intercept_scaling=None)
    assert gap_after(p, solver, 30) <= GAP
    assert piece.alpha[1] == 0.0


def test_the_columns_of_sequences_are_those_of_their_products() -> None:
    p = problem("sequence", "hinge", n=70)
    chunk = p.pieces[0].chunk
    X = np.zeros((chunk.n_rows, chunk.layout.n_columns))
    X[np.arange(chunk.n_rows)[:, None], cuda_solver.columns_of(chunk)] = 1.0
    np.testing.assert_array_equal(X, p.X[:60, :-1])


def test_blocks_have_at_least_a_warp_and_fit_the_device() -> None:
    assert [threads_for(n) for n in (0, 10, 255, 256, 1023, 10**6)] == [32, 32, 32, 64, 128, 256]
    assert [blocks_for(132, n) for n in (32, 64, 256)] == [2112, 1056, 264]
    assert blocks_for(1, 256) >= 1


def test_groups_on_one_device_take_the_steps_of_groups_on_the_cpu_and_rows_stay_there() -> None:
    p, q = problem("csr", "hinge", n=66), problem("csr", "hinge", n=66)
    chosen = cuda_solver.cuda_solvers(
        2, loss=p.loss, dtype=p.dtype, intercept_scaling=0.5, blocks=1, threads=4
    )
    here = [p.solver(bucket=1, shrink=False, grow=False) for _ in range(2)]
    cpu, gpu = (GroupedSolver(some, loss="hinge", searches=True) for some in (here, chosen))
    v = w = np.zeros(p.X.shape[1])
    for serial in range(2):
        a, b = p.run(cpu, v, serial, epochs=2), q.run(gpu, w, serial, epochs=2)
        v, w = v + a.dv, w + b.dv
        assert (b.visited, b.groups, b.dampings) == (a.visited, 2, 2.0)
    np.testing.assert_allclose(q.alpha, p.alpha, rtol=0, atol=1e-12)
    np.testing.assert_allclose(w, v, rtol=0, atol=1e-12)
    assert all(one._solver._resident is not None for one in chosen)


def test_there_are_as_many_groups_as_devices_unless_the_job_says_otherwise() -> None:
    settings = {"loss": "hinge", "dtype": "float64", "intercept_scaling": None}
    counts = [len(cuda_solver.cuda_solvers(n, **settings)) for n in (None, 1, 3)]
    assert counts == [len(cuda.gpus), 1, 3]


def test_a_device_that_fails_to_compute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_cuda() is None
    monkeypatch.setattr(cuda_kernels, "_touch", HostKernel(lambda out: None))
    assert why_not_cuda() == "numba cannot compute on it: a kernel ran without effect"
    assert device_of("auto", AUTO_VALUES_MIN) == "cpu"
    with pytest.raises(ConfigError, match=r"cannot use .numba cannot compute on it: a kernel"):
        device_of("cuda", 1)


def test_the_simulator_counts_as_a_device() -> None:
    assert cuda.is_available()
    for n, auto in ((AUTO_VALUES_MIN - 1, "cpu"), (AUTO_VALUES_MIN, "cuda")):
        devices = [device_of(expected, n) for expected in ("auto", "cpu", "cuda")]
        assert devices == [auto, "cpu", "cuda"]
