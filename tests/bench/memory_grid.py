"""Peak resident memory of stock Dask workers with nannies, by data, size, limit and algorithm.

    python -m tests.bench memory_grid FOLDER [--limits 1GiB 2GiB] [--times 6 2 0.5]
        [--formats csv parquet dask] [--algorithms batch_gradient cocoa kmeans]
        [--cache cold warm] [--cells LIMIT,TIMES,FORMAT,ALGORITHM,CACHE ...] [--rounds 3]
        [--in-memory]

Each cell is a job on ``distributed.LocalCluster(n_workers=2, memory_limit=...)`` with nannies as by
default. The data are TIMES as large as the limit of one worker, by the bytes of their chunks: the
numbers, words and gaps of ``ROWS``, repeated. Files are made in FOLDER, and removed after the cells
of their size; they need as much of the disk as the chunks, the spill files as much again. A cell
with a warm cache follows the one with a cold cache, and only CSV is cached.

Memory is what nannies measure: the resident memory of each worker process, every 20 ms, libraries
and mapped pages of files included. ``share`` is its peak, of the limit; ``restarts`` counts the
processes that a nanny had to start again: the aim is .75 and 0. With ``--in-memory`` each cell runs
again without a limit, and ``ratio`` is the seconds with the limit by those without. ``--cells``
names single cells, in the order in which they run, in place of all combinations.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import dask.dataframe
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import elasticml as em
from elasticml.data.out_of_core.mapped_memory import PAGE_BYTES
from elasticml.ids import parse_size
from tests.bench import harness

#: Rows that are made once and repeated; files hold a multiple of them.
ROWS: Final = 100_000
ALGORITHMS: Final[dict[str, Any]] = {
    "batch_gradient": lambda: em.BatchGradient(loss="logistic", l2=1e-4, tolerance=0.0),
    "cocoa": lambda: em.CoCoA(loss="logistic", l2=1e-4, tolerance=0.0),
    "kmeans": lambda: em.AsyncSGD("kmeans", k=8, passes=1),
}


def rows() -> pd.DataFrame:
    """Make rows of small numbers, measurements and words, with gaps, and a label."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {f"n{k}": rng.integers(0, 10, ROWS).astype(float) for k in range(16)}
    columns |= {f"x{k}": rng.normal(size=ROWS).round(4) for k in range(4)}
    for k in range(0, 20, 3):
        list(columns.values())[k][rng.random(ROWS) < 0.05] = np.nan
    for name, words in {
        "city": ["amsterdam", "berlin", "oslo", "new york", None],
        "job": ["clerk", "nurse", None],
        "color": ["red", "green", "blue"],
    }.items():
        columns[name] = np.array(words, object)[rng.integers(0, len(words), ROWS)]
    margin = columns["x1"] + 0.3 * columns["n1"] - 1.3 + rng.logistic(size=ROWS)
    return pd.DataFrame({**columns, "label": np.where(margin > 0.0, "yes", "no")})


#: Bytes of a chunk for each of these rows.
ROW_BYTES: Final = 300


def source(format: str, n_repeats: int, folder: Path) -> Any:
    """Make the data, unless they are there, and return their source."""
    if format == "dask":
        frame = dask.dataframe.from_map(lambda _: rows(), range(n_repeats), meta=rows().head(2))
        return em.from_dask(frame, label="label", missing="median")
    path = folder / f"{n_repeats}.{format}"
    if format == "csv" and not path.exists():
        text = rows().to_csv(index=False)
        head, _, body = text.partition("\n")
        with path.open("w") as out:
            out.write(head + "\n")
            for _ in range(n_repeats):
                out.write(body)
    if format == "parquet" and not path.exists():
        pd.concat([rows()] * min(n_repeats, 10)).to_parquet(path)
        n_files = -(-n_repeats // 10)
        first, path = path, path.with_suffix("")
        path.mkdir()
        for k in range(n_files):
            os.link(first, path / f"{k:04d}.parquet")
    path = path.with_suffix("") if format == "parquet" else path
    read = em.read_csv if format == "csv" else em.read_parquet
    return read(str(path), "label", missing="median")


def resident(cluster: LocalCluster) -> dict[int, int]:
    """Return the resident bytes of each worker process, by its pid."""
    found = {}
    for pid in [getattr(nanny, "pid", None) for nanny in list(cluster.workers.values())]:
        with suppress(OSError, IndexError):
            found[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return found


def run(data: Any, algorithm: str, limit: str, rounds: int) -> tuple[dict[int, float], float, str]:
    """Run one job; return the peaks by process, its seconds, and its end."""
    with (
        LocalCluster(2, memory_limit=limit, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
        harness.peaks(lambda: resident(cluster)) as peaks,
    ):
        stop = em.Stop(rounds=rounds) if algorithm != "kmeans" else None
        job = em.Job(ALGORITHMS[algorithm](), data, stop=stop, evaluate=False)
        began_s = time.perf_counter()
        try:
            end = job.run(client).summary["stopped_by"]
        except Exception as error:
            end = f"{type(error).__name__}: {error}"[:200]
        return peaks, time.perf_counter() - began_s, end


def main(
    folder: Path,
    *,
    limits: Sequence[str] = ("1GiB", "2GiB"),
    times: Sequence[float] = (6.0, 2.0, 0.5),
    formats: Sequence[str] = ("csv", "parquet", "dask"),
    algorithms: Sequence[str] = tuple(ALGORITHMS),
    cache: Sequence[str] = ("cold", "warm"),
    cells: Sequence[str] = (),
    rounds: int = 3,
    in_memory: bool = False,
) -> None:
    """Run the cells, the largest data first."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    harness.head("limit", "times", "format", "algorithm", "cache", "share", "restarts", "seconds",
        "s in memory", "ratio", "end", keys=5)  # fmt: skip
    chosen = [tuple(cell.split(",")) for cell in cells] or itertools.product(
        limits, times, formats, algorithms, cache
    )
    for (limit, size, format), some in itertools.groupby(chosen, lambda cell: cell[:3]):
        place = Path(tempfile.mkdtemp(dir=folder))
        os.environ["ELASTICML_CACHE"] = str(place / "cache")
        n_repeats = max(1, round(float(size) * parse_size(limit) / ROW_BYTES / ROWS))
        for *_, algorithm, state in some:
            if state == "warm" and format != "csv":
                continue
            if state == "cold":
                shutil.rmtree(place / "cache", ignore_errors=True)
            data = source(format, n_repeats, place)
            peaks, seconds, end = run(data, algorithm, limit, rounds)
            beside = ["", ""]
            if in_memory:
                if state == "cold":
                    shutil.rmtree(place / "cache", ignore_errors=True)
                _, free_s, _ = run(data, algorithm, "0", rounds)
                beside = [f"{free_s:.1f}", f"{seconds / free_s:.2f}"]
            share = max(peaks.values()) / parse_size(limit)
            cell = (limit, size, format, algorithm, state, f"{share:.3f}", len(peaks) - 2)
            harness.row(*cell, f"{seconds:.1f}", *beside, end)
        shutil.rmtree(place)
