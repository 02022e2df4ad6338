"""The two big generated sets: seconds of fits to a relative suboptimality of 1e-3, by peers.

    python tests/bench/big_linear.py --folder KEPT --python PEERS_VENV/bin/python
        [--sets rcv1_shaped criteo_shaped] [--models hinge logistic] [--threads 1 2]
        [--peers elasticml snapml ...] [--repeats 3] [--limit-s 120] [--only least | find | show]
        [--begin-s 200] [--rows 20000000] [--cpu]

Each peer has a separate process for each problem, with the data loaded from shared .npy files; the
clock covers ``fit`` alone, after a cheap fit that loads compiled code. l2 is 1/n, no intercept.
There are three steps. ``least``: elasticml is fitted until its certificate encloses the optimum
within 1e-4; the certificate's lower end is the reference. ``find``: every peer is fitted from
scratch with increasing effort until its objective, computed outside the clock, is within 1e-3 of
the reference, or until a fit exceeds the limit; any machine will do. Finally that effort is fitted
again ``--repeats`` times, peers taking turns, which needs a quiet machine; ``--begin-s`` starts no
problem after that time. Results are kept in the folder, problem by problem, and the same command
continues. On a shared machine ``--cpu`` counts processor seconds, as in ``linear_peers.py``. The
sets, 1.6 GB, are generated if missing; ``--rows`` makes another size of a set, under
another name.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tests.bench import harness  # noqa: E402
from tests.bench.linear_peers import OURS, Entry, run  # noqa: E402
from tests.bench.peers.big_sets import ROWS, write_big  # noqa: E402
from tests.bench.peers.fits import EFFORTS, FINE_TOLERANCES, SERIAL  # noqa: E402

TARGET = 1e-3
#: How far apart a certificate's ends may be, relative to the objective.
ENCLOSED = 1e-4
PEERS = ("elasticml", "snapml", "liblinear", "saga", "lbfgs", "vw", "dask-ml", "spark")
#: The search for an effort takes at most this many times the limit of one fit.
LOOK = 4
#: Where the search for an effort starts: less effort is nowhere near the target.
FIRST = {"hinge": EFFORTS.index(10), "logistic": EFFORTS.index(3)}
FIRST_TOLERANCE = {"hinge": 7.5e-4, "logistic": 1e-2}

Kept = dict[str, Any]


def task_of(name: str, model: str, threads: int, options: argparse.Namespace) -> Entry:
    """Describe a problem for a peer's process; l2 is 1/n."""
    import numpy as np

    n = np.load(options.folder / f"{name}-labels.npy", mmap_mode="r").size
    return {
        "folder": str(options.folder),
        "set": name,
        "problem": {"model": model, "l2": 1.0 / n},
        "threads": threads,
        "limit_s": options.limit_s,
        "look_s": LOOK * options.limit_s,
        "repeats": 1,
        "targets": [TARGET],
        "clock": "cpu" if options.cpu else "elapsed",
    }


def least_of(name: str, model: str, folder: Path, threads: int) -> float:
    """Return the lower end of a certificate that is tight enough."""
    import numpy as np

    import elasticml as em
    from tests.bench.peers.problems import Data, Problem

    data = Data(folder, name)
    tol, common = 1e-4, {"fit_intercept": False, "C": 1.0, "n_jobs": threads}
    while True:
        made: Any = em.LinearSVC(loss="hinge", tol=tol, **common)
        if model == "logistic":
            made = em.LogisticRegression(tol=tol, **common)
        made.fit(data.X, data.labels)
        w, gap = np.ravel(made.coef_), made.dual_gap_ / data.n
        objective = data.objective(Problem(model=model, l2=1.0 / data.n), w)
        if gap <= ENCLOSED * objective:
            return float(objective - gap)
        tol *= 0.9 * ENCLOSED * objective / gap


def find(peer: str, task: Entry, least: float, python: str) -> Entry:
    """Search for the first effort that reaches the target."""
    model = task["problem"]["model"]
    first = FIRST[model]
    if peer == "elasticml":
        first = next(k for k, t in enumerate(FINE_TOLERANCES) if t <= FIRST_TOLERANCE[model])
    lines = run({**task, "peer": peer, "first": first, "efforts": None, "least": least}, python)
    tries = [line for line in lines if "objective" in line]
    there = [t for t in tries if t["objective"] <= least * (1 + TARGET)]
    output: Entry = {"tries": tries, "effort": there[0]["effort"] if there else None}
    if there and there[0]["s"] > task["limit_s"]:
        output["effort"] = None
    why = [line.get("none") or line.get("failed") for line in lines]
    output["why"] = " ".join(text for text in why if text)
    return output


