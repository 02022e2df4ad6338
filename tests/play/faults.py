"""What each fault of a plan does to real processes, and how it ends.

A fault gets the world and the processes that it hits. It returns what ends it, if anything does:
that may be called more than once, and after the end of the processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import resource
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from elasticml.clusters.local.cluster import LocalWorker
from elasticml.jobs.announce import announce
from tests.play.plan import Fault
from tests.play.switch import Port, Switch

if TYPE_CHECKING:
    from tests.play.worlds import World

#: Ends a fault.
Undo = Callable[[], None]
#: Begins a fault of these workers.
Begin = Callable[["World", Fault, Sequence[LocalWorker]], Undo | None]

#: Bytes of address space that a process may still take under ``memory``: less than a thread's stack
#: or an arena of malloc, more than a message.
_ROOM_BYTES: Final = 2**20


def send(pid: int | None, number: int) -> None:
    """Send a signal to a process that may have ended."""
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill(_: World, __: Fault, workers: Sequence[LocalWorker]) -> None:
    for worker in workers:
        send(worker.pid, signal.SIGKILL)


def _terminate(_: World, __: Fault, workers: Sequence[LocalWorker]) -> None:
    for worker in workers:
        send(worker.pid, signal.SIGTERM)


def _notice(world: World, fault: Fault, workers: Sequence[LocalWorker]) -> None:
    """Announce the end of workers, and send SIGTERM at once, as resource managers do."""
    announce(world.client, [str(w.address) for w in workers], grace_s=fault.grace)
    _terminate(world, fault, workers)


def _kill_driver(world: World, _: Fault, __: Sequence[LocalWorker]) -> None:
    send(world.scheduler_pid, signal.SIGKILL)


def _pause(_: World, __: Fault, workers: Sequence[LocalWorker]) -> Undo:
    for worker in workers:
        send(worker.pid, signal.SIGSTOP)
    return lambda: [send(worker.pid, signal.SIGCONT) for worker in workers] and None


def hold_interpreter_lock(seconds: float) -> None:
    """Keep all other threads of this process from running Python."""
    ctypes.PyDLL(None).usleep(int(1e6 * seconds))


def _deafen(world: World, fault: Fault, workers: Sequence[LocalWorker]) -> Undo:
    held = [
        world.client.submit(hold_interpreter_lock, fault.seconds, workers=[w.address], pure=False)
        for w in workers
    ]
    return lambda: [future.release() for future in held] and None


def _set_clock(world: World, fault: Fault, workers: Sequence[LocalWorker]) -> Undo:
    assert world.set_clock is not None
    undo = [functools.partial(world.set_clock, worker.name, 0.0) for worker in workers]
    for worker in workers:
        world.set_clock(worker.name, fault.amount)
    return lambda: [end() for end in undo] and None


def fill_disk(world: World, _: Fault, __: Sequence[LocalWorker]) -> Undo:
    """Fill the file system of the processes' files: ENOSPC for every writer."""
    ballast = world.disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        step = 2**20
        while step >= 512:
            try:
                file.write(bytes(step))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                step //= 2
    return functools.partial(ballast.unlink, missing_ok=True)


def limit_memory(_: World, __: Fault, workers: Sequence[LocalWorker]) -> Undo:
    """Let workers allocate next to nothing: ``RLIMIT_AS`` is what they have, and 1 MiB."""
    limits = {}
    for pid in _pids(workers):
        with contextlib.suppress(psutil.NoSuchProcess):
            limits[pid] = psutil.Process(pid).memory_info().vms + _ROOM_BYTES
    return _limited(resource.RLIMIT_AS, limits)


def limit_descriptors(_: World, __: Fault, workers: Sequence[LocalWorker]) -> Undo:
    """Let workers open no more files and connections: ``RLIMIT_NOFILE`` is the first free one."""
    limits = {}
    for pid in _pids(workers):
        with contextlib.suppress(FileNotFoundError):
            taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
            limits[pid] = next(n for n in range(len(taken) + 1) if n not in taken)
    return _limited(resource.RLIMIT_NOFILE, limits)


def _pids(workers: Iterable[LocalWorker]) -> list[int]:
    return [w.pid for w in workers if w.pid is not None]


