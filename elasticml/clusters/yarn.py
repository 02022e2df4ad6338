"""A Dask cluster in containers of Hadoop YARN, with elasticml's scheduler and workers.

It accepts the arguments, the configuration (``yarn.*``) and the specifications of dask-yarn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import dask

from elasticml.clusters.notices import with_agent
from elasticml.clusters.on_yarn import spec as specs
from elasticml.clusters.on_yarn import submission
from elasticml.clusters.on_yarn.application import ApplicationCluster
from elasticml.clusters.on_yarn.tls import wants_tls

if TYPE_CHECKING:
    import skein
    from tornado.ioloop import IOLoop


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
            application_client=submission.current_application(),
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
        with submission.client_or_own(skein_client) as client:
            application = submission.connect_running(client, app_id)
        self._begin(application_client=application, asynchronous=asynchronous, loop=loop)
        return self
