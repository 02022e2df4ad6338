"""CoCoA's local solver on a GPU and on CPUs, and Snap ML's on a GPU.

    python -m tests.bench gpu_solver [--rows 2050000] [--losses hinge logistic] [--l2 1e-4]
        [--threads 2] [--repeats 3]

Rows with the shape of RCV1, float32, from nothing to a certified gap of 1e-3 and 1e-5 of the
objective. The clock covers the passes, and for the GPU the copy of the rows to it; certificates and
compilation are outside. Solvers take turns; medians. Snap ML, if installed in the same environment,
is refitted with increasing epochs until its objective reaches the target. Without a GPU one line
says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from elasticml.algorithms.cocoa.device_selection import cuda_module, why_not_cuda
from tests.bench import harness
from tests.bench.peers.big_sets import write_big
from tests.bench.peers.cocoa_passes import CocoaPasses
from tests.bench.peers.fits import EFFORTS
from tests.bench.peers.problems import Data, Problem

TARGETS = (1e-3, 1e-5)
#: Seconds after which a solver is stopped.
LIMIT_S = 120.0

#: Seconds so far, passes or epochs so far, and how far the objective is from its minimum.
Point = tuple[float, int, float]


def ours(device: str, data: Data, loss: str, l2: float, threads: int) -> Iterator[Point]:
    """Make passes from zero; the distance is the certified gap, relative to the objective."""
    passes, spent = CocoaPasses(data, loss, l2, threads, device), 0.0
    while True:
        began = time.perf_counter()
        passes.step()
        spent += time.perf_counter() - began
        primal, dual = passes.objectives()
        yield spent, passes.passes, (primal - dual) / primal


def snap(data: Data, loss: str, l2: float, best: float) -> Iterator[Point]:
    """Fit Snap ML on the GPU from scratch with increasing epochs."""
    # Not from the package itself: without it, a study in examples/papers has its name.
    from snapml import LogisticRegression, SupportVectorMachine

    make = SupportVectorMachine if loss == "hinge" else LogisticRegression
    extra: dict[str, Any] = {"loss": "hinge"} if loss == "hinge" else {}
    extra |= {"regularizer": l2 * data.n, "tol": 1e-30, "use_gpu": True, "fit_intercept": False}
    for epochs in EFFORTS:
        model = make(max_iter=epochs, **extra)
        began = time.perf_counter()
        model.fit(data.X, data.labels.astype(np.float32))
        seconds = time.perf_counter() - began
        w = np.ravel(model.coef_).astype(np.float64)
        value = data.objective(Problem(model=loss, l2=l2), w)
        yield seconds, epochs, value / best - 1.0


def followed(points: Iterator[Point]) -> list[Point]:
    """Return the points up to the last target, or the limit."""
    seen = []
    for point in points:
        seen.append(point)
        if point[2] <= TARGETS[-1] or point[0] > LIMIT_S:
            break
    return seen


def shown(tries: Sequence[list[Point]]) -> list[str]:
    """Return medians of seconds, and passes, to each target."""
    cells = []
    for target in TARGETS:
        some = [next((p for p in points if p[2] <= target), None) for points in tries]
        there = [p for p in some if p is not None]
        whole = len(there) == len(some)
        cells.append(f"{median(p[0] for p in there):.3f} ({there[0][1]})" if whole else "-")
    return cells


def main(
    *,
    rows: int = 2_050_000,
    losses: Sequence[str] = ("hinge", "logistic"),
    l2: float = 1e-4,
    threads: int = 2,
    repeats: int = 3,
) -> None:
    """Print the table, or why there is none."""
    why = why_not_cuda()
    if why is not None:
        print(f"no GPU here ({why}): nothing was measured")
        return
    print("device:", getattr(cuda_module().current_context().device, "name", b"simulator"))
    columns = ("first pass s", "later passes s", "to 1e-3 s (passes)", "to 1e-5")
    harness.head("loss", "solver", *columns, keys=2)
    with TemporaryDirectory() as folder:
        write_big(Path(folder), "rcv1_shaped", rows)
        data = Data(Path(folder), "rcv1_shaped")
        for loss in losses:
            ways: dict[str, Callable[[], list[Point]]] = {
                device: partial(lambda d, o: followed(ours(d, data, o, l2, threads)), device, loss)
                for device in ("cpu", "cuda")
            }
            # The first turn compiles.
            tries = harness.interleaved(ways, repeats, warm_up=1)
            for device, each in tries.items():
                first = median(points[0][0] for points in each)
                later = [(p[-1][0] - p[0][0]) / (len(p) - 1) for p in each if len(p) > 1]
                rest = median(later) if later else math.nan
                harness.row(loss, device, f"{first:.4f}", f"{rest:.4f}", *shown(each))
            primal = CocoaPasses(data, loss, l2, 1)
            for _ in range(60):
                primal.step()
            try:
                cells = shown([followed(snap(data, loss, l2, primal.objectives()[0]))])
            except ImportError:
                cells = ["not installed", ""]
            harness.row(loss, "Snap ML, GPU", "", "", *cells)
