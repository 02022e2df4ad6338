"""Time one exchange without compute: our links, and other ways with Dask, sockets and MPI.

    python tests/bench/exchange.py [--workers 4 8] [--blocks 10] [--quick] [--json FILE]
                                    [--only shm streams] [--mpi PYTHON] [--docs FILE]

The root is in the scheduler's process; each worker is a process, forked as by a local cluster, and
Dask is configured as in our clusters. All ways take turns within one run, in random order in each
block, because figures of separate runs vary by more than the differences of interest. Every sum is
checked. With an interpreter that has mpi4py, MPI's allreduce among as many processes is timed
before each block.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distributed import Client, Scheduler, Worker
from distributed.core import ConnectionPool
from exchange_ways import (
    SIZE,
    Actors,
    Bare,
    Futures,
    Links,
    Rpc,
    SharedLinks,
    Vector,
    Way,
    make_actor,
    read_exactly,
    ready_part,
    rpc_handler,
    serve_link,
    serve_shared,
    serve_socket,
)

from elasticml.clusters.process_setup import configure_dask, freeze_memory
from elasticml.collective.dask_transport import transport_of
from elasticml.collective.transport import Link
from tests.bench import harness

HOST = "127.0.0.1"
SIZES = (1_000, 47_028, 1_000_000)
#: Timed exchanges of each way in one block, by size.
REPEATS = {1_000: 30, 47_028: 15, 1_000_000: 4}
STREAM, SHARED, BARE, RPC, MPI = "streams", "shm", "bare sockets", "direct RPC", "MPI allreduce"
#: The kinds of link that every worker opens.
KINDS = {"stream": STREAM, "shm": SHARED, "comm": "Dask messages"}

Times = dict[str, dict[int, list[float]]]


async def run_worker(address: str, port: int, index: int, sizes: tuple[int, ...]) -> None:
    """Run a worker: answer in every way until the scheduler closes."""
    parts = {size: ready_part(index, size) for size in sizes}
    async with Worker(address, nthreads=1, name=index, dashboard=False, host=HOST) as worker:
        worker.bench_parts = parts
        worker.handlers["bench_partial"] = rpc_handler(parts)
        thread = threading.Thread(
            target=serve_socket, args=((HOST, port), index, parts), daemon=True
        )
        thread.start()
        transport = transport_of(worker)
        serving = []
        for kind in KINDS:
            link = await transport.connect(address, {"member": index, "transport": kind})
            answering = (
                serve_shared(link, parts, transport.lendable)
                if kind == "shm"
                else serve_link(link, parts)
            )
            serving.append(asyncio.create_task(answering))
        await asyncio.gather(*serving)
        await worker.finished()


def fork_workers(address: str, port: int, n_workers: int, sizes: tuple[int, ...]) -> None:
    """Fork all workers from this process, as a local cluster does."""
    freeze_memory()
    children = []
    for index in range(n_workers):
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(run_worker(address, port, index, sizes))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


async def accept_all(
    scheduler: Scheduler, listener: socket.socket, n_workers: int
) -> tuple[dict[str, list[Link]], list[socket.socket]]:
    """Return the links and sockets of all workers, in the order of workers."""
    links: dict[tuple[str, int], Link] = {}
    complete = asyncio.Event()

    async def on_link(link: Link) -> None:
        links[link.hello["transport"], link.hello["member"]] = link
        if len(links) == n_workers * len(KINDS):
            complete.set()

    transport_of(scheduler).listen(on_link)
    peers: dict[int, socket.socket] = {}
    head = bytearray(SIZE.size)
    for _ in range(n_workers):
        peer, _ = await asyncio.to_thread(listener.accept)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_exactly(peer, memoryview(head))
        peers[SIZE.unpack(head)[0]] = peer
    await complete.wait()
    order = range(n_workers)
    return {kind: [links[kind, k] for k in order] for kind in KINDS}, [peers[k] for k in order]


@asynccontextmanager
async def ways_of(n_workers: int, sizes: tuple[int, ...]) -> AsyncIterator[dict[str, Way]]:
    """Start a scheduler and its workers; yield all ways of exchanging with them."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        async with AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(
                Scheduler(host=HOST, port=0, dashboard=False)
            )
            listener = stack.enter_context(socket.create_server((HOST, 0)))
            port = listener.getsockname()[1]
            served = ["--serve", scheduler.address, str(port), str(n_workers)]
            command = [sys.executable, __file__, "--sizes", *map(str, sizes), *served]
            processes.append(subprocess.Popen(command))
            links, peers = await accept_all(scheduler, listener, n_workers)
            client = await stack.enter_async_context(
                Client(scheduler.address, asynchronous=True, direct_to_workers=True)
            )
            pool = ConnectionPool(connection_args=scheduler.connection_args)
            await pool.start()
            stack.push_async_callback(pool.close)
            named = {state.name: state.address for state in scheduler.workers.values()}
            addresses = [named[k] for k in range(n_workers)]
            made = [
                client.submit(make_actor, actor=True, workers=[a], pure=False) for a in addresses
            ]
            ways: dict[str, Way] = {
                BARE: Bare(peers, sizes),
                STREAM: Links(links["stream"], sizes),
                SHARED: SharedLinks(links["shm"], transport_of(scheduler).lendable),
                KINDS["comm"]: Links(links["comm"], sizes),
                RPC: Rpc(pool, addresses),
                "actors": Actors(await client.gather(made)),
                "futures, gather": Futures(client, addresses),
            }
            yield ways
            for peer in peers:
                peer.close()
    finally:
        for process in processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def checked(way: Way, model: Vector, total: Vector, expected: Vector, k: int) -> float:
    """Exchange once and check the sum; a new model each time."""
    model[0] += 1
    model[-1] -= 1
    expected[0], expected[-1] = k * model[0], k * model[-1]
    total[:] = np.nan
    seconds = await way.exchange(model, total)
    if not np.array_equal(total, expected):
        raise AssertionError(f"{way}: wrong sum")
    return seconds


