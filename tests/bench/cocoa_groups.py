"""Passes and seconds to a suboptimality, for groups and threads of one member.

    python tests/bench/cocoa_groups.py [--sets reuters ijcnn1 kdd] [--l2 0.01 1/n]
        [--groups 1 2 4] [--threads 1 2 4] [--inner 1 4] [--dealt anew once] [--seconds]

One member has all rows in at least 16 chunks of 1 MiB; hinge loss, the exact line search between
rounds, and in each round ``--inner`` passes (t2) of all groups. Suboptimality is relative to the
certified optimum of a long run of one thread. Passes do not depend on the number of CPUs: surplus
threads do their parts in turn, which changes no bit. ``--seconds`` measures time, for at most one
thread per CPU: runs take turns, medians of five, and the clock covers passes and line searches
alone.
"""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "papers")]

from support import cocoa_data  # noqa: E402

from elasticml.algorithms.cocoa.chunk_pointers import Piece  # noqa: E402
from elasticml.algorithms.cocoa.line_search import Aggregation, LineModel  # noqa: E402
from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassRequest  # noqa: E402
from elasticml.algorithms.cocoa.solver_groups import GroupedSolver  # noqa: E402
from elasticml.data.chunks.chunk import csr_chunk  # noqa: E402
from elasticml.ids import ChunkId  # noqa: E402
from elasticml.objectives.conjugates import dual_loss_named  # noqa: E402
from elasticml.runtime.executors import parallel as parallel_of  # noqa: E402
from tests.bench import harness  # noqa: E402

TARGETS = (1e-3, 1e-5)
PASSES_MAX, REPEATS = 400, 5
#: As in jobs; small sets are cut finer.
CHUNK_BYTES, CHUNKS_MIN = 2**20, 16
HINGE = dual_loss_named("hinge")


