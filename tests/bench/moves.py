"""Time chunk moves: from member to member, a reshuffle of all owners, and a scale-in of a job.

    python tests/bench/moves.py [links] [redeal] [scale-in] [--chunks 256] [--mib 256] [--json FILE]

Real worker processes on loopback. ``links`` compares a move of 1 MiB chunks with bare sockets
between the same two processes, taking turns: one socket receives into the same buffer repeatedly,
the other keeps the received data, as a member does; ``redeal`` moves the states of 512 chunks among
four members that hold all bodies; ``scale-in`` takes two of four workers from a running job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Worker

import elasticml as em
from elasticml.data.readers.npz import read_npz

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

MIB = 2**20
#: Examples and columns of a chunk of 1 MiB.
ROWS, COLUMNS = 1300, 100
REDEAL_CHUNKS = 512
REDEAL_MEMBERS = 4


# --- what runs on the workers -----------------------------------------------------------------


def prepare(
    member: int, n: int, columns: int, state: bool, owned: slice, *, dask_worker: Worker
) -> int:
    """Make chunks here, and a chunk transport that listens; return a chunk's bytes."""
    from elasticml.collective.dask_transport import transport_of
    from elasticml.control.effects import Report, SetStates, StoreChunks
    from elasticml.control.member_machine import Member
    from elasticml.data.chunks.chunk import dense_chunk
    from elasticml.ids import ChunkId, MemberId
    from elasticml.runtime.chunks.chunk_links import ChunkTransport
    from elasticml.runtime.chunks.chunk_store import ChunkStore

    rng = np.random.default_rng(member)
    store, reports = ChunkStore(), []
    values = rng.normal(size=(ROWS, columns))
    for k in list(range(n))[owned]:
        chunk = dense_chunk(ChunkId("bench", 0, k), np.ones(ROWS), values)
        if state:
            chunk.state = {"alpha": rng.random(ROWS), "step": rng.random(ROWS)}
            chunk.state["serial"] = np.array([member])
        store.put([chunk])

    me = MemberId(member, 1)
    machine = Member(me, store)

    def report(command: Report) -> None:
        entry = command.event
        reports.append((time.monotonic(), type(entry).__name__, len(entry.chunks)))

    def feed(event: Any) -> None:
        for command in machine.handle(event, time.monotonic()):
            effects[type(command)](command)

    transport = transport_of(dask_worker)
    transfers = ChunkTransport(me, "bench", store, transport, time.monotonic, feed)
    effects = {Report: report, StoreChunks: transfers.store, SetStates: transfers.set_states}
    transport.listen(transfers.receive)
    dask_worker.bench = (transfers, store, reports)
    return ROWS * (columns + 1) * 8


async def give(
    member: int,
    orders: list[tuple[int, str, list[int], bool]],
    at_s: float,
    *,
    dask_worker: Worker,
) -> float:
    """Give chunks to others, all orders at once, starting at a common time; return that time."""
    from elasticml.ids import ChunkId, MemberId
    from elasticml.protocol.commands import GiveChunks

    made = []
    for target, address, numbers, with_bodies in orders:
        ids = tuple(ChunkId("bench", 0, k) for k in numbers)
        made.append(
            GiveChunks(
                member=MemberId(member, 1),
                target=MemberId(target, 1),
                address=address,
                chunks=ids,
                bodies=ids if with_bodies else (),
            )
        )
    while (left_s := at_s - time.monotonic()) > 0:
        await asyncio.sleep(left_s)
    began_s = time.monotonic()
    await asyncio.gather(*(dask_worker.bench[0].give(order) for order in made))
    return began_s


async def received(n: int, *, forget: bool, dask_worker: Worker) -> float:
    """Wait until this many chunks have been reported; return when the last was."""
    _, store, reports = dask_worker.bench
    while sum(count for _, _, count in reports) < n:
        await asyncio.sleep(0.001)
    assert {name for _, name, _ in reports} == {"ChunksLoaded"}
    ended_s = max(t for t, _, _ in reports)
    reports.clear()
    if forget:
        store.drop(list(store.chunks))
    return float(ended_s)


