"""Every linear model under real SIGKILLs: the gap at the end, against an undisturbed optimum.

    PYTHONPATH=. python tests/bench/model_kills.py [--members 4] [--gap 1e-7] [model ...]

Worker processes are killed, one in each of the rounds 1, 2 and 3 as far as a model takes so many,
in another phase each time, and as many are started a round later. Data are a9a, by columns for
models with an L1 penalty. "above": the final objective less that of an undisturbed run to a
hundredth of the gap, which is at most the certified gap and no less than minus its own. Gaps are of
the mean over examples; batch gradient certifies none, its model's gap is computed here from all
rows. Ends with status 1 where a run does not end at its gap, nobody was killed, or what was
certified is not so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em
from elasticml.algorithms.linear_function import LinearFunction
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.row_blocks import RowBlocks
from tests.bench.sparse_logistic import labelled

PHASES = ("compute", "reduce", "broadcast")
L1, L2 = 2e-3, 1e-3


@dataclass(frozen=True, kw_only=True)
class Model:
    """An algorithm for a tolerance, and whether its data are by columns."""

    make: Callable[[float], Any]
    by_columns: bool


def cocoa(loss: Any) -> Model:
    """Dual coordinate ascent."""
    return Model(
        make=lambda gap: em.CoCoA(loss=loss, l2=L2, tolerance=gap, gap_every=1), by_columns=False
    )


def newton(loss: Any) -> Model:
    """Newton steps, by the gradient's norm: the objective is ``L2``-strongly convex."""
    return Model(
        make=lambda gap: em.BatchGradient(
            loss=loss, l2=L2, optimizer="tron", tolerance=min(1.0, np.sqrt(2.0 * L2 * gap))
        ),
        by_columns=False,
    )


def primal(loss: Any, l1: float, l2: float, gather: bool = True) -> Model:
    """Coordinate descent on columns."""
    return Model(
        make=lambda gap: em.PrimalCoCoA(loss=loss, l1=l1, l2=l2, tolerance=gap, gather=gather),
        by_columns=True,
    )


MODELS = {
    "svm, hinge": cocoa("hinge"),
    "svm, squared hinge": cocoa("squared_hinge"),
    "logistic": cocoa("logistic"),
    "logistic, Newton": newton("logistic"),
    "ridge": cocoa("squared"),
    "ridge, Newton": newton("squared"),
    "lasso": primal("squared", L1, 0.0),
    "lasso, not gathered": primal("squared", L1, 0.0, gather=False),
    "elastic net": primal("squared", L1, L2),
    "elastic net, not gathered": primal("squared", L1, L2, gather=False),
    "L1-logistic": primal("logistic", L1, 0.0),
    "L1-logistic, not gathered": primal("logistic", L1, 0.0, gather=False),
    "elastic-net logistic": primal("logistic", L1, L2),
    "L1 svm, squared hinge": primal("squared_hinge", L1, 0.0),
}


def run(client: Any, model: Model, rows: Any, gap: float, members: int, kills: bool) -> Any:
    """Run a job to its end."""
    X, y = rows
    faults: list[dict[str, Any]] = []
    for round, phase in enumerate(PHASES, start=1):
        faults.append({"round": round, "lose": 1, "how": "kill", "phase": phase})
        faults.append({"round": round + 1, "return": 1})
    job = em.Job(
        model.make(gap),
        em.from_arrays(X, y, by="columns" if model.by_columns else "rows"),
        absent="reload",
        faults=faults if kills else [],
        stop=em.Stop(rounds=20_000, seconds=100),
        members=em.Members(start=members),
        chunk_size="256 KiB",
    )
    return job.run(client)


def gap_of(model: Model, result: Any, rows: Any, gap: float) -> float:
    """The certified gap; of batch gradient one that is computed here."""
    if result.summary.get("gap") is not None:
        return float(result.summary["gap"])
    X, y = rows
    loss = model.make(gap).loss
    function = LinearFunction(
        RowBlocks(X, Serial()), y, None, loss=loss, l2=L2, intercept_scaling=None, is_free=False
    )
    return float(function.at(np.ravel(result.arrays["coef"])).gap)


def main() -> int:
    """Print a line for each model; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--gap", type=float, default=1e-7)
    options = parser.parse_args()
    X, y = labelled("a9a/a9a.svm.gz")
    rows = X, np.where(y == 1, 1.0, -1.0)
    wrong = 0
    print("| model | rounds | killed | gap at the end | above the optimum | |")
    with em.LocalCluster(options.members) as cluster, Client(cluster) as client:
        for name in options.models:
            model = MODELS[name]
            calm = run(client, model, rows, options.gap / 100, options.members, False)
            result = run(client, model, rows, options.gap, options.members, True)
            cluster.scale(options.members)  # a run may end before its return
            client.wait_for_workers(options.members)
            gap, known = (gap_of(model, one, rows, options.gap) for one in (result, calm))
            above = result.history[-1]["objective_full"] - calm.history[-1]["objective_full"]
            lost = result.summary["lost"]
            # Rounding of two ways to add up the same losses.
            fine = lost > 0 and gap <= options.gap and -known - 1e-12 <= above <= gap + 1e-12
            wrong += not fine
            print(
                f"| {name} | {result.summary['rounds']} | {lost} | {gap:.1e} | {above:.1e} | "
                f"{'ok' if fine else 'WRONG'} |",
                flush=True,
            )
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
