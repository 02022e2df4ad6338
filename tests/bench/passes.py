"""How fast gradients and Hessian products go over data larger than the caches.

    python -m tests.bench passes [--mib 256] [--threads 1 2] [--kinds csr dense64 dense32 sequence]
                                  [--cpu] [--docs FILE]

Through the solver, as members compute: ``new`` is a gradient at a model without cached margins
(both products), ``step`` a gradient one step along a direction (the transpose alone), ``probe`` the
margins of a direction and a few lengths, ``hessian`` a product with the Hessian. Printed are
gigabytes of the chunks' bytes per second, the share of a plain read of the same bytes by as many
threads, and examples per second. Reads and passes are timed in turn; the best of each counts. On a
shared machine ``--cpu`` counts CPU seconds instead, which estimates a thread that runs alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from elasticml.algorithms.batch_gradient.solver import BatchGradientSolver
from elasticml.algorithms.parallel import runs
from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk, sequence_chunk
from elasticml.data.chunks.ngrams import codes_of_letters, sequence_layout
from elasticml.ids import ChunkId, ExchangeId
from elasticml.protocol.events import ExchangeHeader
from elasticml.runtime.executors import parallel as pool_of
from tests.bench import harness
from tests.serial_world import facts_of

MIB = 2**20
REPEATS = 9
WANTED = 0.6
KINDS = ("csr", "dense64", "dense32", "sequence")


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def read(words: np.ndarray) -> int:
    """Sum all words: the cost of a pass that only reads."""
    total = np.uint64(0)
    for i in range(words.size):
        total += words[i]
    return total


def chunks_of(kind: str, size: int, rng: np.random.Generator) -> list[Chunk]:
    """Chunks of 1 MiB with random contents, ``size`` bytes in all."""
    k = -(-size // MIB)
    ids = [ChunkId("0" * 16, 0, i) for i in range(k)]
    if kind == "sequence":
        layout, rows = sequence_layout("ACGT", 141, (1, 4)), MIB // 149
        letters = rng.choice(4, p=[0.32, 0.18, 0.18, 0.32], size=(rows, 141)).astype(np.uint8)
        codes = codes_of_letters(letters, 4, 4)
        return [
            sequence_chunk(id, signs(rows, rng), codes[rng.permutation(rows)], layout) for id in ids
        ]
    if kind.startswith("dense"):
        dtype = "float" + kind.removeprefix("dense")
        rows = MIB // (128 * np.dtype(dtype).itemsize)
        values = rng.standard_normal((rows, 128))
        return [
            dense_chunk(id, signs(rows, rng), values[rng.permutation(rows)], dtype=dtype)
            for id in ids
        ]
    # Words of texts: 75 of 47,236, some far more frequent than others.
    rows, d = MIB // (12 * 75 + 12), 47_236
    made = []
    for id in ids:
        words = np.minimum(d * rng.random((rows, 90)) ** 3, d - 1).astype(np.int64)
        parts = [np.unique(row)[:75] for row in words]
        indptr = np.concatenate([[0], np.cumsum([part.size for part in parts])])
        values = rng.standard_normal(int(indptr[-1]))
        made.append(csr_chunk(id, signs(rows, rng), indptr, np.concatenate(parts), values, d))
    return made


def signs(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(n) < 0.5, 1.0, -1.0)


def passes(chunks: list[Chunk], parallel: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the solver's passes by name, in an order in which each has the caches that it needs."""
    facts = facts_of(chunks)
    solver = BatchGradientSolver({"loss": "logistic"}, facts)
    d = facts.n_columns
    rng = np.random.default_rng(1)
    w, p = 0.01 * rng.standard_normal(d), 0.01 * rng.standard_normal(d)
    serial = iter(range(1, 10**9))
    now = {"point": 0, "direction": 0}

    def ask(operation: str, model: dict[str, np.ndarray], **parameters: Any) -> None:
        work = ExchangeHeader(
            exchange=ExchangeId(1),
            operation=operation,
            model=model,
            parameters=parameters,
            returns={},
        )
        solver.compute(work, chunks, parallel)

    def new() -> None:
        now["point"] = next(serial)
        ask("gradient", {"w": w}, point=now["point"])

    def probe() -> None:
        now["direction"] = next(serial)
        model = {"direction": p, "steps": np.array([1.0, 0.5, 0.25, 0.125])}
        ask("probe", model, point=now["point"], direction=now["direction"])

    def step() -> None:
        base, now["point"] = now["point"], next(serial)
        parameters = {"base": base, "direction": now["direction"], "step": 1e-9}
        ask("gradient", {"w": w}, point=now["point"], **parameters)

    def hessian() -> None:
        ask("product", {"v": p}, point=now["point"])

    yield from (("new", new), ("probe", probe), ("step", step), ("hessian", hessian))