def _limited(which: int, limits: Mapping[int, int]) -> Undo:
    """Set soft limits, by process; a process that has ended is passed over."""
    former = {}
    for pid, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):
            former[pid] = resource.prlimit(pid, which)
            resource.prlimit(pid, which, (limit, former[pid][1]))

    def restore() -> None:
        for pid, limits in former.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, which, limits)

    return restore


def _damage(world: World, fault: Fault, _: Sequence[LocalWorker]) -> Undo:
    """Change a byte in the largest file of the data."""
    folder = world.folder / "data"
    files = [path for path in folder.rglob("*") if path.is_file()]
    path = max(files, key=lambda one: one.stat().st_size)
    at = int(fault.amount * (path.stat().st_size - 1))
    mode, times = path.stat().st_mode, (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.chmod(mode | stat.S_IWUSR)

    def flip() -> None:
        with open(path, "r+b", buffering=0) as file:
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 0x55]), at)
        os.utime(path, ns=times)  # as a disk's error, which changes no time

    flip()
    ended: list[bool] = []

    def mend() -> None:
        if not ended:
            ended.append(True)
            flip()

    return mend


def _raise(world: World, fault: Fault, _: Sequence[LocalWorker]) -> Undo:
    """Let the next computation raise; see :mod:`tests.play.raising`."""
    trigger = world.trigger(fault.phase or "solver")
    part = trigger.with_suffix(".part")
    part.write_text(fault.error)
    part.rename(trigger)
    return functools.partial(trigger.unlink, missing_ok=True)


FAULTS: Final[Mapping[str, Begin]] = {
    "kill": _kill,
    "terminate": _terminate,
    "notice": _notice,
    "driver": _kill_driver,
    "pause": _pause,
    "deaf": _deafen,
    "clock": _set_clock,
    "full_disk": fill_disk,
    "memory": limit_memory,
    "descriptors": limit_descriptors,
    "damage": _damage,
    "raise": _raise,
}


def network_faults(switch: Switch) -> Mapping[str, Begin]:
    """Return faults of the hosts of workers, at the ports of a switch.

    ``cut`` separates each host from all others, ``split`` separates hosts together from all others,
    ``one_way`` loses the frames from the second host to the first; ``lag``, ``loss`` and
    ``throttle`` hit both directions.
    """
    draws: dict[str, Callable[[Fault, list[int]], list[dict[str, Any]]]] = {
        "cut": lambda fault, hosts: [{"group": 1 + k} for k in hosts],
        "split": lambda fault, hosts: [{"group": 1 + hosts[0]}] * len(hosts),
        "lag": lambda fault, hosts: [{"lag_s": fault.amount}] * len(hosts),
        "loss": lambda fault, hosts: [{"loss": fault.amount}] * len(hosts),
        "throttle": lambda fault, hosts: [{"bytes_per_s": fault.amount}] * len(hosts),
    }

    def begin(_: World, fault: Fault, workers: Sequence[LocalWorker]) -> Undo:
        hosts = [host_of(worker) for worker in workers]
        changed = list(zip(hosts, draws[fault.kind](fault, hosts), strict=True))
        for k, values in changed:
            _set(switch.ports[k], values)

        def undo() -> None:
            for k, values in changed:
                _set(switch.ports[k], {name: getattr(Port(-1), name) for name in values})

        return undo

    changing = threading.Lock()

    def begin_one_way(_: World, __: Fault, workers: Sequence[LocalWorker]) -> Undo:
        deaf, silent = (host_of(worker) for worker in workers)
        port = switch.ports[deaf]

        def change(to: Callable[[frozenset[int], frozenset[int]], frozenset[int]]) -> None:
            with changing:  # faults of the same port may begin or end at once
                port.deaf_to = to(port.deaf_to, frozenset({silent}))

        change(frozenset.union)
        return lambda: change(frozenset.difference)

    return {**dict.fromkeys(draws, begin), "one_way": begin_one_way}


def host_of(worker: LocalWorker) -> int:
    """Return the number of a worker's host, from its address ``tcp://10.77.0.N:port``."""
    assert worker.address is not None
    return int(worker.address.rpartition(":")[0].rpartition(".")[2]) - 1


def _set(port: Port, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(port, name, value)
