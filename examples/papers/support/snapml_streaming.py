"""The streaming figure: reading, permuting and computing alone, and overlapped.

In one process, with a member's own store and solver, like ``tests/bench/out_of_core.py``. The
paper's two interconnects are here an empty page cache, and one that has the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.asgd_figures import Line, Panel
from support.asgd_study import Figure, number
from support.elastic_comparison import markdown
from support.snapml_store import Store

from elasticml.algorithms.cocoa import sdca_kernels
from elasticml.algorithms.cocoa.permutation import bucket_for
from elasticml.data.out_of_core.mapped_memory import resident_bytes
from elasticml.data.readers.chunk_folder import convert, read_chunks
from examples.papers.support.shaped_rows import synthetic
from tests.bench.harness import seconds
from tests.bench.out_of_core import Passes, forget, load

#: Memory for data besides the process's other memory, as shares of all bytes of data.
SHARES = (0.125, 0.25, 0.5)
#: Epochs of which the last is reported: the first computes the rows' norms, too.
EPOCHS = 3
PARTS = ("read", "permute", "compute")
CACHES = {"cold": "page cache empty", "warm": "files in the page cache"}


def figure(store: Store) -> Figure:
    """Measure an epoch and its parts under each limit, with and without files in the cache."""
    rows = store.few(2_400_000, 20_000)
    folder = store.folder / "data" / f"texts-{rows}"
    results: dict[tuple[str, float], dict[str, float]] = {}
    for share in SHARES:
        for cache in CACHES:
            settings = {"shape": "rcv1", "rows": rows, "share": share, "cache": cache}
            settings["limit"] = "share of the data and what else the process takes"
            name = f"streaming, {share:g} of the data, {CACHES[cache]}"
            entry = store.run(
                name, settings, lambda s=share, c=cache: measured(folder, rows, s, c == "cold")
            )
            if entry is not None:
                results[cache, share] = entry
    panels, table, notes = [], [], ""
    for cache, words in CACHES.items():
        lines: dict[str, Line] = {}
        for (at, share), entry in results.items():
            if at != cache:
                continue
            total = sum(entry[part] for part in PARTS)
            for part in (*PARTS, "epoch"):
                lines[part] = [*lines.get(part, []), (share, entry[part])]
            lines["one after the other"] = [
                *lines.get("one after the other", []),
                (share, total),
            ]
            larger = max(entry["read"], entry["permute"] + entry["compute"])
            table.append(
                [
                    words,
                    f"{share:g}",
                    *(number(entry[part]) for part in PARTS),
                    number(total),
                    number(entry["epoch"]),
                    f"{entry['epoch'] / max(larger, 1e-12):.2f}",
                    f"{total / max(entry['epoch'], 1e-12):.2f}",
                    f"{entry['streamed']:.2f}",
                ]
            )
        shares = {round(entry["streamed"], 2) for (at, _), entry in results.items() if at == cache}
        if len(shares) == 1 and len(results) > len(CACHES):
            notes += f"\n{words}: as much was streamed under every limit.\n"
        panels.append(
            Panel(title=words, x="memory limit, share of the data", y="seconds", lines=lines)
        )
    head = ["files", "limit", *PARTS, "sum", "epoch", "epoch / larger part", "sum / epoch"]
    told_table = markdown([*head, "streamed"], table) + notes
    return Figure(
        title="Streaming: an epoch out of core and its parts",
        panels=tuple(panels),
        tables=((f"{rows:,} rows of RCV1's shape, seconds", told_table),),
    )


def measured(folder: Path, rows: int, share: float, is_cold: bool) -> dict[str, Any]:
    """Measure the parts of an epoch alone, and an epoch.

    Returns
    -------
    dict
        Seconds of ``read`` (all bodies fetched and released), ``permute`` (all orders drawn),
        ``compute`` (the same pass with everything in memory) and ``epoch``; ``streamed`` is the
        share of all bytes that the epoch fetched.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        convert(synthetic("rcv1", rows, seed=1, dtype="float32"), folder)
    source = read_chunks(str(folder))
    total = sum(block.nbytes for block in source.blocks())

    def prepare() -> None:
        if is_cold:
            forget(folder)

    store, facts = load(source, 8 * total)
    inside = Passes(facts, store.own(store.ids()), 1)
    # Later passes skip rows: the same pass is compared.
    compute_s = [seconds(inside.step) for _ in range(EPOCHS)][-1]
    del inside
    store.close()
    # A limit is the whole process's: its other memory is added to the data's share.
    limit = int(share * total) + resident_bytes()
    store, facts = load(source, limit)
    chunks = store.own(store.ids())
    out_of_core = store.out_of_core
    if out_of_core is None:
        raise RuntimeError(f"{total} bytes fit into {limit}: nothing streams; take more rows")
    batches = out_of_core.batches(chunks)
    prepare()
    read_s = seconds(lambda: list(out_of_core.stages(batches, lambda number: number)))
    bucket = bucket_for(sum(c.n_stored for c in chunks))
    orders = [np.arange(-(-sum(c.n_rows for c in batch) // bucket)) for batch in batches]
    permute_s = seconds(lambda: [sdca_kernels.shuffle(order, 7) for order in orders])
    passes, epochs = Passes(facts, chunks, 1), []
    before = 0
    for _ in range(EPOCHS):
        prepare()
        before = out_of_core.streamed_bytes
        epochs.append(seconds(passes.step))
    streamed = (out_of_core.streamed_bytes - before) / total
    store.close()
    return {
        "read": read_s,
        "permute": permute_s,
        "compute": compute_s,
        "epoch": epochs[-1],
        "streamed": streamed,
    }
