"""Cases that ``test_cuda.py`` runs in a separate process, on numba's GPU simulator.

The simulator's threads are Python threads, and each barrier costs a thread switch per thread.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.core import config
from numba.np import numpy_support

import elasticml as em
from elasticml.algorithms.cocoa import cuda_kernels, cuda_solver, device_selection
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.cuda_solver import CudaSolver
from elasticml.algorithms.cocoa.device_selection import AUTO_VALUES_MIN, device_of, why_not_cuda
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver
from elasticml.data.chunks.chunk import csr_chunk
from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named
from elasticml.specification.algorithms import DUAL_LOSSES
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.unit.algorithms.cocoa.local_problem import KINDS, Problem, problem

LOSSES = list(DUAL_LOSSES)
GAP = 1e-6
EXACT = [loss for loss in LOSSES if loss != "logistic"]


@pytest.fixture(autouse=True)
def _alternating_threads(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Switch between the simulator's threads, which are Python threads, often.

    On a real GPU there is nothing to patch.
    """
    if not config.ENABLE_CUDASIM:
        yield
        return
    from numba.cuda.simulator import kernel, kernelapi

    monkeypatch.setattr(kernelapi.FakeCUDAShared, "array", _shared_array)
    monkeypatch.setattr(kernel.BlockManager, "run", _run_block)
    monkeypatch.setattr(kernel.BlockThread, "syncthreads", lambda thread: thread.barrier.wait())
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _shared_array(memory: Any, shape: int, dtype: Any) -> np.ndarray:
    """Return the shared array of the caller's line, the same for all threads of a block.

    The simulator looks the array up and creates it in two steps: two threads that call at once get
    an array each, and the block's sums miss one of them.
    """
    frame = sys._getframe(1)
    place = (frame.f_code.co_filename, frame.f_lineno)
    new = np.empty(shape, numpy_support.as_dtype(dtype))
    return memory._allocations.setdefault(place, new)


def _run_block(manager: Any, grid_point: Any, *arguments: Any) -> None:
    """Run the threads of a block to their ends, and raise what one of them raised.

    The simulator's own loop asks all threads again and again whether they wait, and so keeps the
    interpreter from them for most of the time.
    """
    from numba.cuda.simulator.kernel import BlockThread

    places = list(np.ndindex(*manager._block_dim))
    barrier = threading.Barrier(len(places))

    def compute() -> None:
        try:
            manager._f(*arguments)
        except BaseException:
            barrier.abort()
            raise

    threads = [BlockThread(compute, manager, grid_point, at, manager._debug) for at in places]
    for thread in threads:
        thread.barrier = barrier
        thread.start()
    for thread in threads:
        thread.join()
    raised = [thread.exception for thread in threads if thread.exception]
    # Threads that wait for one that has raised an error end with an error of the barrier.
    if raised:
        error, traceback = min(raised, key=lambda e: isinstance(e[0], threading.BrokenBarrierError))
        raise error.with_traceback(traceback)


def on_cuda(p: Problem, *, blocks: int = 1, threads: int = 4, **more: Any) -> CudaSolver:
    settings = {"intercept_scaling": 0.5, "blocks": blocks, "threads": threads, **more}
    return CudaSolver(loss=loss_named(p.loss), dtype=p.dtype, **settings)


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
    assert b.discarded == 0


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


def test_rows_that_do_not_fit_come_in_batches_and_reach_the_same_optimum() -> None:
    p = problem("csr", "squared_hinge", n=130)
    p.l2 = 0.4
    room = 1.05 * max(cuda_solver.device_bytes(piece.chunk) for piece in p.pieces)
    solver = on_cuda(p, blocks=2, threads=2, room_bytes=room)
    solver.bind(p.pieces)
    assert p.run(solver, np.zeros(p.X.shape[1]), 0).visited == 130
    for piece in p.pieces:
        piece.alpha[:] = 0.0
    assert gap_after(p, solver, 14) <= GAP


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