@dataclass
class Data:
    """Rows, their chunks, and the optimum."""

    X: Any
    y: np.ndarray
    l2: float
    dtype: str
    chunks: int | None = None

    def pieces(self) -> list[Piece]:
        """Split the rows again, with dual variables of zero."""
        made = []
        count = self.chunks or max(CHUNKS_MIN, 8 * self.X.nnz // CHUNK_BYTES)
        ends = np.linspace(0, self.y.size, count + 1).astype(int)
        for k, (a, b) in enumerate(itertools.pairwise(ends)):
            S, y = self.X[a:b], self.y[a:b].copy()
            id = ChunkId("bench", 0, k)
            chunk = csr_chunk(id, y, S.indptr, S.indices, S.data, S.shape[1], dtype=self.dtype)
            made.append(Piece(chunk, y, None, np.zeros(y.size)))
        return made

    def primal(self, v: np.ndarray) -> float:
        losses = np.maximum(0.0, 1.0 - self.y * (self.X @ v))
        return float(losses.mean()) + 0.5 * self.l2 * float(v @ v)

    def dual(self, pieces: list[Piece]) -> float:
        alpha = np.concatenate([piece.alpha for piece in pieces])
        image = self.X.T @ (self.y * alpha) / (self.l2 * self.y.size)
        return float(alpha.mean()) - 0.5 * self.l2 * float(image @ image)


class Member:
    """One member's passes, and the driver's line search after each round."""

    def __init__(self, data: Data, groups: int, threads: int, inner: int, redeals: bool) -> None:
        self.data, self.inner, self.parallel = data, inner, parallel_of(threads)
        self.pieces = data.pieces()
        caches = {} if redeals else None
        settings = {"loss": "hinge", "dtype": data.dtype, "intercept_scaling": None}
        solvers = [LocalSolver(**settings, caches=caches) for _ in range(groups)]
        self.solver = GroupedSolver(solvers, loss="hinge", searches=True, caches=caches)
        self.v = np.zeros(data.X.shape[1])
        self.aggregation = Aggregation(gamma=None)
        self.rounds = self.visited = self.discarded = 0
        self.parallel.in_teams(lambda k, team: None, groups)  # starts their threads

    def round(self) -> None:
        weight = float(self.data.y.size)
        before = [piece.alpha.copy() for piece in self.pieces]
        self.solver.bind(self.pieces)
        request = PassRequest(
            l2_total=self.data.l2 * weight,
            total_weight=weight,
            damping=self.aggregation.damping,
            epochs=self.inner,
            seed=0,
            serial=self.rounds,
        )
        update = self.solver.run(self.v, request, self.parallel)
        q = 0.0  # of the hinge loss
        along = LineModel.of(
            self.v, update.dv, dual=update.dual, curvature=q, weight=weight, l2=self.data.l2
        )
        length = self.aggregation.length(along)
        if length < 1.0:
            for piece, old in zip(self.pieces, before, strict=True):
                piece.alpha[:] = np.clip(old + length * (piece.alpha - old), HINGE.low, HINGE.high)
        self.v = self.v + length * update.dv
        self.aggregation = self.aggregation.adapted(along, update.partitions)
        self.rounds += 1
        self.visited += update.visited
        self.discarded += update.discarded

    def close(self) -> None:
        self.parallel.close()


def optimum(data: Data) -> float:
    """Return the best objective of a long run of one thread, which its gap certifies."""
    member = Member(Data(data.X, data.y, data.l2, "float64"), 1, 1, 1, False)
    best, dual = np.inf, -np.inf
    while member.rounds < 20_000:
        member.round()
        if member.rounds % 20 == 0:
            best = min(best, data.primal(member.v))
            dual = max(dual, data.dual(member.pieces))
            if best - dual <= 2e-7 * best:
                break
    member.close()
    return dual


def passes_to_targets(
    data: Data, goal: float, groups: int, threads: int, inner: int, redeals: bool
) -> list[str]:
    """Return passes to each target, and how many were undone."""
    member, result, passes = Member(data, groups, threads, inner, redeals), [], 0
    for target in TARGETS:
        while (data.primal(member.v) - goal) / goal > target and passes < PASSES_MAX:
            member.round()
            passes = member.rounds * inner
        result.append(str(passes) if passes < PASSES_MAX else "–")
    member.close()
    share = member.visited / data.y.size
    return [*result, f"{share:.1f}", str(member.discarded)]


def timed(data: Data, goal: float, ways: list[tuple[int, int, int, bool]]) -> dict[Any, str]:
    """Return seconds to each target, as medians of runs by turns."""

    def run(way: tuple[int, int, int, bool]) -> list[float]:
        member, spent, seconds = Member(data, *way), 0.0, []
        for target in TARGETS:
            while (data.primal(member.v) - goal) / goal > target:
                spent += harness.timed(member.round)[1]
                if member.rounds * way[2] >= PASSES_MAX:
                    spent = np.inf
                    break
            seconds.append(spent)
        member.close()
        return seconds

    runs = {way: partial(run, way) for way in ways}
    return {
        way: ", ".join(f"{1e3 * median:.1f}" for median in harness.column_medians(times))
        for way, times in harness.interleaved(runs, REPEATS, warm_up=1).items()
    }


def main() -> None:
    """Print a table for each set and penalty."""
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--sets", nargs="+", default=["reuters", "ijcnn1", "kdd"], help="or kdd_all"
    )
    parser.add_argument("--l2", nargs="+", default=["0.01", "1/n"])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--inner", type=int, nargs="+", default=[1])
    parser.add_argument("--dealt", nargs="+", choices=["anew", "once"], default=["anew"])
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--chunks", type=int, help="by default as many as have 1 MiB each")
    parser.add_argument("--float64", action="store_true")
    options = parser.parse_args()
    processors = len(os.sched_getaffinity(0))
    for name in options.sets:
        X, y = cocoa_data.kdd(1) if name == "kdd_all" else getattr(cocoa_data, name)()
        X = sp.csr_matrix(X)
        X.sort_indices()
        for text in options.l2:
            l2 = 1.0 / y.size if text == "1/n" else float(text)
            data = Data(X, y, l2, "float64" if options.float64 else "float32", options.chunks)
            goal = optimum(data)
            print(f"{name}, {y.size} rows, {X.nnz} values, l2 {text}, optimum {goal:.6g}")
            ways = [
                (g, t, i, dealt == "anew")
                for g in options.groups
                for t in options.threads
                for i in options.inner
                for dealt in (options.dealt if g > 1 else ["once"])
            ]
            if options.seconds:
                ways = [way for way in ways if way[1] <= processors]
                result = timed(data, goal, ways)
                print("groups | threads | t2 | dealt anew | ms to 1e-3, 1e-5\n---|---|---|---|---")
                for way in ways:
                    print(" | ".join([*map(str, way), result[way]]))
            else:
                print(
                    "groups | threads | t2 | dealt anew | passes to 1e-3 | 1e-5 | epochs | undone"
                )
                print("---|---|---|---|---|---|---|---")
                for way in ways:
                    print(
                        " | ".join([*map(str, way), *passes_to_targets(data, goal, *way)]),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
