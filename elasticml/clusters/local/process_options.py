"""Options passed between the processes of a local cluster, each as one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of the scheduler process of a local cluster."""

    name: str
    workers: int
    #: Most workers that a job may request.
    workers_max: int
    threads: int
    #: Bytes per worker; None divides the machine's memory among the initial workers.
    memory_limit: int | None
    keep: bool
    #: Most seconds between SIGTERM and a worker's exit.
    grace_s: float
    dashboard_address: str | None
    start_timeout_s: float
    #: Folder of the log files.
    log_dir: str
    #: Folder of the workers' scratch files, removed with the cluster.
    scratch_dir: str
    #: The cluster's temporary folder; removed with the cluster unless its logs are kept.
    own_dir: str
    #: Slowdown factor of computations, by worker name.
    slowdown: dict[str, float] = field(default_factory=dict)
    #: Algorithms whose kernels workers compile before they register; None for all.
    algorithms: list[str] | None = None
    #: Kind and type of values of the only chunks whose kernels they compile; None for all.
    layout: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of one worker process."""

    name: str
    scheduler: str
    threads: int
    memory_limit: int
    grace_s: float
    #: Whether the process waits for a line on its lifeline before it registers.
    standby: bool
    log_file: str
    scratch_dir: str
    #: Slowdown factor of computations.
    slowdown: float = 1.0


def encode(options: ClusterOptions | WorkerOptions) -> str:
    """Encode options as one line of JSON."""
    return json.dumps(asdict(options))


def cluster_options(text: str) -> ClusterOptions:
    """Decode the options of a scheduler process."""
    return ClusterOptions(**json.loads(text))


def worker_options(text: str) -> WorkerOptions:
    """Decode the options of a worker process."""
    return WorkerOptions(**json.loads(text))


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this package with this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(threads: int | None = None) -> dict[str, str]:
    """Return an environment in which a child finds the same modules as this process.

    Parameters
    ----------
    threads : int or None
        Threads for OpenMP, BLAS and numba in the child; None keeps the current settings.
    """
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    if threads is not None:
        for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
            environment[f"{library}_NUM_THREADS"] = str(threads)
    return environment


def last_line(log_file: str | Path) -> str:
    """Return the last non-blank line of a log file; a placeholder if there is none."""
    try:
        lines = Path(log_file).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        if line.strip():
            return line.strip()
    return "(the log is empty)"
