"""``YarnCluster``: a Dask cluster in YARN containers, with elasticml's scheduler and workers.

It takes the arguments, the configuration (``yarn.*``) and the specifications of dask-yarn, and
extends dask-yarn's class: it replaces what no longer runs on today's distributed. The scheduler
runs in a container, or at the client (``deploy_mode="local"``).
"""

from __future__ import annotations

import asyncio
import atexit
import math
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import dask
from distributed.core import Status, rpc
from distributed.deploy.adaptive import Adaptive
from distributed.utils import Log, Logs

from elasticml.clusters.yarn import application_spec as specs
from elasticml.clusters.yarn import yarn_client
from elasticml.clusters.yarn.application_spec import with_agent
from elasticml.clusters.yarn.compat import import_dask_yarn
from elasticml.clusters.yarn.skein_client import (
    SkeinApplication,
    SkeinClient,
    client_or_own,
    credentials_of,
    current_application,
    default_credentials,
)
from elasticml.clusters.yarn.tls import dask_security, wants_tls
from elasticml.clusters.yarn.yarn_client import YarnApplication, YarnCallError, YarnClient
from elasticml.errors import ConfigError

if TYPE_CHECKING:
    import skein
    from distributed import Scheduler, Security
    from tornado.ioloop import IOLoop

    from elasticml.clusters.yarn.container_manager import ContainerManager


#: Default arguments of ``adapt()``, as in dask-yarn.
ADAPT_DEFAULTS: dict[str, Any] = {
    "interval": "1s",
    "wait_count": 3,
    "target_duration": "5s",
}


class YarnAdaptive(Adaptive):
    """Adaptive scaling over the containers of one application.

    Workers are named after their containers.
    """

    #: Fallback until the base class sets its own: its finaliser reads it even if __init__ raised.
    state = "inactive"

    @property
    def plan(self) -> set[str]:
        """Containers that should exist."""
        return self.requested

    @property
    def requested(self) -> set[str]:
        """Containers that skein has, has requested, or is about to start."""
        return set(self.cluster._requested)

    @property
    def observed(self) -> set[str]:
        """Containers whose workers have registered."""
        return set(self.cluster._observed)

    async def target(self) -> int:
        """Refresh the list of containers; return the number of workers that the load calls for."""
        await self.cluster._refresh()
        return int(await super().target())

    async def scale_up(self, n: int) -> None:
        """Request containers until there are ``n``."""
        await self.cluster._scale_up(n)

    async def scale_down(self, workers: list[str]) -> None:
        """Retire workers, which moves their results, then release their containers."""
        await self.cluster._scale_down(workers)