def test_groups_on_one_device_take_the_steps_of_groups_on_the_cpu() -> None:
    p, q = problem("csr", "hinge", n=66), problem("csr", "hinge", n=66)
    chosen = [on_cuda(p) for _ in range(2)]
    here = [p.solver(bucket=1, shrink=False, grow=False) for _ in range(2)]
    cpu, gpu = (
        GroupedSolver(some, loss=loss_named("hinge"), searches=True) for some in (here, chosen)
    )
    v = w = np.zeros(p.X.shape[1])
    for serial in range(2):
        a, b = p.run(cpu, v, serial, epochs=2), q.run(gpu, w, serial, epochs=2)
        v, w = v + a.dv, w + b.dv
        assert b.visited == a.visited
    np.testing.assert_allclose(q.alpha, p.alpha, rtol=0, atol=1e-12)
    np.testing.assert_allclose(w, v, rtol=0, atol=1e-12)


def test_there_are_as_many_groups_as_devices_unless_the_job_says_otherwise() -> None:
    settings = {"loss": loss_named("hinge"), "dtype": "float64", "intercept_scaling": None}
    counts = [len(cuda_solver.cuda_solvers(n, **settings)) for n in (None, 1, 3)]
    assert counts == [len(cuda.gpus), 1, 3]


def test_a_device_that_fails_to_compute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_cuda() is None
    monkeypatch.setattr(cuda_kernels, "touch", defaultdict(lambda: lambda out: None))
    assert why_not_cuda() == "numba cannot compute on it: a kernel ran without effect"
    assert device_of("auto", AUTO_VALUES_MIN) == "cpu"
    with pytest.raises(ConfigError, match=r"cannot use .numba cannot compute on it: a kernel"):
        device_of("cuda", 1)


# --- whole jobs --------------------------------------------------------------------------------

JOB_GAP = 1e-5
RNG = np.random.default_rng(3)
X = RNG.normal(size=(48, 4)) / 2.0
Y = np.sign(X @ RNG.normal(size=4) + 0.1 * RNG.normal(size=48))


@pytest.fixture
def _small_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python threads are slow: four per block show the same as a warp.
    monkeypatch.setattr(cuda_solver, "WARP", 4)


def record(device: str, loss: str = "hinge", **more: Any) -> dict[str, Any]:
    algorithm = {"name": "cocoa", "loss": loss, "l2": 0.5, "device": device, **more}
    return toy_job(
        algorithm=algorithm,
        absent="reload",
        chunk_bytes=512,
        members={"start": 3, "min": 1},
        stop={"rounds": 80, "gap": JOB_GAP},
    )


def ended(world: VirtualJob, kills: int = 0) -> list[dict[str, Any]]:
    """Run the world's job to its end; optionally kill a member after this many rounds.

    Returns
    -------
    list of dict
        The rounds of the story.
    """
    if kills:
        world.until(lambda: len(world.events("RoundEnded")) >= kills)
        world.world.workers.serving()[1].kill()
    world.end()
    rows, summary = world.events("RoundEnded"), world.result().summary
    assert summary["gap"] <= JOB_GAP
    assert summary["cuda_rounds"] == sum("on_cuda" in row for row in rows)
    return rows


@pytest.mark.usefixtures("_small_warps")
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic", "squared"])
def test_a_job_on_cuda_is_certified_and_says_where_it_was_solved(loss: str) -> None:
    rows = ended(VirtualJob(record("cuda", loss, intercept=True), from_arrays(X, Y)))
    passes = em.CoCoA(loss=loss).epochs
    assert [row["on_cuda"] for row in rows] == [48.0 * passes] * len(rows)
    assert [row["visited"] for row in rows] == [48.0 * passes] * len(rows)


@pytest.mark.usefixtures("_small_warps")
def test_certificates_stay_exact_when_a_member_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_selection, "AUTO_VALUES_MIN", 1)
    world = VirtualJob(record("auto"), from_arrays(X, Y))
    rows = ended(world, kills=2)
    assert len(world.events("MemberLost")) == 1
    assert rows[-1]["on_cuda"] == 48.0
