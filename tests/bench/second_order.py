"""L-BFGS and TRON to scikit-learn's optimum, undisturbed and under random pre-emption.

    python tests/bench/second_order.py [--sets a9a w8a ijcnn1 kdd] [--optimizers lbfgs tron]
        [--seeds 3] [--absent auto] [--real]

Jobs run in the simulator, with the real trainer and the real solvers; with ``--real`` on worker
processes that are killed. Until round ``--until`` each of 14 members leaves with probability
``--rate`` a round, for 20 to 60 rounds; then all members return, and the job runs to its end. The
reference is ``LogisticRegression(solver="newton-cg", tol=1e-10)`` on the same arrays, with the
sum-form lambda 1. A line for each run: rounds until the objective over all examples is within 1e-8
of the reference, relatively; of a disturbed run, those after the last return. The last line is
JSON. Exits with status 1 if a run does not come that near.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "papers")]

from support import cocoa_data  # noqa: E402

import elasticml as em  # noqa: E402
from elasticml.data.readers.arrays import from_arrays  # noqa: E402
from elasticml.errors import ElasticmlError  # noqa: E402
from elasticml.sim.preemption_trace import options_from_section  # noqa: E402
from elasticml.sim.simulation import simulate  # noqa: E402
from tests.bench import harness  # noqa: E402

#: Relative distance from the optimum that counts as reached.
NEAR = 1e-8
ABSENCE_ROUNDS = (20, 60)
SETS = {
    "a9a": cocoa_data.a9a,
    "w8a": lambda: cocoa_data._svmlight("w8a/w8a.svm.gz"),
    "ijcnn1": cocoa_data.ijcnn1,
    "kdd": cocoa_data.kdd,
    "tiny": cocoa_data.tiny,
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Rows, labels of -1 and 1, the penalty of the mean form, and the least objective."""

    X: Any
    y: np.ndarray
    l2: float
    optimum: float


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run."""

    #: Rounds until the objective was near, after the last return; None: never.
    rounds: int | None
    #: Relative distance of the final objective from the optimum; below zero: nearer than it.
    distance: float
    #: The last round.
    ended: int
    lost: int
    seconds: float


def problem_of(name: str, every: int) -> Problem:
    """Load a set and find its optimum."""
    X, y = cocoa_data.kdd(every) if name == "kdd" else SETS[name]()
    n = len(y)
    model = LogisticRegression(
        C=1.0, solver="newton-cg", tol=1e-10, fit_intercept=False, max_iter=1000
    )
    w = model.fit(X, y).coef_[0]
    optimum = float(np.logaddexp(0.0, -y * (X @ w)).mean() + 0.5 / n * w @ w)
    return Problem(X=X, y=y, l2=1.0 / n, optimum=optimum)


def absences(seed: int, members: int, rate: float, until: int) -> list[dict[str, Any]]:
    """Draw which members leave, when, and for how long; as a job's planned faults."""
    rng = np.random.default_rng(seed)
    back = np.zeros(members, int)  # round at which each slot returns
    faults: list[dict[str, Any]] = []
    returns: dict[int, int] = {}
    for round in range(2, until):
        here = [slot for slot in range(members) if back[slot] <= round]
        lost = [slot for slot in here if rng.random() < rate][: max(len(here) - 1, 0)]
        if lost:
            faults.append({"round": round, "lose": lost, "how": "kill"})
        for slot in lost:
            back[slot] = min(
                round + int(rng.integers(ABSENCE_ROUNDS[0], ABSENCE_ROUNDS[1] + 1)), until
            )
            returns[int(back[slot])] = returns.get(int(back[slot]), 0) + 1
    faults += [{"round": round, "return": count} for round, count in sorted(returns.items())]
    return sorted(faults, key=lambda fault: (fault["round"], "lose" in fault))


def result_from(
    rows: Sequence[Any], summary: Any, problem: Problem, faults: list[Any], began_s: float
) -> RunResult:
    """Read a history. A job that converges while all members are present ends before planned
    faults.
    """
    last = max(int(row["round"]) for row in rows)
    returns = [fault["round"] for fault in faults if "return" in fault]
    since = max((round for round in returns if round <= last), default=0)
    near = [
        int(row["round"])
        for row in rows
        if int(row["round"]) >= since
        and row["objective_kind"] == "exact"
        and row["objective"] is not None
        and float(row["objective"]) <= problem.optimum * (1.0 + NEAR)
    ]
    final = summary.get("objective")
    return RunResult(
        rounds=min(near) - since if near else None,
        ended=last,
        distance=np.inf if final is None else final / problem.optimum - 1.0,
        lost=int(summary.get("lost") or 0),
        seconds=time.monotonic() - began_s,
    )


