"""The options that travel between the processes of a local cluster, as one line of JSON each."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

StartMethod = Literal["fork", "spawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What the scheduler process of a local cluster is told at its start."""

    name: str
    workers: int
    #: Workers at most, where a job asks for more.
    workers_max: int
    threads: int
    #: Bytes per worker; None shares the machine's memory out among the first workers.
    memory_limit: int | None
    keep: bool
    #: Seconds that a worker takes at most between SIGTERM and its end.
    grace_s: float
    dashboard_address: str | None
    start_method: StartMethod
    start_timeout_s: float
    #: Folder of the log files.
    log_dir: str
    #: Folder of the workers' own files, removed with the cluster.
    scratch_dir: str
    #: The cluster's temporary folder, which holds all that no one asked to keep.
    own_dir: str
    #: How many times as long computations take, by the worker's name.
    slowdown: dict[str, float] = field(default_factory=dict)
    #: Algorithms whose kernels workers compile before they register; None for all.
    algorithms: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What one worker process is told at its start."""

    name: str
    scheduler: str
    threads: int
    memory_limit: int
    grace_s: float
    #: Whether the process waits for a line on its lifeline before it registers.
    standby: bool
    log_file: str
    scratch_dir: str
    #: How many times as long computations take.
    slowdown: float = 1.0
    #: Algorithms whose kernels it compiles before it registers, where it was not forked; None for
    #: all.
    algorithms: list[str] | None = None


def encode(options: ClusterOptions | WorkerOptions) -> str:
    """Write options as one line of JSON."""
    return json.dumps(asdict(options))


def cluster_options(text: str) -> ClusterOptions:
    """Read back what ``encode`` wrote for a scheduler process."""
    return ClusterOptions(**json.loads(text))


def worker_options(text: str) -> WorkerOptions:
    """Read back what ``encode`` wrote for a worker process."""
    return WorkerOptions(**json.loads(text))


def python_command(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module of this package with this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(threads: int | None = None) -> dict[str, str]:
    """Environment in which a child finds the modules that this process finds.

    Parameters
    ----------
    threads : int or None
        Threads that OpenMP, BLAS and numba may use in the child; None leaves them alone.
    """
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    if threads is not None:
        for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
            environment[f"{library}_NUM_THREADS"] = str(threads)
    return environment


def last_line(log_file: str | Path) -> str:
    """Last line with text in a log file; says so where there is none."""
    try:
        lines = Path(log_file).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        if line.strip():
            return line.strip()
    return "(the log is empty)"