def work(kept: Kept, options: argparse.Namespace) -> None:
    """Do what is missing, problem by problem; save every step."""
    began, results = time.perf_counter(), options.folder / "big.json"

    def is_time() -> bool:
        results.write_text(json.dumps(kept, indent=1))
        return time.perf_counter() - began <= options.begin_s

    for name, model, threads in problems(options):
        task = task_of(name, model, threads, options)
        problem = kept.setdefault(f"{name} {model}", {})
        if "least" not in problem and is_time():
            problem["least"] = least_of(name, model, options.folder, max(options.threads))
        result = problem.setdefault(_key(threads, options), {})
        peers = [p for p in options.peers if threads == 1 or p not in SERIAL]
        if options.only == "least" or "least" not in problem:
            continue
        for peer in peers:
            python = sys.executable if peer in OURS else options.python
            if peer not in result and is_time():
                result[peer] = find(peer, task, problem["least"], python)
        while options.only is None and is_time():
            # The peer with the fewest runs so far is next.
            wanting = [p for p in peers if result.get(p, {}).get("effort") is not None]
            wanting = [p for p in wanting if len(result[p].get("s", [])) < options.repeats]
            if not wanting:
                break
            peer = min(wanting, key=lambda p: len(result[p].get("s", [])))
            python = sys.executable if peer in OURS else options.python
            lines = run({**task, "peer": peer, "efforts": [result[peer]["effort"]]}, python)
            seconds = [s for line in lines for s in line.get("seconds", [])]
            result[peer].setdefault("s", []).extend(seconds)
            if not seconds:
                raise RuntimeError(f"{peer} has no time of {name} {model}: {lines}")
    is_time()


def _key(threads: int, options: argparse.Namespace) -> str:
    return f"{threads} cpu" if options.cpu else str(threads)


def problems(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Return sets, models and threads."""
    suffix = "" if options.rows is None else f"_{options.rows}"
    return [
        (name + suffix, model, threads)
        for name in options.sets
        for model in options.models
        for threads in options.threads
    ]


def show(kept: Kept, options: argparse.Namespace) -> None:
    """Print the table, and the reasons for missing figures."""
    print("Seconds of a fit to 1e-3, medians (epochs, or tolerance):\n")
    harness.head("set", "model", "threads", *options.peers, "first / second")
    why = []
    for name, model, threads in problems(options):
        result = kept.get(f"{name} {model}", {}).get(_key(threads, options), {})
        cells, medians = [], []
        for peer in options.peers:
            report = result.get(peer, {})
            seconds = median(report["s"]) if report.get("s") else math.nan
            medians.append(seconds)
            cells.append(_cell(peer, report, seconds))
            if report.get("why"):
                why.append(f"{peer}, {name} {model}, {threads}: {report['why']}")
        ratio = medians[0] / medians[1] if len(medians) > 1 else math.nan
        harness.row(name, model, threads, *cells, f"{ratio:.2f}")
    print("\n" + "\n".join(sorted(why)))


def _cell(peer: str, report: Entry, seconds: float) -> str:
    if not report:
        return ""
    if report["effort"] is None:
        return "-"
    if math.isnan(seconds):
        return "found"
    efforts: Any = FINE_TOLERANCES if peer == "elasticml" else EFFORTS
    return f"{seconds:.2f} ({efforts[report['effort']]:.2g}; {len(report['s'])} runs)"


def main() -> None:
    """Read the command line."""
    parser = harness.parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="keeps data and results")
    parser.add_argument("--python", default=sys.executable, help="that has the other peers")
    parser.add_argument("--sets", nargs="+", choices=[*ROWS], default=[*ROWS])
    parser.add_argument("--models", nargs="+", choices=[*FIRST], default=[*FIRST])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=120.0, help="of one fit")
    parser.add_argument("--only", choices=("least", "find", "show"))
    parser.add_argument("--begin-s", type=float, default=math.inf)
    parser.add_argument("--rows", type=int, help="of sets of another size")
    parser.add_argument("--cpu", action="store_true", help="processor seconds; --threads 1 only")
    options = parser.parse_args()
    if options.cpu and options.threads != [1]:
        parser.error("--cpu adds the threads' seconds up: give --threads 1 with it")
    options.folder.mkdir(parents=True, exist_ok=True)
    results = options.folder / "big.json"
    kept: Kept = json.loads(results.read_text()) if results.exists() else {}
    if options.only != "show":
        for name in options.sets:
            own = name if options.rows is None else f"{name}_{options.rows}"
            if not (options.folder / f"{own}-values.npy").exists():
                write_big(options.folder, name, options.rows, own)
        work(kept, options)
    show(kept, options)


if __name__ == "__main__":
    main()