class LocalScheduler:
    """A scheduler in this process, on the loop that it is started on.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The running one.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._manager: ContainerManager | None = None

    @classmethod
    async def start(cls, security: Security | None, **listening: Any) -> LocalScheduler:
        """Start a scheduler; ``listening`` holds its host, port and dashboard address."""
        from distributed import Scheduler

        from elasticml.clusters.yarn.scheduler_service import ALLOWED_FAILURES

        protocol = "tcp" if security is None else "tls"
        return cls(
            await Scheduler(
                security=security,
                protocol=protocol,
                allowed_failures=ALLOWED_FAILURES,
                **listening,
            )
        )

    @property
    def address(self) -> str:
        """Dask address of the scheduler."""
        return str(self._scheduler.address)

    @property
    def dashboard_address(self) -> str | None:
        """URL of its dashboard; None if it has none."""
        service = self._scheduler.services.get("dashboard")
        if service is None:
            return None
        host = self.address.partition("://")[2].rpartition(":")[0]
        return f"http://{host}:{service.port}"

    async def keep(self, application: YarnApplication) -> None:
        """Start the container manager for an application's worker containers."""
        from elasticml.clusters.yarn.container_allocator import ContainerAllocator
        from elasticml.clusters.yarn.container_context import cluster_grace
        from elasticml.clusters.yarn.container_manager import ContainerManager
        from elasticml.clusters.yarn.notice_parser import preemption_times

        grace = await asyncio.to_thread(cluster_grace, "", of_cluster=True)
        self._manager = ContainerManager(
            self._scheduler, application, ContainerAllocator(), times=preemption_times(grace)
        )
        await self._manager.start()

    async def close(self) -> None:
        """Close the scheduler; the workers exit with it."""
        if self._manager is not None:
            await self._manager.close()
        await self._scheduler.close()


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
        self._submitted: tuple[YarnClient, str] | None = None
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
            await self._scheduler.keep(self._application)
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
        yarn_client.check_grantable(self.spec)
        with client_or_own(self._skein_client, *self._login) as client:
            app_id = yarn_client.submit(client, self.spec)
            self._submitted = client, app_id
            try:
                if self._is_abandoned.is_set():
                    raise asyncio.CancelledError
                with yarn_client.explain_failed_start(client, app_id, self._environment):
                    app = client.connect(app_id, wait=True, security=self.spec.master.security)
                    self._exchange_addresses(app)
            except BaseException:
                self._kill_submitted()
                raise
            finally:
                self._submitted = None
        self.application_client = app.client
        # The application ends when this object is closed or collected.
        self._finalizer = weakref.finalize(self, yarn_client.shut_down, app)

    def _exchange_addresses(self, app: YarnApplication) -> None:
        """Publish the local scheduler's address, or wait for the remote one's."""
        if self._scheduler is None:
            self.scheduler_address, self._dashboard_address = yarn_client.wait_for_addresses(app)
            return
        self.scheduler_address = self._scheduler.address
        self._dashboard_address = self._scheduler.dashboard_address
        yarn_client.post_addresses(app, self.scheduler_address, self._dashboard_address)

    def _connect_existing(self) -> None:
        app = self._application
        with yarn_client.explain_lost_connection(app.id):
            spec = app.specification()
            if specs.WORKER not in spec.services:
                raise ConfigError(
                    f"{app.id} is not a Dask cluster: it has no service {specs.WORKER!r}; name the "
                    "application of one"
                )
            self.scheduler_address, self._dashboard_address = yarn_client.wait_for_addresses(app)
        self.spec = spec
        self._tls = self.scheduler_address.startswith("tls://")

    def _kill_submitted(self) -> None:
        if self._submitted is not None:
            client, app_id = self._submitted
            with suppress(YarnCallError):
                client.kill(app_id)

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
            yarn_client.shut_down(self._application, status, diagnostics)
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
    def _application(self) -> SkeinApplication:
        """The application; dask-yarn's class keeps skein's client of it."""
        return SkeinApplication(self.application_client)

    @property
    def security(self) -> Security | None:
        """Dask's security settings for connections to the scheduler; None without encryption."""
        if not self._tls:
            return None
        if self.application_client is not None:
            return dask_security(self._application.credentials)
        if self.spec is not None and self.spec.master.security is not None:
            return dask_security(credentials_of(self.spec.master.security))
        if self._skein_client is not None:
            return dask_security(SkeinClient(self._skein_client).credentials)
        return dask_security(default_credentials())

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
            started = await self._in_thread(self._application.scale, specs.WORKER, n)
            self._requested.update(container.name for container in started)

    async def _scale_down(self, workers: Iterable[str]) -> None:
        names = list(workers)
        self._requested.difference_update(names)
        await self.scheduler_comm.retire_workers(names=names)
        await self._in_thread(yarn_client.kill_containers, self._application, names)

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
        self._adaptive_options = {**ADAPT_DEFAULTS, **self._adaptive_options, **chosen, **options}
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