def listen_bare(n: int, keeps: bool, *, dask_worker: Worker) -> int:
    """Receive this many MiB with a bare socket in a thread; return the port."""
    import socket

    import numpy as np

    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        link, _ = server.accept()
        kept = []
        buffer = memoryview(bytearray(MIB))
        with server, link:
            for _ in range(n):
                at = 0
                if keeps:
                    buffer = np.empty(MIB, np.uint8).data
                    kept.append(buffer)
                while at < MIB:
                    at += link.recv_into(buffer[at:])
            dask_worker.bench_bare = time.monotonic()

    dask_worker.bench_bare = None
    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


async def send_bare(port: int, n: int) -> float:
    """Send this many MiB with a bare socket in a thread; return when it started."""
    import socket

    payload = memoryview(bytearray(MIB))

    def send() -> float:
        with socket.create_connection(("127.0.0.1", port)) as link:
            began_s = time.monotonic()
            for _ in range(n):
                link.sendall(payload)
        return began_s

    return await asyncio.to_thread(send)


async def bare_ended(*, dask_worker: Worker) -> float:
    """Wait for the bare receiver; return when it had all."""
    while dask_worker.bench_bare is None:
        await asyncio.sleep(0.001)
    return float(dask_worker.bench_bare)


# --- the figures ------------------------------------------------------------------------------


def on(client: Client, address: str, function: Any, *arguments: Any, **named: Any) -> Any:
    """Run a function on one worker and return its result."""
    return client.run(function, *arguments, workers=[address], **named)[address]


def links(n: int, repeats: int) -> dict[str, Any]:
    """Rate of moving 1 MiB chunks from one member to another, and of a bare socket."""
    rates: dict[str, list[float]] = {"bare": [], "bare, kept": [], "move": []}
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        source, target = sorted(client.nthreads())
        nbytes = on(client, source, prepare, 0, n, COLUMNS, True, slice(0, n))
        on(client, target, prepare, 1, n, COLUMNS, False, slice(0, 0))
        batches = [list(range(i, min(i + 16, n))) for i in range(0, n, 16)]
        orders = [(1, target, batch, True) for batch in batches]
        for k in range(repeats + 1):
            for way in rates:
                if way == "move":
                    began_s = on(client, source, give, 0, orders, 0.0)
                    ended_s = on(client, target, received, n, forget=True)
                else:
                    port = on(client, target, listen_bare, n, way != "bare")
                    began_s = on(client, source, send_bare, port, n)
                    ended_s = on(client, target, bare_ended)
                if k > 0:  # the first opens links and touches memory
                    sent = n * (nbytes if way == "move" else MIB)
                    rates[way].append(sent / (ended_s - began_s) / 2**30)
    moved = rates["move"]
    results: dict[str, Any] = {f"{way}, GiB/s": statistics.median(r) for way, r in rates.items()}
    for way in ("bare", "bare, kept"):
        ratios = [m / b for m, b in zip(moved, rates[way], strict=True)]
        results[f"move / {way}"] = statistics.median(ratios)
    return {**results, "best": {way: max(r) for way, r in rates.items()}, "all": rates}


