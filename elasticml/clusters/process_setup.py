"""Prepare a scheduler or worker process: name, death signal, Dask settings, logging, imports."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from elasticml.algorithms.kernel_modules import kernel_modules, note_warm, warm_up

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def set_process_name(name: str) -> None:
    """Set the name (at most 15 characters) that ``ps`` and ``top`` show for this process."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to send SIGKILL to this process when its parent exits for any reason.

    Parameters
    ----------
    parent_pid : int
        The expected parent; if it has exited already, this process exits at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


logger = logging.getLogger(__name__)

#: Modules that every member uses. They are imported before a worker registers, so that no exchange
#: waits for an import. Modules that are not installed are skipped.
WORKER_MODULES = (
    "numpy",
    "numba",
    "distributed.worker",
    "elasticml.algorithms.registry",
    "elasticml.data.source",
    "elasticml.collective.dask_transport",
    "elasticml.runtime.member_plugin",
)
SCHEDULER_MODULES = ("distributed.scheduler", "elasticml.runtime.scheduler_plugin")

_DASK_SETTINGS: dict[str, Any] = {
    # Members manage their memory themselves: Dask must not spill, pause or terminate our workers.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.worker-ttl": None,
    # Timers that serve dashboards only; with fourteen workers on two cores each of them costs.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.use-file-locking": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.tick.limit": "60s",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.diagnostics.nvml": False,
    "logging": {
        "distributed": "warning",
        "distributed.client": "warning",
        "bokeh": "error",
        "tornado": "critical",
        "tornado.application": "error",
    },
}
_NO_ROUTES: dict[str, Any] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def load_for_worker(
    algorithms: Sequence[str] | None,
    layout: tuple[str, str] | None = None,
    *,
    with_helper: bool = False,
) -> None:
    """Import what a worker uses, and warm up its kernels, before it registers.

    A library that is missing is only a warning: an environment that was packed for some jobs may
    lack what others need.

    Parameters
    ----------
    algorithms : sequence of str or None
        Names of the algorithms that the worker will run; None for all.
    layout : (str, str), optional
        Kind and type of values of the data's chunks: only their kernels are compiled.
    with_helper : bool
        Whether to fork a process that compiles from the end of the list of modules, if one has
        nothing in the cache: each function is compiled by one of the two, and loaded by this one.
        Only for a process without threads.
    """
    from elasticml.algorithms.registry import import_algorithms

    load(WORKER_MODULES)
    _warn_of(import_algorithms(algorithms))
    kind, dtype = layout or (None, None)
    modules = kernel_modules(algorithms)
    me = os.getpid()
    child = os.fork() if with_helper and _are_cold(modules) else None
    if child == 0:
        try:
            die_with_parent(me)
            warm_up(modules[::-1], kind, dtype)
        finally:
            os._exit(0)
    try:
        _warn_of(warm_up(modules, kind, dtype))
    finally:
        if child is not None:
            os.waitpid(child, 0)
    note_warm(algorithms)


def _are_cold(modules: Iterable[str]) -> bool:
    """Whether the cache lacks the machine code of one of some modules."""
    try:
        from elasticml.compiled import has_machine_code
    except ImportError:  # no numba: there is nothing to compile
        return False
    specs = [importlib.util.find_spec(name) for name in modules if name.startswith("elasticml.")]
    files = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return not all(has_machine_code(file) for file in files)


def configure_dask(*, dashboard: bool) -> None:
    """Set Dask's configuration for this process; call it before ``distributed`` is imported.

    Parameters
    ----------
    dashboard : bool
        Whether to serve the HTTP routes of the dashboard.
    """
    import dask

    dask.config.set(_DASK_SETTINGS)
    if not dashboard:
        dask.config.set(_NO_ROUTES)


def configure_logging() -> None:
    """Log to stderr, one line per record: our loggers from INFO, others from WARNING."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING
    )
    logging.getLogger("elasticml").setLevel(logging.INFO)


def redirect_output(log_file: str) -> None:
    """Append this process's stdout and stderr to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def load(modules: tuple[str, ...]) -> None:
    """Import modules and warm up their kernels; a missing library is only a warning.

    Raises
    ------
    ImportError
        When a module of this package is missing.
    """
    _warn_of(warm_up(modules))


def _warn_of(missing: Sequence[ImportError]) -> None:
    for error in missing:
        logger.warning("cannot preload %s: %s", error.name, error)


def pause_collections() -> None:
    """Collect no garbage until ``freeze_memory``: it takes a fifth of the time of the imports."""
    gc.disable()


def freeze_memory() -> None:
    """Exclude all objects so far from garbage collection, so that forked children share the pages.

    Nothing is collected before: imports leave little, and a collection takes long.
    """
    gc.freeze()
    gc.enable()
