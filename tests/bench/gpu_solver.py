"""CoCoA's local solver on a GPU and on CPUs, and Snap ML's on a GPU.

    python tests/bench/gpu_solver.py [--rows 2050000] [--losses hinge logistic] [--l2 1e-4]
        [--threads 2] [--repeats 3]

Rows with the shape of RCV1, float32, from nothing to a certified gap of 1e-3 and 1e-5 of the
objective. The clock covers the passes, and for the GPU the copy of the rows to it; certificates and
compilation are outside. Solvers take turns; medians. Snap ML, if installed in the same environment,
is refitted with increasing epochs until its objective reaches the target. Without a GPU one line
says so.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from cocoa_speed import EPOCHS, Data, chunks_of, one_pass, prepare

from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.device_selection import cuda_module, why_not_cuda
from elasticml.algorithms.cocoa.line_search import Aggregation
from elasticml.algorithms.cocoa.local_pass import LocalSolver
from elasticml.objectives.conjugates import dual_loss_named
from elasticml.runtime.executors import parallel as parallel_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

TARGETS = (1e-3, 1e-5)
#: Seconds after which a solver is stopped.
LIMIT_S = 120.0


def solver_of(device, loss):
    """Make a solver of a device; everything else as in a job."""
    settings = {"loss": loss, "dtype": "float32", "intercept_scaling": None}
    if device == "cpu":
        return LocalSolver(**settings)
    from elasticml.algorithms.cocoa.cuda_solver import CudaSolver

    return CudaSolver(**settings)


def objectives(data, pieces, v, loss, l2):
    """Return primal and dual objective, the dual at the model of the dual variables themselves."""
    alpha = np.concatenate([piece.alpha for piece in pieces])
    dual = dual_loss_named(loss).minus_conjugate(alpha, data.labels, None)
    image = data.matrix().T @ (alpha * data.labels) / (l2 * data.n)
    penalty = 0.5 * l2 * float(image @ image)
    return data.objective(v, l2, loss), dual / data.n - penalty


def ours(device, data, loss, l2, threads):
    """Run passes until the gap is small enough: seconds to each target, first pass, passes."""
    pieces = [Piece(c, np.array(c.labels), None, np.zeros(c.n_rows)) for c in chunks_of(data)]
    solver, parallel = solver_of(device, loss), parallel_of(threads)
    v, aggregation, weight = np.zeros(data.d), Aggregation(gamma=None), float(data.n)
    spent, passes, first, reached = 0.0, 0, None, []
    while len(reached) < len(TARGETS) and spent < LIMIT_S:
        started = time.perf_counter()
        solver.bind(pieces)
        v, aggregation = one_pass(solver, pieces, v, aggregation, l2, weight, passes, parallel)
        spent, passes = spent + time.perf_counter() - started, passes + 1
        first = spent if first is None else first
        primal, dual = objectives(data, pieces, v, loss, l2)
        while len(reached) < len(TARGETS) and primal - dual <= TARGETS[len(reached)] * primal:
            reached.append((spent, passes))
    share = "" if device == "cpu" else f"{solver.damping:g}"
    return {"reached": reached, "first": first, "later": (spent - first), "passes": passes}, share


def snap(data, loss, l2, best):
    """Fit Snap ML on the GPU with increasing epochs: seconds to each target; None without it."""
    try:
        # Not from the package itself: without it, a study in examples/papers has its name.
        from snapml import LogisticRegression, SupportVectorMachine
    except ImportError:
        return None
    X, y, reached = data.matrix(), data.labels.astype(np.float32), []
    made = SupportVectorMachine if loss == "hinge" else LogisticRegression
    extra = {"loss": "hinge"} if loss == "hinge" else {}
    for epochs in EPOCHS:
        model = made(
            max_iter=epochs,
            regularizer=l2 * data.n,
            tol=1e-30,
            use_gpu=True,
            fit_intercept=False,
            **extra,
        )
        started = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - started
        value = data.objective(np.ravel(model.coef_).astype(np.float64), l2, loss)
        while len(reached) < len(TARGETS) and value <= best * (1 + TARGETS[len(reached)]):
            reached.append((seconds, epochs))
        if len(reached) == len(TARGETS) or seconds > LIMIT_S:
            break
    return {"reached": reached}


def best_of(data, loss, l2):
    """Return the objective of a long run on CPUs."""
    pieces = [Piece(c, np.array(c.labels), None, np.zeros(c.n_rows)) for c in chunks_of(data)]
    solver, v = solver_of("cpu", loss), np.zeros(data.d)
    solver.bind(pieces)
    aggregation, parallel = Aggregation(gamma=None), parallel_of(1)
    for serial in range(60):
        v, aggregation = one_pass(
            solver, pieces, v, aggregation, l2, float(data.n), serial, parallel
        )
    return objectives(data, pieces, v, loss, l2)[0]


def shown(tries):
    """Format medians of seconds, and passes, to each target."""
    cells = []
    for k in range(len(TARGETS)):
        some = [t["reached"][k] for t in tries if len(t["reached"]) > k]
        whole = len(some) == len(tries)
        cells.append(f"{median(s for s, _ in some):.3f} ({some[0][1]})" if whole else "–")
    return " | ".join(cells)


def main():
    """Print the table, or why there is none."""
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", type=int, default=2_050_000)
    parser.add_argument("--losses", nargs="+", default=["hinge", "logistic"])
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    why = why_not_cuda()
    if why is not None:
        print(f"no GPU here ({why}): nothing was measured")
        return
    print("device:", getattr(cuda_module().current_context().device, "name", b"simulator"))
    print("loss | solver | damping | first pass s | later passes s | to 1e-3 s (passes) | to 1e-5")
    print("---|---|---|---|---|---|---")
    with TemporaryDirectory() as folder:
        prepare("rcv1", Path(folder), options.rows)
        data = Data("rcv1", Path(folder))
        for loss in options.losses:
            for device in ("cpu", "cuda"):
                ours(device, data, loss, options.l2, options.threads)  # compiles
            tries = {"cpu": [], "cuda": []}
            for _ in range(options.repeats):
                for device, some in tries.items():
                    done, share = ours(device, data, loss, options.l2, options.threads)
                    some.append((done, share))
            for device, some in tries.items():
                first = median(t["first"] for t, _ in some)
                later = median(t["later"] / max(1, t["passes"] - 1) for t, _ in some)
                times = shown([t for t, _ in some])
                print(f"{loss} | {device} | {some[-1][1]} | {first:.4f} | {later:.4f} | {times}")
            best = best_of(data, loss, options.l2)
            peer = snap(data, loss, options.l2, best)
            text = "not installed | –" if peer is None else shown([peer])
            print(f"{loss} | Snap ML, GPU | – | – | – | {text}", flush=True)


if __name__ == "__main__":
    main()