def redeal(repeats: int, per_order: int) -> dict[str, Any]:
    """Seconds to give 3/4 of 512 chunks new owners among four members that hold them all."""
    seconds = []
    with (
        em.LocalCluster(REDEAL_MEMBERS) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        addresses = sorted(client.nthreads())
        for member, address in enumerate(addresses):
            on(client, address, prepare, member, REDEAL_CHUNKS, 1, True, slice(None))
        for k in range(repeats + 1):
            order = [int(i) for i in np.random.default_rng(k).permutation(REDEAL_CHUNKS)]
            at_s = time.monotonic() + 0.3
            options = []
            for member, address in enumerate(addresses):
                orders = _shares(order[member::REDEAL_MEMBERS], member, addresses, per_order)
                arguments = (member, orders, at_s)
                options.append(client.submit(_give_task, *arguments, workers=[address], pure=False))
            began_s = min(client.gather(options))
            each = 3 * REDEAL_CHUNKS // REDEAL_MEMBERS // REDEAL_MEMBERS
            ended_s = [on(client, a, received, each, forget=False) for a in addresses]
            if k > 0:
                seconds.append(max(ended_s) - began_s)
    return {"per_order": per_order, "median_ms": 1e3 * statistics.median(seconds), "all": seconds}


def _shares(
    mine: list[int], member: int, addresses: list[str], per_order: int
) -> list[tuple[int, str, list[int], bool]]:
    """Orders that give each other member its quarter of a member's chunks, without bodies."""
    orders = []
    for other, there in enumerate(addresses):
        ids = mine[other::REDEAL_MEMBERS] if other != member else []
        for i in range(0, len(ids), per_order):
            orders.append((other, there, ids[i : i + per_order], False))
    return orders


async def _give_task(
    member: int, orders: list[tuple[int, str, list[int], bool]], at_s: float
) -> float:
    from distributed import get_worker

    return await give(member, orders, at_s, dask_worker=get_worker())


def write_dense(path: Path, mib: int) -> None:
    """Write this many MiB of dense examples of two classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(mib * MIB // (8 * COLUMNS), COLUMNS))
    np.savez(path, X=X, y=np.sign(X @ rng.normal(size=COLUMNS)))


def scale_in(mib: int, folder: Path) -> dict[str, Any]:
    """Pause of a job's rounds while two of its four workers leave with half of the data."""
    path = folder / "dense.npz"
    write_dense(path, mib)
    job = em.Job(
        em.BatchGradient(
            loss="logistic", l2=1e-4, optimizer="gd", intercept=False, tolerance=0.0, scale="none"
        ),
        read_npz(str(path)),
        name="scale-in",
        absent="reload",
        chunk_size="1 MiB",
        stop=em.Stop(rounds=100_000),
        evaluate=False,
    )
    story, scaling, after = [], None, 0
    with (
        em.LocalCluster(4, memory_limit="4 GiB", grace_s=60.0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        handle = job.start(client)
        for record in handle:
            story.append(record)
            if record["event"] != "RoundEnded":
                continue
            if scaling is None and record["round"] >= 10:
                scaling = threading.Thread(target=cluster.scale, args=(2,))
                scaling.start()
            after += record["members"] == 2
            if after == 10:
                handle.cancel()
        assert scaling is not None
        scaling.join()
    return _pause(story)


def _pause(story: list[dict[str, Any]]) -> dict[str, Any]:
    moved = [r for r in story if r["event"] == "ChunksMoved" and r["round"] > 0]
    ended = [r["t"] for r in story if r["event"] == "RoundEnded"]
    began = [r["t"] for r in story if r["event"] == "RoundStarted"]
    held = [b - e for e, b in zip(ended, began[1:], strict=False)]
    seconds = max(r["t"] for r in moved) - min(
        r["t"] for r in story if r["event"] == "MemberNoticed"
    )
    mib = sum(r["bytes"] for r in moved) / MIB
    return {
        "moved_mib": mib,
        "absent": [r for r in story if r["event"] == "ChunksAbsent"],
        "notice_to_last_move_s": seconds,
        "rounds_held_s": sum(h for h in held if h > 0.02),
        "longest_hold_s": max(held),
        "gib_s_while_held": mib / 1024 / max(held),
    }


def main() -> None:
    """Measure the figures and print them."""
    parser = harness.parser(__doc__)
    parser.add_argument("what", nargs="*", default=["links", "redeal", "scale-in"])
    parser.add_argument("--chunks", type=int, default=256)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--per-order", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    results: dict[str, Any] = {}
    for what in options.what:
        if what == "links":
            results[what] = links(options.chunks, options.repeats)
        elif what == "redeal":
            results[what] = redeal(options.repeats, options.per_order)
        elif what == "scale-in":
            with tempfile.TemporaryDirectory() as folder:
                results[what] = scale_in(options.mib, Path(folder))
        else:
            sys.exit(f"no figure {what!r}; wanted links, redeal or scale-in")
        print(what, json.dumps(results[what], indent=1))
    if options.json is not None:
        harness.report(results, options.json)


if __name__ == "__main__":
    main()
