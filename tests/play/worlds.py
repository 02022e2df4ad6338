"""The worlds in which a plan's job runs on processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from distributed import Client
from distributed import LocalCluster as DaskCluster

from elasticml.clusters.local.cluster import LocalCluster, LocalWorker
from elasticml.errors import ElasticmlError
from tests.play.faults import FAULTS, Begin, network_faults
from tests.play.namespaces import check_root, inside, namespaces
from tests.play.stock_workers import StockWorkers
from tests.play.switch import join


class Processes(Protocol):
    """The worker processes of a cluster."""

    def workers(self) -> list[LocalWorker]:
        """List the workers that have not ended."""
        ...

    def bring_back(self, n: int) -> None:
        """Start ``n`` workers; return when they have registered."""
        ...


@dataclass(frozen=True, kw_only=True)
class World:
    """A cluster, and what can happen to it."""

    cluster: Processes
    client: Client
    scheduler_pid: int
    #: For the job's files, and for logs.
    folder: Path
    members: int
    #: Where all processes write.
    disk: Path
    #: Moves the wall clock of a worker, by name.
    set_clock: Callable[[str, float], None] | None = None
    faults: Mapping[str, Begin] = field(default_factory=lambda: FAULTS)

    def workers(self) -> list[LocalWorker]:
        """List the workers that have registered, in the order of their names."""
        here = [w for w in self.cluster.workers() if w.address is not None and w.pid is not None]
        return sorted(here, key=lambda w: (len(w.name), w.name))

    def trigger(self, where: str) -> Path:
        """Return the file that makes the job's own code raise; see :mod:`tests.play.raising`."""
        return self.folder / f"raise-{where}"


class Nannies:
    """A stock ``distributed.LocalCluster``, whose nannies start lost workers again."""

    def __init__(self, members: int, folder: Path, memory: str | None) -> None:
        self.members = members
        self.cluster = DaskCluster(
            n_workers=members,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(folder),
            memory_limit=memory,
        )

    def workers(self) -> list[LocalWorker]:
        """List the workers that have registered."""
        here = self.cluster.scheduler.workers
        return [
            LocalWorker(
                name=str(name), address=nanny.worker_address, pid=nanny.pid, state="running"
            )
            for name, nanny in self.cluster.workers.items()
            if nanny.worker_address in here and nanny.pid is not None
        ]

    def bring_back(self, n: int) -> None:
        """Do nothing: the nannies do it."""


def world_of(
    world: Mapping[str, Any], folder: Path, seed: int
) -> contextlib.AbstractContextManager[World]:
    """Start a plan's world.

    Parameters
    ----------
    world : mapping
        ``on``: "local" (:class:`em.LocalCluster`), "nannies" (``distributed.LocalCluster``),
        "stock" (``dask scheduler`` and ``dask worker``), "hosts" (the same, in network namespaces)
        or "yarn" (a mini YARN). ``members``: workers. ``memory``: limit of a worker. ``disk_mib``:
        the processes' files are on a file system of this size, which needs root.
    """
    starts = {"local": _local, "nannies": _nannies, "stock": _stock, "hosts": _hosts, "yarn": _yarn}
    return starts[world["on"]](world, folder, seed)


@contextlib.contextmanager
def _local(world: Mapping[str, Any], folder: Path, _: int) -> Generator[World]:
    members = world["members"]
    memory = {"memory_limit": world["memory"]} if "memory" in world else {}
    with (
        LocalCluster(members, workers_max=members + 1, log_dir=folder / "logs", **memory) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield _world(world, folder, local, client, local.scheduler_pid)


@contextlib.contextmanager
def _nannies(world: Mapping[str, Any], folder: Path, _: int) -> Generator[World]:
    made = Nannies(world["members"], folder / "logs", world.get("memory"))
    with made.cluster as cluster, Client(cluster, set_as_default=False) as client:
        yield _world(world, folder, made, client, os.getpid())


@contextlib.contextmanager
def _stock(world: Mapping[str, Any], folder: Path, _: int) -> Generator[World]:
    with StockWorkers(folder / "logs", world["members"], directory=disk_of(world, folder)) as stock:
        yield _world(
            world, folder, stock, stock.client, stock.scheduler_pid, set_clock=stock.set_clock
        )


@contextlib.contextmanager
def _hosts(world: Mapping[str, Any], folder: Path, seed: int) -> Generator[World]:
    members = world["members"]
    check_root()
    # The client's threads begin on a host of their own, the last one.
    with (
        namespaces(members + 2) as names,
        join(names, seed) as switch,
        inside(names[-1]),
        StockWorkers(folder / "logs", members, names[:-1], disk_of(world, folder)) as stock,
    ):
        faults = {**FAULTS, **network_faults(switch)}
        yield _world(world, folder, stock, stock.client, stock.scheduler_pid, faults=faults)


@contextlib.contextmanager
def _yarn(world: Mapping[str, Any], folder: Path, _: int) -> Generator[World]:
    from tests.play.yarn_workers import YarnWorkers, yarn_environment

    with yarn_environment() as yarn, YarnWorkers(yarn, world["members"]) as containers:
        faults = {**FAULTS, **containers.faults}
        pid = containers.scheduler_pid
        yield _world(world, folder, containers, containers.client, pid, faults=faults)


def _world(
    world: Mapping[str, Any],
    folder: Path,
    cluster: Processes,
    client: Client,
    pid: int,
    **more: Any,
) -> World:
    return World(
        cluster=cluster,
        client=client,
        scheduler_pid=pid,
        folder=folder,
        members=world["members"],
        disk=disk_of(world, folder),
        **more,
    )


def disk_of(world: Mapping[str, Any], folder: Path) -> Path:
    """Return where all processes of a world write: a file system of its own or a folder."""
    return folder / "disk" if "disk_mib" in world else folder


@contextlib.contextmanager
def mounted_disk(world: Mapping[str, Any], folder: Path) -> Generator[None]:
    """Mount a file system of the world's size, which a full disk needs."""
    if "disk_mib" not in world:
        yield
        return
    image, place = folder / "disk.img", disk_of(world, folder)
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(world["disk_mib"] * 2**20)
    _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
    _run("mount", "-o", "loop", str(image), str(place))
    try:
        (place / "lost+found").rmdir()
        yield
    finally:
        # A process that still runs keeps the file system busy.
        _run("umount", "--lazy", str(place))
        image.unlink()


def _run(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ElasticmlError(f"{' '.join(words)}: {done.stderr.strip()}; run this as root on Linux")


def can_mount() -> bool:
    """Return whether this process may mount a file system and make hosts."""
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control")
