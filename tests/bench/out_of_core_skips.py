"""Savings from skipping chunks when data stream from disk: bytes read and seconds to a gap.

    python tests/bench/out_of_core_skips.py [--sets kdd shuffled rcv1] [--gap 1e-4] [--runs 3]

kdd is KDD Cup 99's 10 % in its original order, where long stretches are similar, and "shuffled" the
same in random order; rcv1 has RCV1's shape, 400,000 rows, all chunks similar. In one process, with
the trainer, the member's own solver and an out-of-core store: chunks of 64 KiB, an eighth of which
stays in memory. The page cache is emptied of the files before each exchange, so that the disk is
read.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticml.algorithms.base import Exchange, Model, Outcome
from elasticml.algorithms.cocoa import cocoa_exchanges
from elasticml.algorithms.cocoa.solver import CocoaSolver
from elasticml.algorithms.cocoa.trainer import make_trainer
from elasticml.algorithms.parallel import Serial
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.out_of_core.store import OutOfCoreStore, plan_residency
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.convert import convert
from elasticml.data.readers.converted import ConvertedSource
from elasticml.data.source import Source
from elasticml.data.synthetic.sparse import synthetic
from elasticml.ids import ExchangeId
from elasticml.protocol.events import ExchangeHeader

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import harness

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "papers"))
from support import cocoa_data

from tests.bench.out_of_core import forget

#: Bytes of a chunk.
CHUNK_BYTES = 64 * 2**10


@dataclass(slots=True, kw_only=True)
class Spent:
    """The cost of one fit."""

    gap: float = np.inf
    seconds: float = 0.0
    passes: int = 0
    certificates: int = 0
    #: Bytes read by passes and by certificates, as multiples of all bytes.
    passes_read: float = 0.0
    certificates_read: float = 0.0


def source_of(name: str) -> Source:
    """Return a data set by its name here."""
    if name == "rcv1":
        return synthetic("rcv1", 400_000, seed=1, dtype="float32")
    X, y = cocoa_data.kdd(1)
    if name == "shuffled":
        order = np.random.default_rng(0).permutation(y.size)
        X, y = X[order], y[order]
    return from_arrays(X, y, dtype="float32")


def fit(source: ConvertedSource, settings: Mapping[str, Any], gap: float) -> Spent:
    """Train until the gap is certified, or for 300 rounds."""
    blocks = [source.read(block.index, None, 1) for block in source.blocks()]
    facts = merge_summaries([summary for _, summary in blocks])
    loose = [chunk for chunks, _ in blocks for chunk in chunks]
    out_of_core = OutOfCoreStore(0, Path(source.path), lambda: 0)
    out_of_core.batch_bytes = 2**20
    out_of_core.limit_bytes = facts.nbytes // 8 + 6 * out_of_core.batch_bytes
    chunks = out_of_core.settle(loose)
    solver, spent = CocoaSolver(settings, facts), Spent()
    trainer, rounds, answer = make_trainer(settings, facts, "reload"), 0, None
    while rounds < 300:
        try:
            request = trainer.send(answer)
        except StopIteration as end:
            model: Model = end.value
            spent.gap = float(model.gap or 0.0)
            return spent
        if not isinstance(request, Exchange):
            rounds, answer = rounds + 1, rounds < 299
            continue
        forget(Path(source.path))
        before, began_s = out_of_core.streamed_bytes, time.perf_counter()
        plan_residency(chunks)
        id = ExchangeId(spent.passes + spent.certificates + 1)
        work = ExchangeHeader(
            exchange=id,
            operation=request.operation,
            model=request.model,
            parameters=request.parameters,
            returns=request.returns,
            members=1,
        )
        arrays = solver.compute(work, chunks, Serial())
        spent.seconds += time.perf_counter() - began_s
        read = (out_of_core.streamed_bytes - before) / facts.nbytes
        if request.operation == cocoa_exchanges.PASS:
            spent.passes, spent.passes_read = spent.passes + 1, spent.passes_read + read
        else:
            spent.certificates += 1
            spent.certificates_read += read
        answer = Outcome(exchange=id, arrays=arrays, examples=facts.n_rows, absent_examples=0)
    return spent


def main() -> None:
    """Measure."""
    parser = harness.parser(__doc__)
    parser.add_argument("--sets", nargs="+", default=["kdd", "shuffled", "rcv1"])
    parser.add_argument("--gap", type=float, default=1e-4)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            made = convert(source_of(name), Path(folder) / name, chunk_bytes=CHUNK_BYTES)
            for loss in ("hinge", "logistic"):
                settings = {"loss": loss, "l2": options.l2, "tolerance": options.gap}
                some: dict[bool, list[Spent]] = {False: [], True: []}
                for run in range(options.runs):
                    for skip, spents in some.items():
                        spents.append(
                            fit(made, {**settings, "skip": skip, "seed": run}, options.gap)
                        )
                for skip, spents in some.items():
                    one = sorted(spents, key=lambda spent: spent.seconds)[len(spents) // 2]
                    print(
                        f"{name:9} {loss:9} {'skips' if skip else 'all':6}"
                        f"{statistics.median(s.seconds for s in spents):7.2f} s  "
                        f"{one.passes:4} passes read {one.passes_read:6.2f} times, "
                        f"{one.certificates:3} certificates {one.certificates_read:6.2f} times, "
                        f"gap {one.gap:.2g}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
