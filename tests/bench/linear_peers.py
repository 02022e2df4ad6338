"""Linear models against their peers: seconds to the same suboptimality, on the same threads.

    python tests/bench/linear_peers.py [--sets reuters kdd ijcnn1] [--models hinge logistic ridge
        lasso] [--peers elasticml snapml ...] [--threads 1 2] [--repeats 3] [--limit-s 120]
        [--python PEERS_VENV/bin/python]

Every run of a peer is a process of its own, which loads the data from shared .npy files first; the
clock covers a fit in memory, without imports and compilation. Peers fit from scratch with more and
more effort until the objective, taken outside the clock, is within 1e-6 of the best that any of
them has reached; later repeats fit with the efforts that were needed alone. Peers take turns. "-"
is what is not reached within the limit, "none" where a peer has no such model, or is not installed.

Peers other than scikit-learn want a venv of their own: ``python -m venv V && V/bin/pip install
snapml vowpalwabbit dask-ml pyspark scipy``; Spark needs Java.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "papers")]

from tests.bench.peers.fits import PEERS, SERIAL  # noqa: E402
from tests.bench.peers.problems import MODELS, Data, Problem, largest_l1, write  # noqa: E402

TARGETS = (1e-3, 1e-6)
#: These run with the Python that runs this script.
OURS = ("elasticml", "liblinear", "saga", "lbfgs", "cd")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Try = dict[str, float]


def be_peer(task: dict[str, Any]) -> None:
    """Fit with one effort after the other; print a line for each."""
    data = Data(Path(task["folder"]), task["set"])
    problem = Problem(**task["problem"])
    began = time.perf_counter()
    try:
        fits = PEERS[task["peer"]](data, problem, task["threads"])
        for effort, (seconds, w) in enumerate(islice(fits, task["last"] + 1)):
            told = {"effort": effort, "s": seconds, "objective": data.objective(problem, w)}
            print(json.dumps(told), flush=True)
            if time.perf_counter() - began > task["limit_s"]:
                return
    except (LookupError, ImportError) as error:
        print(json.dumps({"none": str(error)}), flush=True)


def run(task: dict[str, Any], python: str) -> list[dict[str, Any]]:
    """Run a peer in a process of its own; its lines."""
    environment = {**os.environ, **dict.fromkeys(THREADS, str(task["threads"]))}
    command = [python, __file__, "--task", json.dumps(task)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=3 * task["limit_s"]
        )
        out, failed = done.stdout, done.returncode
        error = done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        out, failed, error = out.decode() if isinstance(out, bytes) else out, 0, []
    if failed:
        print(f"{task['peer']} failed: {error}", file=sys.stderr)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def compare(task: dict[str, Any], peers: list[str], options: argparse.Namespace) -> None:
    """Run all peers, several times, and print a line per target."""
    pythons = {p: sys.executable if p in OURS else options.python for p in peers}
    tries: dict[str, list[Try]] = {}
    for peer in peers:
        tries[peer] = run({**task, "peer": peer, "last": 10**6}, pythons[peer])
    reached = [t["objective"] for some in tries.values() for t in some if "objective" in t]
    best = min(reached)
    needed = {
        peer: [
            next((t for t in some if t.get("objective", best + 1e300) <= best * (1 + target)), None)
            for target in TARGETS
        ]
        for peer, some in tries.items()
    }
    seconds = {peer: [[t["s"]] if t else [] for t in found] for peer, found in needed.items()}
    for repeat in range(1, options.repeats):
        for peer in peers[repeat % len(peers) :] + peers[: repeat % len(peers)]:
            last = max((t["effort"] for t in needed[peer] if t), default=-1)
            if last < 0:
                continue
            again = run({**task, "peer": peer, "last": last}, pythons[peer])
            for k, found in enumerate(needed[peer]):
                if found:
                    seconds[peer][k] += [t["s"] for t in again if t["effort"] == found["effort"]]
    problem = task["problem"]
    for k, target in enumerate(TARGETS):
        cells = []
        for peer in peers:
            has_none = any("none" in t for t in tries[peer])
            some = seconds[peer][k]
            cells.append("none" if has_none else f"{median(some):.3g}" if some else "-")
        ours = seconds[peers[0]][k]
        others = [median(seconds[p][k]) for p in peers[1:] if seconds[p][k]]
        ratio = f"{median(ours) / min(others):.2f}" if ours and others else "-"
        head = f"{task['set']} | {problem['model']} | {task['threads']} | {target:g}"
        print(f"| {head} | {' | '.join(cells)} | {ratio} |", flush=True)


def prepare(name: str, folder: Path) -> None:
    """Write a set of classes, which are the regressions' targets, too."""
    from support import cocoa_data

    X, y = cocoa_data.kdd(1) if name == "kdd" else getattr(cocoa_data, name)()
    import scipy.sparse as sp

    write(folder, name, sp.csr_matrix(X), y)


def problems(names: list[str], data: Data, l2: float, l1: float) -> list[dict[str, Any]]:
    """Return the problems by the names of their models; l1 relative to the largest that counts."""
    given = {
        "hinge": {"l2": l2},
        "logistic": {"l2": l2},
        "ridge": {"l2": l2},
        "lasso": {"l1": l1 * largest_l1(data)},
    }
    return [{"model": name, **given[name]} for name in names]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--sets", nargs="+", default=["reuters", "kdd", "ijcnn1"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--peers", nargs="+", choices=[*PEERS], default=[*PEERS])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--l2", type=float, default=0.01)
    parser.add_argument("--l1", type=float, default=0.1, help="of the largest that counts")
    parser.add_argument("--python", default=sys.executable, help="that has the other peers")
    options = parser.parse_args()
    if options.task:
        be_peer(json.loads(options.task))
        return
    print(f"| set | model | threads | to | {' | '.join(options.peers)} | first / best other |")
    print("|" + "---|" * (5 + len(options.peers)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            prepare(name, Path(folder))
            data = Data(Path(folder), name)
            for problem in problems(options.models, data, options.l2, options.l1):
                for threads in options.threads:
                    peers = [p for p in options.peers if threads == 1 or p not in SERIAL]
                    shared = {"folder": folder, "set": name, "problem": problem}
                    shared |= {"threads": threads, "limit_s": options.limit_s}
                    compare(shared, peers, options)


if __name__ == "__main__":
    main()
