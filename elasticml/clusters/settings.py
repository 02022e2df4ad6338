"""Dask's settings and the logging of the scheduler and worker processes that we start."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

logger = logging.getLogger(__name__)

#: Modules that every member uses; loaded before a worker registers, so that no exchange waits for
#: an import. Those that are not installed are left out.
_WORKER_MODULES = (
    "numpy",
    "numba",
    "distributed.worker",
    "elasticml.algorithms.registry",
    "elasticml.data.source",
    "elasticml.data.products",
    "elasticml.objectives.losses",
    "elasticml.collective.dask_links",
    "elasticml.runtime.member_plugin",
)
#: Modules with the kernels of one algorithm, loaded besides. With an empty cache each takes seconds
#: to compile, so a worker whose algorithm is known skips the others.
_ALGORITHM_MODULES = {
    "async_sgd": ("elasticml.algorithms.async_sgd.kmeans",),
    "cocoa": ("elasticml.objectives.conjugates", "elasticml.algorithms.cocoa.warming"),
    "primal_cocoa": ("elasticml.algorithms.primal_cocoa.column_blocks",),
}
SCHEDULER_MODULES = ("distributed.scheduler", "elasticml.runtime.scheduler_plugin")

_DASK_SETTINGS: dict[str, Any] = {
    # Memory is the member's own business: Dask must neither spill, pause nor end our workers.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.worker-ttl": None,
    # Timers that serve dashboards only; fourteen workers on two cores feel each of them.
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


def worker_modules(algorithms: Iterable[str] | None) -> tuple[str, ...]:
    """Return the modules that a worker loads before it registers.

    Parameters
    ----------
    algorithms : iterable of str or None
        Names of the algorithms that the worker will run; None for all.
    """
    names = _ALGORITHM_MODULES if algorithms is None else algorithms
    return _WORKER_MODULES + tuple(
        module for name in names for module in _ALGORITHM_MODULES.get(name, ())
    )


def configure_dask(*, dashboard: bool) -> None:
    """Set Dask's configuration for this process; call it before ``distributed`` is imported.

    Parameters
    ----------
    dashboard : bool
        Whether the HTTP routes of the dashboard are wanted.
    """
    import dask

    dask.config.set(_DASK_SETTINGS)
    if not dashboard:
        dask.config.set(_NO_ROUTES)


def configure_logging() -> None:
    """Log to stderr, one line a record: our own from INFO on, others' from WARNING on."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING
    )
    logging.getLogger("elasticml").setLevel(logging.INFO)


def redirect_output(log_file: str) -> None:
    """Send what this process writes on stdout and stderr to a file, appending."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def load(modules: tuple[str, ...]) -> None:
    """Import modules and warm their kernels, leaving out modules that do not exist.

    A module that defines ``warm_kernels()`` has it called: it compiles or loads the module's
    compiled functions in the calling thread, and starts no thread of its own. A module that
    cannot be imported is a warning here: whoever needs it says so in better words.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            logger.warning("cannot load %s beforehand: %s", name, error)
            continue
        warm_kernels = getattr(module, "warm_kernels", None)
        if warm_kernels is not None:
            warm_kernels()


def freeze_memory() -> None:
    """Keep the collector off what is loaded, so that forked children share these pages."""
    gc.collect()
    gc.freeze()
