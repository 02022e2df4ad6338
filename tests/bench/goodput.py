"""Goodput under pre-emption: how much of its undisturbed progress each framework keeps.

    python -m tests.bench goodput [--peers NAME ...] [--traces none steady spot] [--seconds 40]
        [--folder KEPT ...] [--environment FOLDER] [--limit-s 1500] [--report]

Every peer trains with four worker processes of one thread each on two cores, through one trace of
SIGKILLs and returns. "steady" kills a worker at 5 s and every 15 s from then on, and allows a new
one 5 s later. "spot" has the shape of an AWS spot trace (16 p2.xlarge over some hours, published
with Bamboo), scaled to four workers and to the window. Two of four workers keep both cores busy, so
no trace takes processor time away; whatever is lost is what the framework loses.

Goodput is progress under the trace divided by progress without, both in the same time from the
first step on: examples that the final model was trained on, for a network; passes over the
examples, for a linear model. "repeated": examples computed and not in the model. "lost", "twice":
examples that complete epochs of the model lack or have more than once. "target": the loss that the
undisturbed run of the same peer has after 0.6 of the window.

Results are kept in ``--folder``, one JSON file a run; a run whose file is there is not repeated. No
run begins after ``--limit-s``; the next call continues. The table and ``goodput.png`` are of all
files. Runs are repeated into further folders; the table then has the run with the median goodput,
and the goodput of all. Peers are installed once, with uv, into a virtual environment in
``--environment``: 6 GB, most of it PyTorch. Spark needs Java. How each peer is set up is said in
``peers/goodput_*.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from elasticml.clusters.polling import until
from tests.bench import harness
from tests.bench.peers import goodput_run
from tests.bench.peers.goodput_run import WORKERS

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticml"
#: Packages of the peers, besides elasticml's own dependencies.
PACKAGES = ("torch", "torchft", "ray[train]", "pyspark", "xgboost-cpu", "dask-ml")
#: Hours, and machines of 16: a part of the sizes of a spot cluster of p2.xlarge in AWS us-east-1
#: from 2020-11-20 to 23, published in the repository of Bamboo (Thorpe et al., NSDI 2023) as
#: aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23.csv.
SPOT_HOURS = (
    (6.630, 15), (6.677, 14), (6.841, 12), (6.961, 10), (7.069, 9), (7.432, 12), (7.459, 9),
    (7.498, 13), (7.520, 10), (7.997, 14), (8.027, 12), (8.115, 10), (8.348, 16), (8.391, 10),
    (8.615, 16), (8.674, 14), (8.814, 16), (8.868, 14), (8.964, 16), (9.066, 15), (9.154, 14),
    (9.188, 13), (9.218, 12), (9.298, 16),
)  # fmt: skip
SPOT_MACHINES, SPOT_START_H, SPOT_END_H = 16, 6.5, 9.5
#: A run that has made no step after this time has failed.
START_S_MAX = 180.0
TRACES = ("none", "steady", "spot")
TASKS = {"network": "A network", "linear": "A linear model"}
#: What the page of performance says above the tables.
TEXT = (
    "How much progress training loses when workers are killed. Each framework trains on two cores "
    "with four workers of one thread each. Trace `steady`: one worker is killed with SIGKILL after "
    "5 s and then every 15 s. A new one may start 5 s later. Trace `spot`: workers are killed and "
    "started as in a recorded trace of a spot cluster. Two workers alone keep both cores busy, so "
    "the loss of a worker takes no processor time away. elasticml's network is trained with local "
    "SGD, 16 steps between two exchanges; the others exchange gradients in every step. "
    "xgboost.dask trains trees. *Goodput* is the progress in a window "
    "after the first step, divided by the progress of the same framework without kills. "
    "*Repeated*: examples that were computed but are not in the model. *Lost* and *twice*: "
    "examples that are missing from the model's complete epochs, or are in them more than once. A "
    "– means that only the framework's own passes were counted. *s to target*: seconds until the "
    "run reaches the loss that the run without kills has after 0.6 of the window. *Undisturbed*: "
    "the same seconds for the run without kills. *All runs*: the goodput of each repetition. The "
    "row shows the run with the median goodput. How each framework was set up: "
    "[note](notes/performance-2026-11-25.md#goodput-under-pre-emption)."
)
#: The environment variable by which all processes of a run are recognized.
MARK = "GOODPUT_RUN"


@dataclass(frozen=True, slots=True)
class Peer:
    """How a framework is run: ``peers/goodput_SCRIPT.py`` with these options."""

    label: str
    task: Literal["network", "linear"]
    script: str
    options: str = ""
    #: Whether the job continues while workers are away; others are not run on the spot trace.
    is_elastic: bool = True
    #: Parts of the data that always belong to one worker: an epoch is complete for each of them.
    parts: int = 1


def _peers() -> dict[str, Peer]:
    restart = "the same, checkpoint and restart"
    lbfgs = "elasticml, L-BFGS"
    return {
        "elasticml-network": Peer("elasticml, local SGD", "network", "elasticml"),
        "elasticml-network-restart": Peer(restart, "network", "elasticml", "--way restart", False),
        "torchrun": Peer("torchrun, elastic", "network", "torchrun"),
        "torch-restart": Peer(
            "PyTorch DDP, checkpoint and restart", "network", "torchrun", "--way restart", False
        ),
        "torchft": Peer("torchft", "network", "torchft", parts=WORKERS),
        "ray": Peer("Ray Train, elastic", "network", "ray"),
        "elasticml-linear": Peer(lbfgs, "linear", "elasticml", "--task linear"),
        "elasticml-linear-reload": Peer(
            f"{lbfgs}, absent: reload", "linear", "elasticml", "--task linear --absent reload"
        ),
        "elasticml-linear-restart": Peer(
            restart, "linear", "elasticml", "--task linear --way restart", False
        ),
        "spark": Peer("Spark MLlib, L-BFGS", "linear", "spark"),
        "dask-ml": Peer("dask-ml, L-BFGS", "linear", "dask", "--way dask_ml", False),
        "xgboost": Peer("xgboost.dask, trees", "linear", "dask", "--way xgboost", False),
    }


PEERS = _peers()


# --- the traces -----------------------------------------------------------------------------


def trace_of(name: str, seconds: float) -> list[tuple[float, int]]:
    """Return the moments at which the number of workers changes, and the number from then on."""
    if name == "none":
        return []
    if name == "steady":
        kills = np.arange(5.0, seconds, 15.0).tolist()
        return [change for t in kills for change in ((t, WORKERS - 1), (t + 5.0, WORKERS))]
    changes, workers = list[tuple[float, int]](), WORKERS
    for hour, machines in SPOT_HOURS:
        n = max(1, int(WORKERS * machines / SPOT_MACHINES + 0.5))
        if n != workers:
            at = (hour - SPOT_START_H) / (SPOT_END_H - SPOT_START_H) * seconds
            changes.append((round(at, 2), n))
            workers = n
    return changes


# --- one run --------------------------------------------------------------------------------


def end_marked(mark: str) -> int:
    """SIGKILL every process of a run, by its environment; return how many there were."""
    needle, n = f"{MARK}={mark}".encode(), 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                n += 1
    return n


def run_peer(
    peer: Peer, trace: Sequence[tuple[float, int]], folder: Path, data: Path, python: str, s: float
) -> str:
    """Run a peer into an empty folder; return the reason why it ended early, or nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark = f"{os.getpid()}-{time.time_ns()}"
    environment = {**os.environ, **dict.fromkeys(harness.THREADS, "1"), MARK: mark}
    environment |= {"NUMBA_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": harness.path()}
    command = [python, "-m", f"tests.bench.peers.goodput_{peer.script}", *peer.options.split()]
    command += ["--folder", str(folder), "--data", str(data), "--seconds", str(s)]
    command += ["--trace", json.dumps(trace)]
    with (folder / "out.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    begin_s, reason = time.monotonic(), ""
    try:
        limit_s = START_S_MAX
        has_begun = False
        while process.poll() is None:
            if not has_begun and (folder / "progress.jsonl").exists():
                # The peer ends the run itself; this is for one that hangs.
                has_begun, limit_s = True, time.monotonic() - begin_s + s + 15.0
            if time.monotonic() - begin_s > limit_s:
                reason = "had to be ended" if has_begun else f"no step in {START_S_MAX:g} s"
                break
            time.sleep(0.2)
        if not has_begun and not (folder / "progress.jsonl").exists():
            reason = reason or f"ended with status {process.poll()} before its first step"
    finally:
        until(lambda: not end_marked(mark), wait_s=4.0, every_s=0.2)
        process.wait()
    return reason


# --- what a run did -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The examples of all steps, and which of them became part of the model.

    All arrays have an entry per step and process.
    """

    #: Seconds in which it was computed, and in which a restart from an older snapshot made it void.
    t: np.ndarray
    void_t: np.ndarray
    size: np.ndarray
    epoch: np.ndarray
    ids: list[np.ndarray]

    def examples(self, t: float) -> int:
        """Return the number of examples in the model at a time."""
        return int(self.size[(self.t <= t) & (self.void_t > t)].sum())


def lineage_of(records: Iterable[tuple[float, int, int, np.ndarray | None]]) -> Lineage:
    """Follow restarts: a process that starts with step s makes all earlier steps from s on void."""
    steps, starts = [], []
    for t, step, epoch, ids in records:
        if ids is None:
            starts.append((t, step))
        else:
            steps.append((t, step, epoch, ids))
    t = np.array([each[0] for each in steps])
    step = np.array([each[1] for each in steps])
    void_t = np.full(t.size, np.inf)
    for start_t, start_step in starts:
        is_void = (t < start_t) & (step >= start_step)
        void_t[is_void] = np.minimum(void_t[is_void], start_t)
    return Lineage(
        t=t,
        void_t=void_t,
        size=np.array([each[3].size for each in steps], int),
        epoch=np.array([each[2] for each in steps]),
        ids=[each[3] for each in steps],
    )


def counts_of(lineage: Lineage, end_t: float, examples: int, parts: int) -> dict[str, int]:
    """Count examples that complete epochs of the final model lack or have more than once."""
    kept = np.flatnonzero((lineage.t <= end_t) & (lineage.void_t > end_t))
    by_epoch: defaultdict[int, np.ndarray] = defaultdict(lambda: np.zeros(examples, int))
    for k in kept:
        np.add.at(by_epoch[int(lineage.epoch[k])], lineage.ids[k], 1)
    part_of, counts = np.arange(examples) % parts, {"epochs": 0, "lost": 0, "twice": 0}
    for part in range(parts):
        rows = part_of == part
        mine = sorted(epoch for epoch, seen in by_epoch.items() if seen[rows].any())
        # An epoch is complete for a part when a later one has begun.
        for epoch in range(mine[-1] if mine else 0):
            seen = by_epoch[epoch][rows]
            counts["lost"] += int((seen == 0).sum())
            counts["twice"] += int(np.maximum(seen - 1, 0).sum())
            counts["epochs"] += part == 0
    computed = int(lineage.size[lineage.t <= end_t].sum())
    return {**counts, "repeated": computed - int(lineage.size[kept].sum())}


def own_lineage(folder: Path, examples: int) -> Lineage:
    """Return elasticml's lineage: what its module was given, and the rounds that summed it.

    A step belongs to the round that ended next, and its epoch follows from the examples of the
    rounds before. Steps since the last round are void. So are those of a process that ended in a
    round, if more examples were computed in it than the round reports.
    """
    rounds = goodput_run.lines(folder, "rounds.jsonl")
    ends, totals = np.array([r["at"] for r in rounds]), [0, *(r["examples"] for r in rounds)]
    epochs = np.array(totals) // examples
    excess = -np.diff(totals)
    steps, last_of = list[tuple[float, int, int, np.ndarray]](), dict[int, int]()
    for process, path in enumerate(sorted(folder.glob("seen-*.bin"))):
        for t, _, _, ids in goodput_run.read_seen(path):
            if ids is None:
                continue
            last_of[process] = k = int(np.searchsorted(ends, t))
            steps.append((t, k, process, ids))
            if k < ends.size:
                excess[k] += ids.size
    is_void = [
        k >= ends.size or (excess[k] > 0 and last_of[process] == k) for _, k, process, _ in steps
    ]
    return Lineage(
        t=np.array([each[0] for each in steps]),
        void_t=np.where(is_void, -np.inf, np.inf),
        size=np.array([each[3].size for each in steps], int),
        epoch=epochs[[each[1] for each in steps]],
        ids=[each[3] for each in steps],
    )


def own_counts(folder: Path, end_t: float, examples: int) -> dict[str, int]:
    """Count elasticml's examples as those of the others are counted.

    "unexplained" is the difference between the steps that are not void and what the rounds report;
    it is not 0 if one of two members that were killed in a round had sent its part of the sum.
    """
    rounds = [r for r in goodput_run.lines(folder, "rounds.jsonl") if r["at"] <= end_t]
    if not rounds:
        return {}
    lineage, end_t = own_lineage(folder, examples), rounds[-1]["at"]
    kept = int(lineage.size[(lineage.t <= end_t) & (lineage.void_t > end_t)].sum())
    counts = counts_of(lineage, end_t, examples, parts=1)
    return {**counts, "unexplained": abs(kept - rounds[-1]["examples"])}


def figures_of(peer: Peer, folder: Path, seconds: float, reason: str) -> dict[str, Any]:
    """Return a run's figures from its logs."""
    progress = goodput_run.lines(folder, "progress.jsonl")
    faults = goodput_run.lines(folder, "faults.jsonl")
    notes = goodput_run.lines(folder, "notes.jsonl")
    figures: dict[str, Any] = {"reason": reason, "faults": faults, "notes": notes[:50]}
    figures["errors"] = len(notes)
    if not progress:
        return {**figures, "examples": 0, "curve": [], "losses": []}
    start_t = float(progress[0]["t"])
    end_t = start_t + seconds
    grid = np.linspace(start_t, end_t, 2 * int(seconds) + 1)
    records = [r for path in folder.glob("seen-*.bin") for r in goodput_run.read_seen(path)]
    lineage = lineage_of(records) if records and progress[-1]["examples"] is None else None
    if lineage is not None:
        values = [lineage.examples(t) for t in grid]
        figures |= counts_of(lineage, end_t, goodput_run.IMAGES, peer.parts)
    else:
        times = np.array([line["t"] for line in progress])
        done = np.array([line["examples"] or 0 for line in progress])
        values = [int(done[np.searchsorted(times, t, side="right") - 1]) for t in grid]
        if records:
            figures |= own_counts(folder, end_t, goodput_run.IMAGES)
    figures["examples"] = values[-1]
    figures["curve"] = [
        (round(t - start_t, 2), v) for t, v in zip(grid.tolist(), values, strict=True)
    ]
    figures["losses"] = smoothed(
        [(line["t"] - start_t, line["loss"]) for line in progress if line["loss"] is not None],
        2.0 if peer.task == "network" else 0.0,
    )
    return figures


def smoothed(losses: Sequence[tuple[float, float]], window_s: float) -> list[tuple[float, float]]:
    """Return the mean of each time's window."""
    result, first = list[tuple[float, float]](), 0
    for k, (t, _) in enumerate(losses):
        while losses[first][0] < t - window_s:
            first += 1
        mean = statistics.fmean(loss for _, loss in losses[first : k + 1])
        result.append((round(t, 2), round(mean, 6)))
    return result


# --- all runs -------------------------------------------------------------------------------


def peers_python(folder: Path) -> str:
    """Install the peers once; return their Python."""
    python, complete = folder / "venv" / "bin" / "python", folder / "complete"
    if complete.exists():
        return str(python)
    folder.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or str(harness.ROOT / ".venv-uv" / "bin" / "uv")  # of `make`
    own = tomllib.loads((harness.ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (folder / "requirements.txt").write_text("\n".join([*PACKAGES, *own]) + "\n")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    subprocess.run([*install, "-r", str(folder / "requirements.txt")], check=True)
    complete.touch()
    return str(python)


def measure(
    results: Path,
    environment: Path,
    peers: Sequence[str],
    traces: Sequence[str],
    window_s: float,
    limit_s: float,
    every: bool,
) -> None:
    """Run what has no result yet."""
    begin_s = time.monotonic()
    python = peers_python(environment)
    data = environment / "data"
    words = ["-m", "tests.bench.peers.goodput_run", str(data), str(harness.DATA / "fashion_mnist")]
    path = {**os.environ, "PYTHONPATH": harness.path()}
    subprocess.run([python, *words], check=True, env=path)
    # A run and the undisturbed run that it is compared with are close in time.
    for name in peers:
        for trace in traces:
            peer, result = PEERS[name], results / f"{name}-{trace}.json"
            is_asked = peer.is_elastic or trace != "spot" or every
            if result.exists() or not is_asked:
                continue
            if time.monotonic() - begin_s > limit_s:
                print("the time is over; the same command continues", file=sys.stderr)
                return
            changes = trace_of(trace, window_s)
            folder = results / "logs" / f"{name}-{trace}"
            date, load = time.strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
            reason = run_peer(peer, changes, folder, data, python, window_s)
            figures = figures_of(peer, folder, window_s, reason)
            head = {"peer": name, "trace": trace, "seconds": window_s, "date": date}
            head |= {"changes": changes, "load": load}
            harness.report({**head, **figures}, result)
            print(f"{name} {trace}: {figures['examples']} examples {reason}", file=sys.stderr)


def results_of(folders: Sequence[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a result by peer and trace: of several folders the one with the median goodput.

    Figures are computed again where there are logs. A result has its undisturbed run of the same
    folder as "base", and the goodput of all folders as "shares".
    """
    found = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
    for folder in folders:
        results = {}
        for path in sorted(folder.glob("*.json")):
            result, logs = json.loads(path.read_text()), folder / "logs" / path.stem
            name, trace = result["peer"], result["trace"]
            if logs.exists():
                result |= figures_of(PEERS[name], logs, result["seconds"], result["reason"])
            results[name, trace] = result
        for (name, trace), result in results.items():
            base = results.get((name, "none"))
            found[name, trace].append({**result, "base": base, "share": share_of(result, base)})
    chosen = {}
    for key, runs in found.items():
        runs.sort(key=lambda run: (run["share"] or 0.0, run["examples"]))
        shares = [run["share"] for run in runs if run["share"] is not None]
        chosen[key] = {**runs[(len(runs) - 1) // 2], "shares": shares}
    return chosen


def share_of(run: dict[str, Any], base: dict[str, Any] | None) -> float | None:
    """Return a run's progress as a share of the undisturbed one."""
    if base is None or not base["examples"] or run["trace"] == "none":
        return None
    return float(round(run["examples"] / base["examples"], 2))


def target_s(run: dict[str, Any], base: dict[str, Any]) -> float | None:
    """Return when a run has the loss that the undisturbed one has after 0.6 of the window."""
    reached = [loss for t, loss in base["losses"] if t <= 0.6 * base["seconds"]]
    if not reached:
        return None
    return next((t for t, loss in run["losses"] if loss <= min(reached)), None)


#: Columns of the table.
COLUMNS = (
    "framework", "trace", "kills", "examples", "a second", "goodput", "repeated", "lost", "twice",
    "s to target", "undisturbed", "load before", "all runs", "date",
)  # fmt: skip


def rows_of(results: dict[tuple[str, str], dict[str, Any]], task: str) -> list[list[Any]]:
    """Return the rows of the table of a task."""
    rows = list[list[Any]]()
    for name, peer in PEERS.items():
        for trace in TRACES if peer.task == task else ():
            run = results.get((name, trace))
            if run is None:
                continue
            seconds = base_s = None
            if run["share"] is not None:
                seconds, base_s = target_s(run, run["base"]), target_s(run["base"], run["base"])
            kills = sum(len(f["places"]) for f in run["faults"] if f["what"] == "kill")
            counts = [run.get(key) for key in ("repeated", "lost", "twice")]
            times = [None if t is None else round(t, 1) for t in (seconds, base_s)]
            load = round(run["load"], 1)
            shares = " ".join(f"{share:.2f}" for share in run["shares"])
            row = [
                peer.label,
                trace,
                kills,
                run["examples"],
                round(run["examples"] / run["seconds"]),
            ]
            row += [run["share"], *counts, *times, load, shares or None, run["date"][:10]]
            rows.append(row)
    return rows


def print_table(results: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Print the table of all results."""
    harness.head("task", *COLUMNS, keys=3)
    for task in TASKS:
        for row in rows_of(results, task):
            harness.row(task, *("-" if cell is None else cell for cell in row))
    for (name, trace), run in results.items():
        errors = {note.get("error", note["what"]) for note in run["notes"]}
        if run["reason"] or errors:
            print(f"{name}, {trace}: {run['reason']} {sorted(errors)[:3]}")


def write_docs(results: dict[tuple[str, str], dict[str, Any]], docs: Path) -> None:
    """Write table and picture for the page of performance."""
    dates = sorted(run["date"] for run in results.values())
    seconds = {run["seconds"] for run in results.values()}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    content = {
        "title": "Goodput under pre-emption",
        "order": 5,
        "date": dates[-1][:10],
        "command": f"python -m tests.bench goodput --seconds {max(seconds):g} --docs",
        "machine": f"{os.cpu_count()} cores, {memory / 2**30:.0f} GiB",
        "text": TEXT,
        "tables": [
            {
                "title": f"{title}, windows of {' and '.join(f'{s:g}' for s in sorted(seconds))} s",
                "columns": list(COLUMNS),
                "rows": rows_of(results, task),
            }
            for task, title in TASKS.items()
        ],
        "image": "images/goodput.png",
        "notes": failures_of(results),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (docs / "figures").mkdir(exist_ok=True)
    (docs / "figures" / "goodput.json").write_text(text)
    draw(results, docs / "images" / "goodput.png")


def failures_of(results: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Return a sentence for each run that did not go on to the end."""
    notes = []
    for (name, trace), run in results.items():
        errors = sum("fail" in note["what"] or "ended" in note["what"] for note in run["notes"])
        if run["reason"] or errors:
            what = run["reason"] or f"{errors} restart{'s' * (errors != 1)} after an error"
            notes.append(f"{PEERS[name].label}, {trace}: {what}.")
    return notes


def draw(results: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    """Draw each framework's progress under a trace, as a share of its undisturbed progress."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    shown = [(task, trace) for task in ("network", "linear") for trace in ("steady", "spot")]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharey=True, layout="constrained")
    for axis, (task, trace) in zip(axes.flat, shown, strict=True):
        seconds = 0.0
        for name, peer in PEERS.items():
            run = results.get((name, trace))
            if peer.task != task or run is None or run["share"] is None:
                continue
            t, v = zip(*run["curve"], strict=True) if run["curve"] else ((0.0,), (0.0,))
            is_own = name.startswith("elasticml") and peer.is_elastic
            share = np.array(v) / run["base"]["examples"]
            axis.plot(t, share, label=peer.label, linewidth=2.6 if is_own else 1.3)
            seconds = run["seconds"]
        axis.plot([0.0, seconds], [0.0, 1.0], color="0.6", linestyle=":", label="undisturbed")
        for at_s, n in trace_of(trace, seconds):
            axis.axvline(at_s, color="0.85" if n == WORKERS else "0.7", linewidth=0.7, zorder=0)
        axis.set(title=f"{task}, {trace}", xlabel="seconds", ylim=(0.0, 1.1))
        axis.legend(fontsize=7, loc="upper left")
    for axis in axes[:, 0]:
        axis.set_ylabel("progress / undisturbed at the end")
    figure.savefig(path, dpi=110)


def main(
    *,
    peers: Sequence[str] = tuple(PEERS),
    traces: Sequence[str] = TRACES,
    every: bool = False,
    seconds: float = 40.0,
    folder: Sequence[Path] = (CACHE / "goodput",),
    environment: Path = CACHE / "goodput-peers",
    limit_s: float = 1400.0,
    report: bool = False,
    docs: bool = False,
) -> None:
    """Measure what is missing; print the table and draw the picture.

    ``every``: the spot trace for every peer. Of several folders all are reported and the last is
    measured. ``report``: only print and draw; ``docs``: also for the page of performance.
    """
    # Some peers take the paths in other folders.
    folders = [path.resolve() for path in folder]
    folders[-1].mkdir(parents=True, exist_ok=True)
    if not report:
        measure(folders[-1], environment.resolve(), peers, traces, seconds, limit_s, every)
    results = results_of(folders)
    print_table(results)
    draw(results, folders[-1] / "goodput.png")
    if docs:
        write_docs(results, harness.ROOT / "docs")
    print(folders[-1] / "goodput.png")