def main(
    *,
    mib: int = 256,
    threads: Sequence[int] = (1, 2),
    kinds: Sequence[str] = KINDS,
    cpu: bool = False,
    docs: Path | None = None,
) -> int:
    """Print the table; ``--docs`` writes docs/figures/passes.json. Return the exit code."""
    if cpu and list(threads) != [1]:
        raise SystemExit("--cpu adds the threads' seconds up: give --threads 1 with it")
    clock = time.process_time if cpu else time.perf_counter
    columns = ("read GB/s", "GB/s", "share", "rows/s")
    harness.head("chunks", "threads", "pass", *columns, keys=3)
    least, rows_of_docs = 1.0, []
    for kind in kinds:
        chunks = chunks_of(kind, mib * MIB, np.random.default_rng(0))
        n_bytes, rows = sum(len(c.body) for c in chunks), sum(c.n_rows for c in chunks)
        words = {c.id: np.frombuffer(c.body[: len(c.body) // 8 * 8], np.uint64) for c in chunks}
        for k in threads:
            pool = pool_of(k)

            def plain(pool=pool, chunks=chunks, words=words, k=k):
                pool.map(lambda part: [read(words[c.id]) for c in part], runs(chunks, k))

            ways = {"read": plain, **dict(passes(chunks, pool))}
            timings = {name: harness.seconds_of(run, clock) for name, run in ways.items()}
            times = harness.interleaved(timings, REPEATS, warm_up=1)
            read_s = min(times.pop("read"))
            shares = {name: round(100 * read_s / min(took)) for name, took in times.items()}
            rows_of_docs.append([kind, k, round(n_bytes / read_s / 1e9, 1), *shares.values()])
            for name, took in times.items():
                share = read_s / min(took)
                if kind != "sequence":
                    least = min(least, share)
                speeds = [f"{n_bytes / s / 1e9:.1f}" for s in (read_s, min(took))]
                harness.row(kind, k, name, *speeds, f"{share:.0%}", f"{rows / min(took):,.0f}")
    if docs:
        command = f"--mib {mib} --threads {' '.join(map(str, threads))} --kinds {' '.join(kinds)}"
        command += " --cpu" if cpu else ""
        write_docs(docs, command, rows_of_docs)
    print(f"least share of a plain read: {least:.0%}, wanted {WANTED:.0%}")
    return 0 if least >= WANTED else 1


def write_docs(path: Path, command: str, rows: list[list[Any]]) -> None:
    """Write the shares as a table of the documentation."""
    harness.write_docs(
        path,
        order=42,
        title="Passes of batch gradient over data larger than the caches",
        command=f"python -m tests.bench passes {command} --docs {path}",
        text="The speed of a pass in percent of the speed of a plain read of the same bytes by as "
        "many threads. The two were measured alternately; each value is the best of nine. *New*: a "
        "gradient at a new model. *Probe*: the margins of a search direction. *Step*: a gradient "
        "after a step along that direction. *Hessian*: a product with the Hessian."
        + (" Processor seconds instead of wall seconds." if "--cpu" in command else ""),
        columns=["chunks", "threads", "read, GB/s", "new, %", "probe, %", "step, %", "Hessian, %"],
        rows=rows,
    )
