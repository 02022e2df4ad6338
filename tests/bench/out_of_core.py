"""Passes over chunks that do not fit into memory: seconds per epoch and memory, and the parts
alone.

    python -m tests.bench out_of_core DATA [--limit "1 GiB"] [--epochs 3] [--threads 1]

DATA is a folder of ``elasticml convert``, several times as large as the limit; for instance 8 GiB
with RCV1's shape, 14.2 million rows:

    python -m tests.bench out_of_core --make 14200000 DATA

and with Criteo's:

    python -m tests.bench out_of_core --make 6000000 --shape criteo DATA

In one process, with the member's own store and solver: compute: CoCoA's pass over half a limit of
chunks in memory, scaled to all bytes, in the first pass and later; read: all bodies fetched in
order and released, without work; then CoCoA's passes over all, streamed. Before each of the last
two the page cache is emptied of the files.

With ``--throttle "200 MB"``, as root on a system of control groups of version 1, limits the
process's reads from the disk of DATA to that rate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from elasticml.algorithms.cocoa import cocoa_exchanges
from elasticml.algorithms.cocoa.solver import CocoaSolver
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.out_of_core.mapped_memory import resident_bytes
from elasticml.data.out_of_core.store import plan_residency
from elasticml.data.readers.chunk_folder import ChunkFolder, convert, read_chunks
from elasticml.ids import ExchangeId, parse_size
from elasticml.protocol.events import ExchangeHeader
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.executors import parallel
from elasticml.runtime.worker_limits import WorkerLimits
from examples.papers.support.shaped_rows import synthetic
from tests.bench import harness
from tests.bench.harness import seconds

#: Penalty.
L2 = 1e-4


def forget(folder: Path) -> None:
    """Empty the page cache of the folder's files."""
    for path in folder.glob("*.chunks"):
        with path.open("rb") as file:
            # Unwritten pages cannot leave the page cache.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def throttled(folder: Path, bytes_per_s: int | None) -> Iterator[None]:
    """Limit this process's reads from the disk that holds a folder, in bytes per second."""
    if bytes_per_s is None:
        yield
        return
    disk = os.stat(folder).st_dev
    groups = Path("/sys/fs/cgroup/blkio")
    group = groups / f"elasticml-{os.getpid()}"
    group.mkdir()
    rule = f"{os.major(disk)}:{os.minor(disk)} {bytes_per_s}"
    (group / "blkio.throttle.read_bps_device").write_text(rule)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (groups / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def load(source: ChunkFolder, limit: int, n_bytes: int | None = None) -> tuple[
    ChunkStore, DatasetStats
]:  # fmt: skip
    """Read blocks as a member does, all or the first bytes up to a limit."""
    budget = WorkerLimits(folder=Path(source.path).parent).at_most(limit)
    store, summaries, held = budget.store(), [], 0
    for block in source.blocks():
        summaries.append(store.read(source, block.index, None, 1, False)[1])
        held += block.nbytes
        if n_bytes is not None and held >= n_bytes:
            break
    return store, merge_summaries([s for s in summaries if s is not None])


class Passes:
    """CoCoA's passes over some chunks, on one member."""

    def __init__(self, facts: DatasetStats, chunks: Sequence[Chunk], n_threads: int) -> None:
        self._solver = CocoaSolver({"loss": "hinge", "l2": L2}, facts)
        self._chunks = chunks
        self._parallel = parallel(n_threads)
        self._weight = float(facts.n_rows)
        self._v = np.zeros(facts.n_columns)
        self._serial = 0
        self.ask(cocoa_exchanges.CERTIFY, {"fill": "zero"})

    def ask(self, operation: str, more: dict[str, float | str]) -> dict[str, np.ndarray]:
        """Run one exchange."""
        key = "sent" if operation == cocoa_exchanges.CERTIFY else "v"
        gamma = 1.0 if self._serial > 1 else 0.0
        parameters = {"serial": self._serial, "settle": self._serial - 1, "gamma": gamma, **more}
        self._serial += 1
        plan_residency(self._chunks)
        work = ExchangeHeader(
            exchange=ExchangeId(self._serial),
            operation=operation,
            model={key: self._v},
            parameters=parameters,
            returns={},
        )
        return dict(self._solver.compute(work, self._chunks, self._parallel))

    def step(self) -> None:
        """Make one pass over all rows."""
        more: dict[str, float | str] = {
            "weight": self._weight,
            "damping": 1.0,
            "local_epochs": 1.0,
            "seed": 0,
            "sigma": 0.0,
            "sigma_per_member": 0.0,
            "exact": False,
        }
        self._v = self._v + self.ask(cocoa_exchanges.PASS, more)["dv"]

    def certify(self) -> float:
        """Return the duality gap, relative to the objective."""
        parts = self.ask(cocoa_exchanges.CERTIFY, {"fill": "zero"})
        norm = 0.5 * L2 * float(self._v @ self._v)
        primal = float(parts["primal"]) / self._weight + norm
        return (primal - float(parts["dual"]) / self._weight + norm) / primal


def main(
    data: Path,
    *,
    make: int | None = None,
    shape: str = "rcv1",
    limit: str = "1 GiB",
    epochs: int = 3,
    threads: int = 1,
    throttle: str | None = None,
) -> None:
    """Measure, or make the data of so many rows; ``throttle`` is bytes of reading a second."""
    if make:
        convert(synthetic(shape, make, seed=1, dtype="float32"), data)
        return
    with throttled(data, parse_size(throttle) if throttle else None):
        measure(data, parse_size(limit), epochs, threads)


def measure(data: Path, limit: int, epochs: int, threads: int) -> None:
    """Measure and print."""
    source = read_chunks(str(data))
    total = sum(block.nbytes for block in source.blocks())
    print(f"{total / 2**30:.2f} GiB of chunks, limit {limit / 2**30:.2f} GiB")

    store, facts = load(source, 8 * limit, limit // 2)
    inside = Passes(facts, store.own(store.ids()), threads)
    share = facts.nbytes / total
    # From zero, with the norms: every row changes.
    first_s = seconds(inside.step) / share
    compute_s = min(seconds(inside.step) for _ in range(2)) / share
    harness.head("part", "s", "GB/s", "of the larger part", "GiB streamed", "chunks that stay")
    harness.row("computing alone, first pass", f"{first_s:.2f}", f"{total / first_s / 1e9:.2f}")
    harness.row("computing alone", f"{compute_s:.2f}", f"{total / compute_s / 1e9:.2f}")
    del inside
    store.close()

    with harness.peaks(lambda: {"resident": resident_bytes()}) as peak:
        store, facts = load(source, limit)
        chunks = store.own(store.ids())
        out_of_core = store.out_of_core
        assert out_of_core is not None
        assert store.is_out_of_core
        forget(data)
        batches = out_of_core.batches(chunks)
        read_s = seconds(lambda: list(out_of_core.stages(batches, lambda number: number)))
        harness.row("reading alone", f"{read_s:.2f}", f"{total / read_s / 1e9:.2f}")
        passes = Passes(facts, chunks, threads)
        for epoch in range(epochs):
            forget(data)
            before = out_of_core.streamed_bytes
            epoch_s = seconds(passes.step)
            streamed = out_of_core.streamed_bytes - before
            ratio = epoch_s / max(read_s, compute_s if epoch else first_s)
            cells = (f"{epoch_s:.2f}", f"{total / epoch_s / 1e9:.2f}", f"{ratio:.2f}")
            stay = len(out_of_core.resident)
            harness.row(f"epoch {epoch}", *cells, f"{streamed / 2**30:.2f}", stay)
        forget(data)
        gap = passes.certify()
    harness.report({"relative gap": gap, "memory, of the limit": peak["resident"] / limit})
