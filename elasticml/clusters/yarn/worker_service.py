"""A Dask worker in a YARN container, without a nanny: it shuts down gracefully with its scheduler.

Only the application master replaces containers. A worker that loses its scheduler exits with a
status of its own, so that it is replaced; one that its scheduler closes exits with 0.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticml.clusters.process_setup import (
    configure_dask,
    configure_logging,
    load_for_worker,
    set_process_name,
)
from elasticml.clusters.worker_lifecycle import WorkerLifecycle, first, prepare_interpreter
from elasticml.clusters.yarn.container_context import (
    SCHEDULER_KEY,
    STARTUP_KEY,
    ContainerContext,
    container_context,
    find_kernel_cache,
    named_class,
    sigkill_delay_s,
    worker_options,
)
from elasticml.clusters.yarn.skein_client import container_security, current_application
from elasticml.clusters.yarn.yarn_client import ApplicationLostError
from elasticml.errors import ConfigError, one_line

if TYPE_CHECKING:
    from distributed.worker import Worker

    from elasticml.clusters.yarn.yarn_client import YarnApplication

logger = logging.getLogger(__name__)

#: Exit status of a worker whose scheduler has exited: not the worker's fault.
SCHEDULER_GONE = 75

#: Exit status of a worker that could not reach the scheduler at its published address.
SCHEDULER_UNREACHABLE = 74

#: Seconds that a worker tries to register.
REGISTER_S_MAX = 30.0

#: Seconds between SIGTERM and SIGKILL that are reserved for closing connections.
CLOSE_S = 0.05

#: Worker classes of dask-yarn's users that our worker replaces.
_USUAL_CLASSES = ("Nanny", "Worker")

#: Options that only a nanny accepts.
_NANNY_OPTIONS = ("config", "env", "preload_nanny", "preload_nanny_argv", "worker_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """Class and options of the worker to start, from dask-yarn's options."""

    #: Import path of the user's own class; None is Dask's worker.
    class_path: str | None
    options: dict[str, Any]
    #: Environment variables to set.
    variables: dict[str, str]


def plan_worker(
    here: ContainerContext,
    nthreads: int | None,
    memory_limit: str | int | None,
    options: dict[str, Any],
    worker_class: str | None,
) -> WorkerPlan:
    """Choose the worker's class and options as dask-yarn does; a nanny becomes a plain worker."""
    chosen: dict[str, Any] = {
        "name": here.name,
        "nthreads": here.vcores if nthreads is None else nthreads,
        "memory_limit": here.memory_bytes if memory_limit is None else memory_limit,
        "death_timeout": REGISTER_S_MAX,
        "dashboard": False,
        **options,
    }
    package, _, name = (worker_class or "dask.distributed.Nanny").rpartition(".")
    is_usual = name in _USUAL_CLASSES and package.split(".")[0] in ("", "dask", "distributed")
    variables = {}
    if is_usual:
        variables = {str(k): str(v) for k, v in (chosen.get("env") or {}).items()}
        chosen = {key: value for key, value in chosen.items() if key not in _NANNY_OPTIONS}
    return WorkerPlan(
        class_path=None if is_usual else worker_class, options=chosen, variables=variables
    )


class WorkerService:
    """Run one worker until it is closed, must leave, or has lost its scheduler.

    Parameters
    ----------
    here : Surroundings
        The container that it runs in.
    plan : WorkerPlan
        Class and options of the worker.
    scheduler : str
        Dask address.
    grace_s : float
        Seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self, here: ContainerContext, plan: WorkerPlan, scheduler: str, grace_s: float
    ) -> None:
        self._here = here
        self._plan = plan
        self._scheduler = scheduler
        #: Whether the scheduler has closed this worker on purpose.
        self._was_closed = False
        self._lifecycle = WorkerLifecycle(max(grace_s - CLOSE_S, grace_s / 2))

    async def run(self) -> int:
        """Serve; return the exit status of the process."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._lifecycle.terminated)
        worker = self._new_worker()
        if not hasattr(worker, "stream_handlers"):
            return await self._run_foreign(worker)
        self._note_closing(worker)
        try:
            await self._lifecycle.serve(worker)
        except (TimeoutError, RuntimeError, OSError) as error:
            logger.error("no scheduler at %s: %s", self._scheduler, _root(error))
            return SCHEDULER_UNREACHABLE
        if self._lifecycle.was_told:
            # YARN reports pre-emption itself; any other SIGTERM counts as a kill.
            return 128 + signal.SIGTERM
        return 0 if self._was_closed else SCHEDULER_GONE

    async def _run_foreign(self, server: Any) -> int:
        """Run a server that is not a Dask worker, such as a user's own nanny, as Dask does."""
        await server
        await first(server.finished(), self._lifecycle.leave.wait())
        await server.close(timeout=1)
        return 0

    def _new_worker(self) -> Any:
        here, plan = self._here, self._plan
        server = _worker_class(plan.class_path)(
            self._scheduler,
            **{
                "security": container_security() if self._scheduler.startswith("tls") else None,
                "local_directory": os.getcwd(),
                **plan.options,
            },
        )
        if hasattr(server, "startup_information"):
            identity = {"container": here.container, "node": here.node}
            server.startup_information[STARTUP_KEY] = lambda _: identity
        return server

    def _note_closing(self, worker: Worker) -> None:
        """Detect a close on purpose, as opposed to a broken connection."""

        async def close(*arguments: Any, **options: Any) -> Any:
            self._was_closed = True
            return await worker.close(*arguments, **options)

        worker.stream_handlers["close"] = close
        worker.handlers["terminate"] = close


def _worker_class(path: str | None) -> Any:
    if path is None:
        from distributed.worker import Worker

        return Worker
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"worker_class: cannot import {path!r} in the worker's environment: {one_line(error)}"
        ) from error


def _root(error: BaseException) -> str:
    """Return the root cause of an error in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)


def _find_scheduler(application: YarnApplication) -> str | None:
    """Wait for the scheduler's address; return None if the application ends first."""
    try:
        return application.store.wait(SCHEDULER_KEY).decode()
    except ApplicationLostError as error:
        logger.info("the application has ended: %s", error)
        return None


def run_worker(nthreads: int | None = None, memory_limit: str | int | None = None) -> int:
    """Run the worker of this container until it exits; return its exit status.

    Parameters
    ----------
    nthreads : int, optional
        Number of threads; by default the container's vcores.
    memory_limit : str or int, optional
        In Dask's notation; by default the container's memory.

    Raises
    ------
    ConfigError
        Outside a container, and for invalid options.
    """
    here = container_context()
    plan = plan_worker(here, nthreads, memory_limit, worker_options(), named_class())
    os.environ.update(plan.variables)
    cache = find_kernel_cache(Path(__file__).parents[2])
    if cache is not None:
        os.environ["NUMBA_CACHE_DIR"] = cache
    set_process_name(f"em-{here.name}")
    configure_dask(dashboard=False)
    configure_logging()
    # Load kernels first, so that a registered worker is ready.
    load_for_worker(None)
    prepare_interpreter()
    scheduler = _find_scheduler(current_application())
    if scheduler is None:
        return SCHEDULER_GONE
    grace_s = sigkill_delay_s(here.node_http)
    logger.info("%s in %s: %g s from SIGTERM to SIGKILL", here.name, here.container, grace_s)
    return asyncio.run(_run(here, plan, scheduler, grace_s))


async def _run(here: ContainerContext, plan: WorkerPlan, scheduler: str, grace_s: float) -> int:
    return await WorkerService(here, plan, scheduler, grace_s).run()
