"""The single-node benchmark and the scatter: logistic regressions of all available peers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import snapml_data
from support.asgd_figures import Line, Panel
from support.asgd_study import Figure, number
from support.elastic_comparison import markdown
from support.snapml_store import Store
from support.speedups import spread

OURS = "elasticml"
#: Peers that come with scikit-learn, in this python; the others may be in another one.
SCIKIT_LEARN = ("lbfgs", "liblinear", "newton-cg", "saga")
OTHERS = ("snapml", "vw", "dask-ml", "spark")
#: Relative distance from the best objective of any peer.
TARGET = 1e-3
#: Fits of which the table has the median: the first that came so close, again and again.
REPEATS = 5
#: Seconds of fits after which a peer begins no further one; some need more to come near.
LIMIT_S, SLOW_LIMIT_S = 10.0, 40.0
SLOW = ("lbfgs", "vw", "spark")
#: Penalties: of the generated set, and of the sample, which is small.
L2, SAMPLE_L2 = 1e-5, 1e-2
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

#: A peer and its threads -> the lines that its process wrote.
Runs = dict[str, list[dict[str, Any]]]


def runs(store: Store, sets: tuple[str, str], l2: float, python: str) -> tuple[Runs, Runs]:
    """Run all peers on one set, as far as the time limit allows; then repeat what the table has."""
    ways = [(OURS, 1), (OURS, 2), (SCIKIT_LEARN[0], 1)]
    if not store.quick:
        ways += [(peer, 1) for peer in SCIKIT_LEARN[1:]]
        ways += [("snapml", 1), ("snapml", 2), *((peer, 2) for peer in ("dask-ml", "spark"))]
        ways.append(("vw", 1))

    def run(peer: str, threads: int, what: str, **more: Any) -> list[dict[str, Any]] | None:
        task = {"folder": str(store.folder / "data"), "train": sets[0], "test": sets[1], **more}
        limit_s = SLOW_LIMIT_S if peer in SLOW else LIMIT_S
        task |= {"peer": peer, "l2": l2, "threads": threads, "limit_s": limit_s}
        own = sys.executable if peer in (OURS, *SCIKIT_LEARN) else python
        clock = os.environ.get("ELASTICML_BENCH_CLOCK", "elapsed")
        return store.run(
            f"{_name(peer, threads)}, {sets[0]}{what}",
            {**task, "python": own, "clock": clock},
            lambda: process(task, own),
            has_ended,
        )

    once = {_name(*way): lines for way in ways if (lines := run(*way, "")) is not None}
    repeated: Runs = {}
    for way in ways:
        there = first_there(once.get(_name(*way), []), least_of(once))
        if there is not None:
            lines = run(*way, ", again", efforts=[there["effort"]] * store.few(REPEATS, 2))
            if lines is not None:
                repeated[_name(*way)] = lines
    return once, repeated


def _name(peer: str, threads: int) -> str:
    return f"{peer}, {threads} thread{'s' if threads > 1 else ''}"


def least_of(found: Runs) -> float:
    """Return the best objective that any peer has reached."""
    reached = [t["objective"] for entry in found.values() for t in entry if "objective" in t]
    return min(reached, default=math.nan)


def first_there(lines: list[dict[str, Any]], least: float) -> dict[str, Any] | None:
    """Return a peer's first fit that is close enough to the best objective."""
    fits = (line for line in lines if "objective" in line)
    return next((line for line in fits if line["objective"] <= least * (1 + TARGET)), None)


def has_ended(lines: list[dict[str, Any]]) -> bool:
    """Return whether a peer is available and finished its fits."""
    return not any("none" in line for line in lines)


def process(task: dict[str, Any], python: str) -> list[dict[str, Any]]:
    """Run one peer in a separate process."""
    program = Path(__file__).with_name("snapml_fit.py")
    environment = {**os.environ, **dict.fromkeys(_THREADS, str(task["threads"]))}
    patience_s = 60.0 + 4.0 * task["limit_s"]
    try:
        done = subprocess.run(
            [python, program, json.dumps(task)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience_s,
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        text = out.decode() if isinstance(out, bytes) else out
        # The last line may have been cut off.
        return [*_read(text[: text.rfind("\n") + 1]), {"none": f"no end after {patience_s:g} s"}]
    lines = _read(done.stdout)
    if done.returncode:
        lines.append({"none": " ".join(done.stderr.strip().splitlines()[-1:])})
    return lines


def _read(report: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.splitlines() if line.startswith("{")]


def figure(store: Store, python: str) -> Figure:
    """Fit on the generated set, and on Criteo's own sample."""
    rows, columns = store.few((300_000, 1_000_000), (2_000, 5_000))
    folder = store.folder / "data"
    sets = snapml_data.generated(folder, rows, columns)
    once, repeated = runs(store, sets, L2, python)
    panels = [scatter(f"Criteo-shaped, {rows:,} rows", once)]
    heading = f"Criteo-shaped, {rows:,} rows, {columns:,} columns, l2 {L2:g}"
    tables = [(heading, table(once, repeated))]
    if (snapml_data.DATA / "criteo_sample").is_dir():
        small = runs(store, snapml_data.sample(folder), SAMPLE_L2, python)
        heading = f"Criteo's own sample, {snapml_data.SAMPLE_TRAIN} rows, l2 {SAMPLE_L2:g}"
        tables.append((heading, table(*small)))
    return Figure(
        title="Single node: test log-loss against time",
        panels=tuple(panels),
        tables=tuple(tables),
    )


def scatter(title: str, found: Runs) -> Panel:
    """Each peer's fits from the least effort to the most."""
    lines: dict[str, Line] = {}
    for name, entry in found.items():
        points = [(line["s"], line["logloss"]) for line in entry if "logloss" in line]
        if points:
            lines[name] = sorted(points)
    return Panel(title=title, x="seconds of a fit", y="mean log-loss of the test set", lines=lines)


def table(once: Runs, repeated: Runs) -> str:
    """Seconds to the target, the log-loss there, and the best log-loss, or why there are none."""
    least, rows = least_of(once), []
    for name, entry in once.items():
        fits = [line for line in entry if "objective" in line]
        there = first_there(entry, least)
        again = [line["s"] for line in repeated.get(name, []) if "s" in line]
        best = min((t["logloss"] for t in fits), default=math.nan)
        rows.append(
            [
                name,
                spread(again) if again else number(there["s"] if there else math.nan),
                f"{there['logloss']:.5f}" if there else "–",
                f"{best:.5f}" if fits else "–",
                number(next((t["first_s"] for t in entry if "first_s" in t), math.nan)),
                next((line["none"] for line in entry if "none" in line), ""),
            ]
        )
    head = ["peer", f"s to {TARGET:g}", "test log-loss there", "best of all", "first fit, s", "why"]
    return markdown(head, rows)
