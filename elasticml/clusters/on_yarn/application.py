"""A cluster that is one YARN application: start it or connect to it, scale it, end it.

It extends dask-yarn's class and replaces what no longer runs on today's distributed.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from distributed.core import Status, rpc
from distributed.utils import Log, Logs

from elasticml.clusters.on_yarn import spec as specs
from elasticml.clusters.on_yarn import submission
from elasticml.clusters.on_yarn.adapting import DEFAULTS, YarnAdaptive
from elasticml.clusters.on_yarn.compat import import_dask_yarn, import_skein
from elasticml.clusters.on_yarn.local_scheduler import LocalScheduler
from elasticml.clusters.on_yarn.tls import dask_security
from elasticml.errors import ConfigError

if TYPE_CHECKING:
    import skein
    from dask_yarn import YarnCluster as DaskYarnCluster
    from distributed import Security
else:
    DaskYarnCluster = import_dask_yarn().YarnCluster

#: Clusters to close before the interpreter exits.
_open: weakref.WeakSet[ApplicationCluster] = weakref.WeakSet()


class ApplicationCluster(DaskYarnCluster):
    """Base class of ``YarnCluster``, whose constructors end in ``_begin``."""

    # Attributes that dask-yarn's class sets.
    spec: Any
    application_client: Any
    scheduler_comm: Any
    scheduler_info: dict[str, Any]
    _adaptive: YarnAdaptive | None
    _adaptive_options: dict[str, Any]
    _finalizer: Any
    _requested: set[str]
    _scheduler: LocalScheduler | None
    _start_task: asyncio.Task[None] | None
    _watch_worker_status_task: asyncio.Task[None] | None

    def _begin(
        self,
        *,
        tls: bool = True,
        login: tuple[str | None, str | None] = (None, None),
        environment: str | None = None,
        **common: Any,
    ) -> None:
        #: State of the cluster as Dask's client asks for it.
        self.status = Status.created
        self.scheduler_address = "<not connected>"
        self._dashboard_address: str | None = None
        self._tls = tls
        self._login = login
        self._environment = environment
        self._submitted: tuple[skein.Client, str] | None = None
        self._is_abandoned = threading.Event()
        try:
            self._init_common(**common)
        except BaseException:
            # Also on an interrupt: neither the application nor the loop's thread must outlive it.
            if not common.get("asynchronous") and hasattr(self, "_loop_runner"):
                self.close()
            raise

    # Lifecycle.

    async def _start_internal(self) -> Self:
        if self._start_task is None:
            if self.status is not Status.created:
                raise ConfigError("the cluster is closed; make a new YarnCluster")
            self.status = Status.starting
            _open.add(self)
            self._start_task = asyncio.ensure_future(self._start_async())
        try:
            await self._start_task
        except BaseException:
            await self._stop_internal(status="FAILED")
            self.status = Status.failed
            raise
        return self

    async def _start_async(self) -> None:
        if self.spec is None:
            await self._in_thread(self._connect_existing)
        else:
            if specs.is_local(self.spec):
                self._scheduler = await LocalScheduler.start(
                    self.security, **self._scheduler_kwargs
                )
            submitting = asyncio.ensure_future(self._in_thread(self._start_cluster))
            try:
                await asyncio.shield(submitting)
            except asyncio.CancelledError:
                # The thread waits for the application: only killing that wakes it.
                self._is_abandoned.set()
                await self._in_thread(self._kill_submitted)
                with suppress(Exception):
                    await submitting
                raise
        if self._scheduler is not None:
            await self._scheduler.keep(self.application_client)
        security = self.security
        arguments = {} if security is None else security.get_connection_args("client")
        self.scheduler_comm = rpc(self.scheduler_address, connection_args=arguments)
        comm = await self.scheduler_comm.live_comm()
        await comm.write({"op": "subscribe_worker_status"})
        self.scheduler_info = await comm.read()
        self._watch_worker_status_task = asyncio.ensure_future(self._watch_worker_status(comm))
        await self._refresh()
        self.status = Status.running

    def _start_cluster(self) -> None:
        """Submit the application and wait for its scheduler; runs in a thread."""
        submission.check_grantable(self.spec)
        with submission.client_or_own(self._skein_client, *self._login) as client:
            app_id = submission.submit(client, self.spec)
            self._submitted = client, app_id
            try:
                if self._is_abandoned.is_set():
                    raise asyncio.CancelledError
                with submission.explained(client, app_id, self._environment):
                    app = client.connect(app_id, security=self.spec.master.security)
                    self._exchange_addresses(app)
            except BaseException:
                self._kill_submitted()
                raise
            finally:
                self._submitted = None
        self.application_client = app
        # The application ends when this object is closed or collected.
        self._finalizer = weakref.finalize(self, submission.shut_down, app)

    def _exchange_addresses(self, app: skein.ApplicationClient) -> None:
        """Publish the local scheduler's address, or wait for the remote one's."""
        if self._scheduler is None:
            self.scheduler_address, self._dashboard_address = submission.wait_for_addresses(app)
            return
        self.scheduler_address = self._scheduler.address
        self._dashboard_address = self._scheduler.dashboard_address
        submission.post_addresses(app, self.scheduler_address, self._dashboard_address)

    def _connect_existing(self) -> None:
        app = self.application_client
        with submission.connection_explained(app.id):
            spec = app.get_specification()
            if specs.WORKER not in spec.services:
                raise ConfigError(
                    f"{app.id} is not a Dask cluster: it has no service {specs.WORKER!r}; name the "
                    "application of one"
                )
            self.scheduler_address, self._dashboard_address = submission.wait_for_addresses(app)
        self.spec = spec
        self._tls = self.scheduler_address.startswith("tls://")

    def _kill_submitted(self) -> None:
        if self._submitted is not None:
            client, app_id = self._submitted
            with suppress(import_skein().exceptions.SkeinError):
                client.kill_application(app_id)

    async def _stop_async(self, status: str = "SUCCEEDED", diagnostics: str | None = None) -> None:
        if self.status is not Status.failed:
            self.status = Status.closing
        if self._start_task is not None and not self._start_task.done():
            self._start_task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._start_task
        if self._adaptive is not None:
            self._adaptive.stop(reason="cluster-closed")
        if self._watch_worker_status_task is not None:
            self._watch_worker_status_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch_worker_status_task
            self._watch_worker_status_task = None
        if self.scheduler_comm is not None:
            await self.scheduler_comm.close_rpc()
            self.scheduler_comm = None
        await self._in_thread(self._stop_sync, status, diagnostics)
        if self._scheduler is not None:
            await self._scheduler.close()
            self._scheduler = None
        self.status = Status.closed
        _open.discard(self)

    def _stop_sync(self, status: str = "SUCCEEDED", diagnostics: str | None = None) -> None:
        """End the application if this object started it and it is still running."""
        if self._finalizer is not None and self._finalizer.detach() is not None:
            submission.shut_down(self.application_client, status, diagnostics)
        self._finalizer = None

    def shutdown(self, status: str = "SUCCEEDED", diagnostics: str | None = None) -> Any:
        """End the application; if this object only connected to it, disconnect.

        Parameters
        ----------
        status : {"SUCCEEDED", "FAILED", "KILLED"}
            Final status for YARN.
        diagnostics : str, optional
            The message that YARN shows with it.
        """
        if self.asynchronous or self._is_on_own_loop():
            return self._stop_internal(status=status, diagnostics=diagnostics)
        if not self._loop_runner.is_started():
            return None
        if self._loop_runner._loop.asyncio_loop.is_running():
            self._sync(self._stop_internal(status=status, diagnostics=diagnostics))
        else:
            self._stop_sync(status, diagnostics)
            self.status = Status.closed
        self._loop_runner.stop()
        return None

    async def __aexit__(self, *_: object) -> None:
        await self._stop_internal()

    def __del__(self) -> None:
        is_over = getattr(self, "status", Status.closed) in (Status.closed, Status.failed)
        if is_over or sys.is_finalizing() or self.asynchronous:
            return
        closing = self.close()
        if closing is not None:
            # The collector ran on the cluster's own loop; its thread ends with the process.
            self._closing = asyncio.ensure_future(closing)

    # Queries.

    @property
    def security(self) -> Security | None:
        """Dask's security settings for connections to the scheduler; None without encryption."""
        if not self._tls:
            return None
        if self.application_client is not None:
            return dask_security(self.application_client.security)
        if self.spec is not None and self.spec.master.security is not None:
            return dask_security(self.spec.master.security)
        if self._skein_client is not None:
            return dask_security(self._skein_client.security)
        return dask_security(submission.default_credentials())

    def __repr__(self) -> str:
        label = "not started" if self.application_client is None else self.app_id
        return f"YarnCluster<{label}>"

    async def _logs(self, scheduler: bool = True, workers: bool | Iterable[str] = True) -> Logs:
        logs = Logs()
        if scheduler:
            logs["Scheduler"] = _log_of(await self.scheduler_comm.logs())
        if workers is not False:
            names = None if workers is True else list(workers)
            worker_logs = await self.scheduler_comm.worker_logs(workers=names)
            logs.update({address: _log_of(lines) for address, lines in worker_logs.items()})
        return logs

    # Scaling.

    async def _refresh(self) -> None:
        """Update the containers that skein has or has requested, and the registered workers."""
        self._requested = {container.id for container in await self._workers()}
        identity = await self.scheduler_comm.identity()
        self.scheduler_info["workers"] = identity["workers"]

    @property
    def _observed(self) -> set[str]:
        workers = self.scheduler_info.get("workers", {})
        return {worker["name"] for worker in workers.values()} & self._requested

    async def _scale(self, n: int) -> None:
        if self._adaptive is not None:
            self._adaptive.stop(reason="scaled-by-hand")
        await self._refresh()
        if n >= len(self._requested):
            await self._scale_up(n)
            return
        # First containers without a worker, which cost nothing; then workers that hold the least.
        surplus = len(self._requested) - n
        victims = sorted(self._requested - self._observed, reverse=True)[:surplus]
        if len(victims) < surplus:
            idle = await self.scheduler_comm.workers_to_close(
                n=surplus - len(victims), attribute="name"
            )
            victims += [name for name in idle if name in self._observed][: surplus - len(victims)]
        rest = sorted(self._observed - set(victims), reverse=True)
        await self._scale_down(victims + rest[: surplus - len(victims)])

    async def _scale_up(self, n: int) -> None:
        if n > len(self._requested):
            started = await self._in_thread(self.application_client.scale, specs.WORKER, n)
            self._requested.update(container.id for container in started)

    async def _scale_down(self, workers: Iterable[str]) -> None:
        names = list(workers)
        self._requested.difference_update(names)
        await self.scheduler_comm.retire_workers(names=names)
        await self._in_thread(submission.kill_containers, self.application_client, names)

    def adapt(self, minimum: int = 0, maximum: float | None = None, **options: Any) -> YarnAdaptive:
        """Scale the number of workers with the load of plain Dask work.

        Parameters
        ----------
        minimum, maximum : int
            Fewest and most workers; None is no limit.
        **options
            Dask's ``interval``, ``wait_count`` and ``target_duration``, and the options of
            ``Scheduler.workers_to_close``.
        """
        if self._adaptive is not None:
            self._adaptive.stop(reason="adapted-anew")
        chosen = {"minimum": minimum, "maximum": math.inf if maximum is None else maximum}
        self._adaptive_options = {**DEFAULTS, **self._adaptive_options, **chosen, **options}
        self._adaptive = YarnAdaptive(self, **self._adaptive_options)
        return self._adaptive

    async def _watch_worker_status(self, comm: Any) -> None:
        # Hold no reference to the cluster between two messages, so that it can be collected.
        reference = weakref.ref(self)
        del self
        try:
            while True:
                messages = await comm.read()
                cluster = reference()
                if cluster is None:
                    break
                for what, body in messages:
                    cluster._update_workers(what, body)
                del cluster
        except OSError:
            pass
        finally:
            await comm.close()

    def _update_workers(self, what: str, body: Any) -> None:
        workers = self.scheduler_info.setdefault("workers", {})
        if what == "add":
            workers.update(body["workers"])
            self._requested.update(worker["name"] for worker in body["workers"].values())
        elif what == "remove":
            worker = workers.pop(body, None)
            if worker is not None:
                self._requested.discard(worker["name"])
        if hasattr(self, "_status_widget"):
            self._status_widget.value = self._widget_status()

    # Threads and loops.

    def _is_on_own_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop_runner._loop.asyncio_loop
        except RuntimeError:
            return False

    def _sync(self, task: Awaitable[Any]) -> Any:
        """Wait for a task on the cluster's loop; when called on that loop, return the task."""
        if self._is_on_own_loop():
            return task
        is_gone = not self.asynchronous and not self._loop_runner.is_started()
        if is_gone and asyncio.iscoroutine(task):
            task.close()
            raise ConfigError("the cluster is closed; make a new YarnCluster")
        return super()._sync(task)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run blocking work in a thread, or here if the interpreter no longer starts threads."""
        try:
            future = self.loop.run_in_executor(None, work, *arguments)
        except RuntimeError:
            return work(*arguments)
        return await future


def _log_of(lines: Iterable[tuple[str, str]]) -> Log:
    return Log("\n".join(line for _, line in lines))


def _close_all() -> None:
    for cluster in list(_open):
        with suppress(Exception):
            if not cluster.asynchronous:
                cluster.close()


atexit.register(_close_all)