def time_mpi(python: str, n_ranks: int, sizes: tuple[int, ...]) -> dict[int, list[float]]:
    """Time one block of MPI's allreduce."""
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n_ranks)]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command += [python, str(Path(__file__).parent / "mpi" / "allreduce.py")]
    command += [f"{size}:{REPEATS.get(size, 10)}" for size in sizes]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {int(size): seconds for size, seconds in json.loads(done.stdout).items()}


async def measure(
    n_workers: int,
    sizes: tuple[int, ...],
    n_blocks: int,
    quick: bool,
    only: Sequence[str] = (),
    mpi: str | None = None,
) -> Times:
    """Time all ways in turns, in seconds."""
    rng = np.random.default_rng(0)
    async with ways_of(n_workers, sizes) as ways:
        ways = {name: way for name, way in ways.items() if not only or name in only}
        names = [*ways, MPI] if mpi is not None else [*ways]
        times: Times = {name: {size: [] for size in sizes} for name in names}
        for _ in range(n_blocks):
            if mpi is not None:
                # In a thread, so that the scheduler still serves its workers.
                for size, seconds in (
                    await asyncio.to_thread(time_mpi, mpi, n_workers, sizes)
                ).items():
                    times[MPI][size] += seconds
            for size in sizes:
                model, total = np.zeros(size), np.zeros(size)
                expected = sum(ready_part(k, size) for k in range(n_workers))
                for name in rng.permutation(list(ways)):
                    # The first exchange after another method is slower, and not timed.
                    await checked(ways[name], model, total, expected, n_workers)
                    for _ in range(2 if quick else REPEATS.get(size, 10)):
                        seconds = await checked(ways[name], model, total, expected, n_workers)
                        times[name][size].append(seconds)
        return times


def show(times: Times, n_workers: int) -> None:
    """Print medians and minima, with the ratios of the medians to those of some ways."""
    sizes = list(next(iter(times.values())))
    against = [name for name in (RPC, BARE, MPI) if name in times]
    middle = {name: harness.medians(times[name]) for name in times}
    print(f"{n_workers} workers: median ms [min] ({', '.join(f'x {name}' for name in against)})\n")
    harness.head("way", *(f"{size:,} doubles" for size in sizes))
    for name in times:
        cells = []
        for size in sizes:
            ratios = [middle[name][size] / middle[other][size] for other in against]
            beside = f" ({', '.join(f'{ratio:.2f}' for ratio in ratios)})" if ratios else ""
            least = min(times[name][size])
            cells.append(f"{middle[name][size] * 1e3:.2f} [{least * 1e3:.2f}]{beside}")
        harness.row(name, *cells)
    print(flush=True)