def simulated(
    problem: Problem, optimizer: str, absent: str, members: int, faults: list[Any], since: int
) -> RunResult:
    """Run a job in the simulator."""
    began_s = time.monotonic()
    record = {
        "version": 1,
        "job": "second-order",
        "name": optimizer,
        "chunk_bytes": 2**18,
        "algorithm": settings(problem, optimizer),
        "absent": absent,
        "stop": {"rounds": since + 600},
        "seed": 0,
        "faults": faults,
        "members": {"start": members, "min": 1},
        "evaluate": None,
    }
    source = from_arrays(problem.X, problem.y)
    result = simulate(record, source, options=options_from_section({"start_s": 0.0}))
    if result.error is not None:
        raise RuntimeError(f"the simulated job failed: {result.error}")
    return result_from(result.rows, result.summary, problem, faults, began_s)


def real(
    problem: Problem, optimizer: str, absent: str, members: int, faults: list[Any], since: int
) -> RunResult:
    """Run a job on worker processes, which planned faults kill."""
    from distributed import Client

    began_s = time.monotonic()
    with em.LocalCluster(members) as cluster, Client(cluster) as client:
        chosen = settings(problem, optimizer)
        del chosen["name"]
        result = em.Job(
            em.BatchGradient(**{"intercept": False, "tolerance": 0.0, **chosen}, scale="none"),
            em.from_arrays(problem.X, problem.y),
            absent=absent,
            stop=em.Stop(rounds=since + 600),
            faults=faults,
            members=em.Members(start=members),
            chunk_size="256 KiB",
            evaluate=False,
        ).run(client)
    return result_from(result.history, result.summary, problem, faults, began_s)


def settings(problem: Problem, optimizer: str) -> dict[str, Any]:
    return {
        "name": "batch_gradient",
        "loss": "logistic",
        "l2": problem.l2,
        "optimizer": optimizer,
        "tolerance": 1e-8,
    }


def arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=["a9a", "w8a", "ijcnn1"])
    parser.add_argument("--optimizers", nargs="+", default=["lbfgs", "tron"])
    parser.add_argument("--seeds", type=int, default=3, help="disturbed runs of each; 0: none")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--absent", nargs="+", default=["auto"], help="rules for the absent")
    parser.add_argument("--members", type=int, default=14)
    parser.add_argument("--rate", type=float, default=0.01, help="chance to leave, a round")
    parser.add_argument("--until", type=int, default=120, help="round at which all come back")
    parser.add_argument("--every", type=int, default=4, help="rows of kdd: every nth")
    parser.add_argument("--real", action="store_true", help="worker processes, really killed")
    return parser.parse_args()


def main() -> int:
    """Run the study; return the exit code."""
    options = arguments()
    play = real if options.real else simulated
    entries: list[dict[str, Any]] = []
    for name in options.sets:
        problem = problem_of(name, options.every)
        n, d = problem.X.shape
        print(f"{name}: {n} x {d}, least objective {problem.optimum:.15g}", flush=True)
        for optimizer in options.optimizers:
            runs: list[tuple[str, list[Any], int, str]] = [("undisturbed", [], 0, "auto")]
            for absent in options.absent:
                for seed in range(options.first, options.first + options.seeds):
                    faults = absences(seed, options.members, options.rate, options.until)
                    runs.append((f"{absent} {seed}", faults, options.until, absent))
            for label, faults, since, absent in runs:
                try:
                    result = play(problem, optimizer, absent, options.members, faults, since)
                except ElasticmlError as error:
                    print(f"  {optimizer:6}{label:14} failed: {error}", flush=True)
                    entries.append(
                        {"set": name, "optimizer": optimizer, "run": label, "rounds": None}
                    )
                    continue
                print(
                    f"  {optimizer:6}{label:14}{result.rounds!s:>5} rounds  ended {result.ended:4}"
                    f"  lost {result.lost:3}  distance {result.distance:9.1e}"
                    f"  {result.seconds:6.1f} s",
                    flush=True,
                )
                row = {"set": name, "optimizer": optimizer, "run": label, "rounds": result.rounds}
                entries.append(
                    {**row, "distance": result.distance, "ended": result.ended, "lost": result.lost}
                )
    print(json.dumps(entries))
    return 0 if all(row["rounds"] is not None for row in entries) else 1


if __name__ == "__main__":
    sys.exit(main())
