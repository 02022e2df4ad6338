"""A job on a persisted Dask array that is larger than the client may be, and random SIGKILLs.

    python -m tests.bench from_dask [--mib 2048] [--kills 10] [--seed 0] [--json FILE]

`dask scheduler` and three `dask worker` processes with nannies. The client's process gets a limit
of a quarter of the data (``RLIMIT_DATA``, the private memory that it may allocate). Lines, and the
last one as JSON: growth of client and scheduler (largest resident size less that before the fit)
while ``LinearSVC.fit`` runs on the persisted array; seconds of the same job on the array and on a
Parquet file of the same rows; and the difference of the objective when workers are killed at random
moments from submission to the end.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, wait

import elasticml as em
from elasticml.jobs.handle import workers_of
from tests.bench import harness
from tests.stock_cluster import stock_cluster

MIB = 2**20
COLUMNS = 64
PARTITION_MIB = 16
WORKERS = 3
ALGORITHM = em.CoCoA(loss="squared_hinge", l2=1e-2, intercept=False, tolerance=0.0, scale="none")
GAP = 5e-8


class Kills(threading.Thread):
    """Kills random workers; their nannies replace them."""

    def __init__(self, client: Client, count: int, seed: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._client, self._count, self._pause_s = client, count, pause_s
        self._random = random.Random(seed)
        self.killed = 0
        self.done = threading.Event()

    def run(self) -> None:
        while self.killed < self._count and not self.done.is_set():
            self.done.wait(self._random.uniform(0.0, 2.0 * self._pause_s))
            workers = sorted(workers_of(self._client))
            if len(workers) < 2 or self.done.is_set():
                continue
            victim = self._random.choice(workers)
            with suppress(Exception):
                (pid,) = self._client.run(os.getpid, workers=[victim]).values()
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def collections(client: Client, mib: int, seed: int) -> tuple[Any, Any]:
    """Return the persisted rows and labels; each of a partition's rows has a label beside it."""
    rows = max(WORKERS, mib // PARTITION_MIB) * (PARTITION_MIB * MIB // (8 * COLUMNS))
    size = PARTITION_MIB * MIB // (8 * COLUMNS)
    X = da.random.default_rng(seed).normal(size=(rows, COLUMNS), chunks=(size, COLUMNS))
    w = np.random.default_rng(seed).normal(size=COLUMNS)
    y = X.map_blocks(_labels, w, drop_axis=1, dtype=np.float64)
    X, y = client.persist([X, y])
    wait([X, y])
    return X, y


def _labels(X: Any, w: Any) -> Any:
    margins = X @ w
    return np.where(margins + np.sqrt(w @ w) * np.sin(1e4 * margins) > 0.0, 1.0, -1.0)


def write(rows: Any, labels: Any, path: str) -> None:
    """Write a partition to a Parquet file of its own, on the worker that holds it."""
    import pandas as pd

    names = [f"x{j}" for j in range(COLUMNS)]
    pd.DataFrame(rows, columns=names).assign(y=labels).to_parquet(path, compression=None)


def join(folder: str, path: str) -> None:
    """Write the partitions' files to one, a row group for each; in a process of its own."""
    import pyarrow.parquet as pq

    files = sorted(Path(folder).iterdir())
    with pq.ParquetWriter(path, pq.read_schema(files[0]), compression="none") as writer:
        for file in files:
            table = pq.read_table(file)
            writer.write_table(table, row_group_size=len(table))
            file.unlink()


def seconds_of(client: Client, data: Any) -> tuple[float, float, Any]:
    """Return the seconds of a job to the gap, its objective, and the result."""
    began = time.monotonic()
    result = em.Job(ALGORITHM, data, stop=em.Stop(gap=GAP, rounds=1000), evaluate=False).run(client)
    return time.monotonic() - began, float(result.summary["objective"]), result


def main(*, mib: int = 2048, kills: int = 10, seed: int = 0, json: Path | None = None) -> None:
    """Run the whole, and print its figures."""
    figures: dict[str, Any] = {"mib": mib}
    with tempfile.TemporaryDirectory(prefix="em") as folder, stock_cluster(Path(folder)) as cluster:
        for k in range(WORKERS):
            cluster.worker(f"w{k}", "--memory-limit", "0")
        with cluster.client() as client, client.as_current():
            cluster.await_workers(client, WORKERS)
            X, y = collections(client, mib, seed)
            path, parts_at = f"{folder}/rows.parquet", f"{folder}/parts"
            os.mkdir(parts_at)
            parts = zip(X.to_delayed().ravel(), y.to_delayed().ravel(), strict=True)
            file = dask.delayed(write)
            files = [file(*part, f"{parts_at}/{k:05}.parquet") for k, part in enumerate(parts)]
            wait(client.compute(files))
            process = get_context("spawn").Process(target=join, args=(parts_at, path))
            process.start()
            process.join()
            seconds_of(client, em.from_dask(X[: 100 * COLUMNS], y[: 100 * COLUMNS]))  # imports
            limit = mib * MIB // 4
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            figures["client_limit_mib"] = limit // MIB
            pids = {"client": os.getpid(), "scheduler": cluster.processes["scheduler"].pid}
            seen = {name: psutil.Process(pid) for name, pid in pids.items()}
            look = lambda: {name: p.memory_info().rss / MIB for name, p in seen.items()}  # noqa: E731
            before = look()
            with harness.peaks(look) as largest:
                began = time.monotonic()
                C = 1.0 / (ALGORITHM.l2 * X.shape[0])  # the same problem as the jobs'
                model = em.LinearSVC(C=C, tol=1e-6, client=client).fit(X, y)
                figures["fit_s"] = round(time.monotonic() - began, 2)
            figures["path"] = model.solver_path_
            for name, mib_now in largest.items():
                figures[f"{name}_growth_mib"] = round(mib_now - before[name], 1)
            print(figures, flush=True)
            times: dict[str, list[float]] = {"dask": [], "file": []}
            for _ in range(2):
                seconds, objective, _result = seconds_of(client, em.from_dask(X, y))
                times["dask"].append(round(seconds, 2))
                seconds, at_file, _result = seconds_of(client, em.read_parquet(path, label="y"))
                times["file"].append(round(seconds, 2))
            figures |= {f"{k}_s": min(v) for k, v in times.items()}
            figures["ratio"] = round(min(times["dask"]) / min(times["file"]), 3)
            figures["objective"], figures["file_difference"] = objective, objective - at_file
            print(figures, flush=True)
            pause_s = min(times["dask"]) / (kills + 1)
            killing = Kills(client, kills, seed, pause_s)
            killing.start()
            seconds, killed_objective, result = seconds_of(client, em.from_dask(X, y))
            killing.done.set()
            killing.join()
            figures["killed"], figures["killed_s"] = killing.killed, round(seconds, 2)
            figures["killed_difference"] = killed_objective - objective
            figures["members_lost"] = sum(r["event"] == "MemberLost" for r in result.story)
    harness.report(figures)
    if json:
        harness.report(figures, json)