#: Workers, doubles, way, other way, and the target: the largest ratio of the medians.
WANTED = [
    (4, 47_028, STREAM, RPC, 0.3),
    (4, 1_000_000, STREAM, BARE, 1.25),
    (8, 1_000_000, STREAM, BARE, 1.25),
    (4, 47_028, SHARED, MPI, 1.0),
    (4, 1_000_000, SHARED, MPI, 0.35),
]


def targets(results: dict[int, Times]) -> list[dict[str, Any]]:
    """Compare with the targets if both ways were measured: ratios of medians and of minima."""
    compared = []
    for n_workers, size, way, other, limit in WANTED:
        times = results.get(n_workers, {})
        if size in times.get(way, {}) and size in times.get(other, {}):
            ours, theirs = times[way][size], times[other][size]
            ratio = median(ours) / median(theirs)
            compared.append(
                {
                    "workers": n_workers,
                    "doubles": size,
                    "way": way,
                    "against": other,
                    "ratio": ratio,
                    "ratio_of_min": min(ours) / min(theirs),
                    "wanted_max": limit,
                    "met": ratio <= limit,
                }
            )
    return compared


def write_docs(path: Path, n_workers: int, times: Times) -> None:
    """Write the medians of shared memory and MPI as a table of the documentation."""
    ours, theirs = harness.medians(times[SHARED]), harness.medians(times[MPI])
    harness.write_docs(
        path,
        order=40,
        title="An exchange among four workers",
        command=f"python tests/bench/exchange.py --workers {n_workers} --blocks 4 --only shm "
        f"--mpi PYTHON --docs {path}",
        text="Milliseconds to sum vectors over the workers of one host, from sending the model "
        "until the driver has the sum. The workers compute nothing. The two were measured "
        "alternately; medians. *Doubles*: the length of the vectors. *MPI*: OpenMPI's allreduce, "
        "whose processes wait in a busy loop.",
        columns=["doubles", "elasticml, shared memory", "MPI", "elasticml ÷ MPI"],
        rows=[
            [size, round(1e3 * own, 3), round(1e3 * theirs[size], 3), round(own / theirs[size], 2)]
            for size, own in ours.items()
        ],
    )


def main() -> None:
    """Run the benchmark, or one of its workers."""
    parser = harness.parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="in doubles")
    parser.add_argument("--blocks", type=int, default=10, help="turns of each way")
    parser.add_argument("--quick", action="store_true", help="2 workers, 1 block: does it run?")
    parser.add_argument("--only", nargs="+", default=[], help="the ways to time, by their names")
    parser.add_argument("--mpi", help="an interpreter with mpi4py; mpirun must be in the path")
    parser.add_argument("--json", type=Path, help="write every time to this file")
    parser.add_argument("--docs", type=Path, help="write docs/figures/exchange.json; with --mpi")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    configure_dask(dashboard=False)
    sizes = tuple(options.sizes)
    if options.serve:
        address, port, n_workers = options.serve
        fork_workers(address, int(port), int(n_workers), sizes)
        return
    counts, n_blocks = ([2], 1) if options.quick else (options.workers, options.blocks)
    results = {}
    for n_workers in counts:
        results[n_workers] = asyncio.run(
            measure(n_workers, sizes, n_blocks, options.quick, options.only, options.mpi)
        )
        show(results[n_workers], n_workers)
    for target in targets(results):
        print(
            f"{target['way']} / {target['against']}, {target['doubles']:,} doubles, "
            f"{target['workers']} workers: {target['ratio']:.2f} (of the fastest ones "
            f"{target['ratio_of_min']:.2f}), wanted at most {target['wanted_max']}: "
            + ("met" if target["met"] else "MISSED")
        )
    if options.docs:
        write_docs(options.docs, counts[0], results[counts[0]])
    if options.json:
        record = {
            "python": platform.python_version(),
            "targets": targets(results),
            "seconds": {str(k): times for k, times in results.items()},
        }
        harness.report(record, options.json)


if __name__ == "__main__":
    main()
