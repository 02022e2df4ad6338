"""A job's round against its bare exchange: four members of one host, next to nothing to compute.

    python -m tests.bench round [--members 4] [--columns 1000 47028] [--rounds 600] [--turns 3]
                                 [--docs FILE]

The data have one example a member, so that a round is its exchanges and what driver and members do
for them. Rounds of jobs and the bare exchange of ``exchange.py``, with vectors as long as the
model, take turns. Printed are medians of the wall milliseconds of an exchange in a job (a round's
time divided by its exchanges), and the processor microseconds of the scheduler's process, of a
member's and of the client's for it: the difference between a long job and a short one, so that the
start of a job does not count.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

import elasticml as em
from elasticml.clusters.process_setup import configure_dask
from tests.bench import exchange as bare
from tests.bench import harness

#: Rounds at the start of a job that do not count: functions that run on the event loop do so after
#: some brief calls, and the first exchanges of a process are slower.
WARM_UP = 100


def job_of(kind: str, n_members: int, columns: int, rounds: int) -> em.Job:
    """Return a job whose members have one example each, of three values."""
    rng = np.random.default_rng(0)
    n = n_members
    places = np.sort(rng.choice(columns - 1, (n, 2)), axis=1)
    indices = np.column_stack([places, np.full(n, columns - 1)]).ravel()
    matrix = (rng.standard_normal(3 * n), indices, 3 * np.arange(n + 1))
    X = sp.csr_matrix(matrix, shape=(n, columns))
    X.sum_duplicates()
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    if kind == "cocoa":
        algorithm: Any = em.CoCoA(loss="hinge", l2=1e-6, intercept=False, tolerance=0, scale="none")
    else:
        algorithm = em.BatchGradient(
            loss="logistic",
            l2=1e-9,
            optimizer="gd",
            step="constant",
            step_size=1e-6,
            tolerance=0,
            intercept=False,
            scale="none",
        )
    stop = em.Stop(rounds=rounds)
    return em.Job(algorithm, em.from_arrays(X, y), stop=stop, evaluate=False, chunk_size=64)


def processor_of_job(client: Client, job: em.Job) -> tuple[list[Any], tuple[float, float, float]]:
    """Run a job; return its story, and the processor seconds of driver, member and client."""
    clock = time.process_time
    before = client.run_on_scheduler(clock), client.run(clock), clock()
    records = list(job.start(client).events())
    after = client.run_on_scheduler(clock), client.run(clock), clock()
    worker = statistics.median(after[1][w] - before[1][w] for w in before[1])
    return records, (after[0] - before[0], worker, after[2] - before[2])


def run_job(client: Client, job: em.Job, short: em.Job) -> dict[str, float]:
    """Run a job and a short one; return the figures of an exchange."""
    first, first_s = processor_of_job(client, short)
    records, whole_s = processor_of_job(client, job)
    ends = [r["t"] for r in records if r["event"] == "RoundEnded"]
    n, n_first = (sum(r["event"] == "ExchangeEnded" for r in story) for story in (records, first))
    each = n / len(ends)
    times = np.diff(ends)[WARM_UP:]
    driver, member, watcher = (
        1e6 * (a - b) / (n - n_first) for a, b in zip(whole_s, first_s, strict=True)
    )
    return {
        "ms": 1e3 * float(np.median(times)) / each,
        "min": 1e3 * float(times.min()) / each,
        "exchanges": each,
        "driver": driver,
        "member": member,
        "client": watcher,
    }


def bare_ms(n_members: int, columns: int) -> float:
    """Return the median milliseconds of a bare exchange."""
    way = bare.SHARED
    times = asyncio.run(bare.measure(n_members, (columns,), 10, False, [way]))
    return 1e3 * statistics.median(times[way][columns])


def main(
    *,
    members: int = 4,
    columns: Sequence[int] = (1000, 47_028),
    rounds: int = 600,
    turns: int = 3,
    kinds: Sequence[str] = ("cocoa", "batch gradient"),
    docs: Path | None = None,
) -> None:
    """Measure, print and write; with ``--docs`` docs/figures/round.json."""
    harness.one_thread()
    configure_dask(dashboard=False)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    harness.head(
        "job", "columns", "exchanges", "ms", "min", "driver, member, client us", "bare ms", keys=2
    )
    rows: list[list[Any]] = []
    for width in columns:
        ways: dict[str, Any] = {}
        with em.LocalCluster(members, threads=1) as cluster, Client(cluster) as client:
            for kind in kinds:
                job = job_of(kind, members, width, rounds)
                short = job_of(kind, members, width, WARM_UP)
                ways[kind] = lambda job=job, short=short: run_job(client, job, short)
            ways["bare"] = lambda width=width: bare_ms(members, width)
            figures = harness.interleaved(ways, turns)
        base = statistics.median(figures.pop("bare"))
        for kind, runs in figures.items():
            middle = {k: statistics.median(run[k] for run in runs) for k in runs[0]}
            whole, exchange = middle["ms"], middle["exchanges"]
            figures_us = [round(middle[whose]) for whose in ("driver", "member", "client")]
            cells = (exchange, whole, base, whole / base)
            rows.append([kind, width, *(round(cell, 3) for cell in cells), *figures_us])
            harness.row(
                kind,
                width,
                f"{middle['exchanges']:.2f}",
                f"{middle['ms']:.3f} ({middle['ms'] / base:.2f})",
                f"{middle['min']:.3f}",
                ", ".join(str(us) for us in figures_us),
                f"{base:.3f}",
            )
    if docs:
        write_docs(docs, members, rows)


def write_docs(path: Path, members: int, rows: list[list[Any]]) -> None:
    """Write the figures as a table of the documentation."""
    harness.write_docs(
        path,
        order=41,
        title="A job's round against its exchange",
        command="python -m tests.bench round --docs docs/figures/round.json",
        text=f"{members} members on one host, with one example each. *ms in a job*: "
        "milliseconds of an exchange within a job, which is a round's time divided by its "
        "exchanges. *bare ms*: the same vectors, exchanged without a job. The two were measured "
        "alternately; medians. *driver*, *member*, *client*: processor time of each process in a "
        "steady exchange, which is the difference between a long job and a short one.",
        columns=[
            *("job", "doubles", "exchanges a round", "ms in a job", "bare ms", "ratio"),
            *("driver, µs of processor time", "member, µs", "client, µs"),
        ],
        rows=rows,
    )