class YarnCluster(ApplicationCluster):
    """Dask workers in YARN containers, with the scheduler in a container or at the client.

    Arguments that are not given default to ``yarn.*`` in Dask's configuration. If no argument
    describes containers and ``yarn.specification`` is set, that specification is used.

    Parameters
    ----------
    environment : str, optional
        Python environment of the containers, with elasticml installed: an archive (a local file or
        a URL), or a path on every node: ``venv:///path``, ``conda:///path``, ``python:///path``.
    n_workers : int, optional
        Initial number of workers.
    worker_vcores, scheduler_vcores : int, optional
        Virtual cores of a container.
    worker_memory, scheduler_memory : str or int, optional
        Memory of a container, such as ``"2 GiB"``, or bytes.
    worker_restarts : int, optional
        Failed workers that are replaced before the application fails; -1 is no limit.
    worker_env : dict, optional
        Environment variables of the workers.
    worker_class, worker_options : str and dict, optional
        As in dask-yarn.
    worker_gpus, scheduler_gpus : int, optional
        GPUs of a container.
    deploy_mode : {"remote", "local"}, optional
        Whether the scheduler runs in a container or in this process.
    name, queue, user : str, optional
        Name of the application, queue to submit to, user to impersonate.
    tags : sequence of str, optional
        Tags of the application.
    host, port, dashboard_address : optional
        Where a local scheduler listens.
    skein_client : skein.Client, optional
        Client to submit with; by default one is started for the submission.
    asynchronous : bool
        Whether the cluster is used in async code: await it, or enter it with ``async with``.
    loop : IOLoop, optional
        A running loop to use.
    security : {"tls", "none"}, optional
        Whether Dask's connections are encrypted, with skein's certificate.
    keytab, principal : str, optional
        For Kerberos.
    node_label : str, optional
        Label of the nodes to run on.
    nodes, racks : list of str, optional
        Hosts and racks for the workers.
    relax_locality : bool, optional
        Whether workers may run elsewhere when those are full.

    Raises
    ------
    ConfigError
        When an argument is wrong.
    SubmissionError
        When YARN cannot be reached, or could never grant the containers.

    Examples
    --------
    >>> cluster = em.YarnCluster(
    ...     environment="venv:///opt/elasticml", n_workers=4, queue="ml"
    ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        environment: str | None = None,
        n_workers: int | None = None,
        worker_vcores: int | None = None,
        worker_memory: str | int | None = None,
        worker_restarts: int | None = None,
        worker_env: Mapping[str, str] | None = None,
        worker_class: str | None = None,
        worker_options: Mapping[str, Any] | None = None,
        worker_gpus: int | None = None,
        scheduler_vcores: int | None = None,
        scheduler_gpus: int | None = None,
        scheduler_memory: str | int | None = None,
        deploy_mode: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        tags: Iterable[str] | None = None,
        user: str | None = None,
        host: str | None = None,
        port: int | None = None,
        dashboard_address: str | None = None,
        skein_client: skein.Client | None = None,
        asynchronous: bool = False,
        loop: IOLoop | None = None,
        *,
        security: str | None = None,
        keytab: str | None = None,
        principal: str | None = None,
        node_label: str | None = None,
        nodes: list[str] | None = None,
        racks: list[str] | None = None,
        relax_locality: bool | None = None,
    ) -> None:
        spec = specs.make_specification(
            environment=environment,
            n_workers=n_workers,
            worker_vcores=worker_vcores,
            worker_memory=worker_memory,
            worker_restarts=worker_restarts,
            worker_env=worker_env,
            worker_class=worker_class,
            worker_options=worker_options,
            worker_gpus=worker_gpus,
            scheduler_vcores=scheduler_vcores,
            scheduler_gpus=scheduler_gpus,
            scheduler_memory=scheduler_memory,
            deploy_mode=deploy_mode,
            name=name,
            queue=queue,
            tags=None if tags is None else sorted(tags),
            user=user,
        )
        spec = specs.with_placement(
            spec, node_label=node_label, nodes=nodes, racks=racks, relax_locality=relax_locality
        )
        self._begin(
            spec=with_agent(specs.with_security(spec, security)),
            tls=wants_tls(security),
            login=(keytab, principal),
            environment=environment or dask.config.get("yarn.environment", None),
            host=host,
            port=port,
            dashboard_address=dashboard_address,
            skein_client=skein_client,
            asynchronous=asynchronous,
            loop=loop,
        )

    @classmethod
    def from_specification(
        cls,
        spec: skein.ApplicationSpec | Mapping[str, Any] | str,
        skein_client: skein.Client | None = None,
        asynchronous: bool = False,
        loop: IOLoop | None = None,
        *,
        security: str | None = None,
        keytab: str | None = None,
        principal: str | None = None,
    ) -> Self:
        """Start a cluster from a dask-yarn specification, which need not mention elasticml.

        Parameters
        ----------
        spec : skein.ApplicationSpec, mapping or path
            It needs a service ``dask.worker``; without a service ``dask.scheduler`` the scheduler
            runs in this process.
        skein_client, asynchronous, loop, security, keytab, principal
            As for the class.
        """
        self = cls.__new__(cls)
        ours = specs.rewrite(specs.read_specification(spec))
        self._begin(
            spec=with_agent(specs.with_security(ours, security)),
            tls=wants_tls(security),
            login=(keytab, principal),
            skein_client=skein_client,
            asynchronous=asynchronous,
            loop=loop,
        )
        return self

    @classmethod
    def from_current(cls, asynchronous: bool = False, loop: IOLoop | None = None) -> Self:
        """Connect to the cluster from inside one of its containers."""
        self = cls.__new__(cls)
        self._begin(
            application_client=current_application().client,
            asynchronous=asynchronous,
            loop=loop,
        )
        return self

    @classmethod
    def from_application_id(
        cls,
        app_id: str,
        skein_client: skein.Client | None = None,
        asynchronous: bool = False,
        loop: IOLoop | None = None,
    ) -> Self:
        """Connect to the running cluster of an application; ``close`` leaves it running.

        Raises
        ------
        SubmissionError
            When the application is not running.
        """
        self = cls.__new__(cls)
        with (
            client_or_own(skein_client) as client,
            yarn_client.explain_not_running(client, app_id),
        ):
            application = client.connect(app_id)
        self._begin(application_client=application.client, asynchronous=asynchronous, loop=loop)
        return self
