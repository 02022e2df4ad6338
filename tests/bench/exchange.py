"""Time one exchange without compute: our links, bare sockets and MPI.

    python -m tests.bench exchange [--workers 4 8] [--blocks 10] [--quick] [--json FILE]
                                    [--only shm streams] [--mpi PYTHON] [--docs FILE]

The root is in the scheduler's process; each worker is a process, forked as by a local cluster, and
Dask is configured as in our clusters. All ways take turns within one run, in random order in each
block, because figures of separate runs vary by more than the differences of interest. Every sum is
checked. With an interpreter that has mpi4py, MPI's allreduce among as many processes is timed
before each block.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from json import loads
from pathlib import Path

import numpy as np
from distributed import Scheduler, Worker

from elasticml.clusters.process_setup import configure_dask, freeze_memory
from elasticml.collective.dask_transport import transport_of
from elasticml.collective.transport import Link
from tests.bench import harness
from tests.bench.exchange_ways import (
    SIZE,
    Bare,
    Links,
    Vector,
    Way,
    no_slot,
    read_exactly,
    ready_part,
    serve_links,
    serve_socket,
)

HOST = "127.0.0.1"
SIZES = (1_000, 47_028, 1_000_000)
#: Timed exchanges of each way in one block, by size.
REPEATS = {1_000: 30, 47_028: 15, 1_000_000: 4}
STREAM, SHARED, BARE, MPI = "streams", "shm", "bare sockets", "MPI allreduce"
#: The kinds of link that every worker opens.
KINDS = ("stream", "shm")

Times = dict[str, dict[int, list[float]]]


async def run_worker(address: str, port: int, index: int, sizes: tuple[int, ...]) -> None:
    """Run a worker: answer in every way until the scheduler closes."""
    parts = {size: ready_part(index, size) for size in sizes}
    async with Worker(address, nthreads=1, name=index, dashboard=False, host=HOST) as worker:
        thread = threading.Thread(
            target=serve_socket, args=((HOST, port), index, parts), daemon=True
        )
        thread.start()
        transport = transport_of(worker)
        serving = []
        for kind in KINDS:
            link = await transport.connect(address, {"member": index, "transport": kind})
            lendable = transport.lendable if kind == "shm" else no_slot
            serving.append(asyncio.create_task(serve_links(link, parts, lendable)))
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
            command = [sys.executable, "-m", "tests.bench", "exchange"]
            command += ["--sizes", *map(str, sizes), *served]
            processes.append(
                subprocess.Popen(command, env={**os.environ, "PYTHONPATH": harness.path()})
            )
            links, peers = await accept_all(scheduler, listener, n_workers)
            ways: dict[str, Way] = {
                BARE: Bare(peers, sizes),
                STREAM: Links(links["stream"], sizes, no_slot),
                SHARED: Links(links["shm"], sizes, transport_of(scheduler).lendable),
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
    return {int(size): seconds for size, seconds in loads(done.stdout).items()}


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
    against = [name for name in (BARE, MPI) if name in times]
    middle = {name: harness.medians(times[name]) for name in times}
    print(f"ratios in parentheses: to {', '.join(against)}")
    harness.head("workers", "doubles", "way", "median ms", "min ms", keys=3)
    for name in times:
        for size in sizes:
            ratios = [middle[name][size] / middle[other][size] for other in against]
            beside = f" ({', '.join(f'{ratio:.2f}' for ratio in ratios)})" if ratios else ""
            least = f"{min(times[name][size]) * 1e3:.3f}"
            harness.row(n_workers, size, name, f"{middle[name][size] * 1e3:.3f}{beside}", least)


def write_docs(path: Path, n_workers: int, times: Times) -> None:
    """Write the medians of shared memory and MPI as a table of the documentation."""
    ours, theirs = harness.medians(times[SHARED]), harness.medians(times[MPI])
    harness.write_docs(
        path,
        order=40,
        title="An exchange among four workers",
        command=f"python -m tests.bench exchange --workers {n_workers} --blocks 4 --only shm "
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


def main(
    *,
    workers: Sequence[int] = (4, 8),
    sizes: Sequence[int] = SIZES,
    blocks: int = 10,
    quick: bool = False,
    only: Sequence[str] = (),
    mpi: str | None = None,
    json: Path | None = None,
    docs: Path | None = None,
    _serve: Sequence[str] = (),
) -> None:
    """Time the ways in ``only``, else all; ``mpi`` is an interpreter with mpi4py.

    ``docs`` writes docs/figures/exchange.json, with ``mpi``.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    configure_dask(dashboard=False)
    if _serve:
        address, port, n_workers = _serve
        fork_workers(address, int(port), int(n_workers), tuple(sizes))
        return
    counts, n_blocks = ([2], 1) if quick else (workers, blocks)
    results = {}
    for n in counts:
        results[n] = asyncio.run(measure(n, tuple(sizes), n_blocks, quick, only, mpi))
        show(results[n], n)
    if docs:
        write_docs(docs, counts[0], results[counts[0]])
    if json:
        harness.report({str(k): times for k, times in results.items()}, json)
