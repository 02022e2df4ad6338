"""What elasticml needs of YARN: one protocol, and how its failures read to a user.

``YarnClient`` talks to the cluster, ``YarnApplication`` to one running application and its
key-value store. ``skein_client`` implements them with skein; nothing else calls skein. The
specification of an application stays in dask-yarn's format (``application_spec``).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from elasticml.clusters.yarn.application_spec import asked_containers
from elasticml.clusters.yarn.container_context import DASHBOARD_KEY, SCHEDULER_KEY
from elasticml.clusters.yarn.hadoop_conf import has_conf, is_secure, require_conf
from elasticml.clusters.yarn.notice_parser import HELLO
from elasticml.clusters.yarn.python_environments import read_environment
from elasticml.clusters.yarn.resource_manager import ResourceManager
from elasticml.clusters.yarn.resource_manager import check_grantable as ask_whether_grantable
from elasticml.errors import SubmissionError, one_line

if TYPE_CHECKING:
    from elasticml.clusters.yarn.tls import Credentials

logger = logging.getLogger(__name__)


ContainerState = Literal["waiting", "requested", "running", "succeeded", "failed", "killed"]
CONTAINER_STATES: tuple[ContainerState, ...] = (
    "waiting",
    "requested",
    "running",
    "succeeded",
    "failed",
    "killed",
)


class YarnCallError(Exception):
    """A call to YARN or to an application failed."""


class ApplicationLostError(YarnCallError):
    """The application does not run, or its master does not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContainer:
    """One container of an application's service, past, present or requested."""

    #: ``dask.worker_3``: its service and its instance.
    name: str
    service: str
    instance: int
    state: ContainerState
    #: YARN's id, ``container_…``; empty until it is granted.
    container: str = ""
    #: Web address of its node, ``host:port``; empty until it is granted.
    node_http: str = ""
    #: Why it ended, as YARN says.
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationStatus:
    """The status of an application, as reported by YARN."""

    #: SUBMITTED, ACCEPTED, RUNNING, FINISHED, FAILED, KILLED and the like.
    state: str
    #: UNDEFINED until it has ended, then SUCCEEDED, FAILED or KILLED.
    final_status: str
    queue: str
    user: str
    #: One line.
    diagnostics: str
    progress: float
    containers: int
    vcores: int
    memory_mib: int
    #: Its web page at the resource manager.
    url: str

    @property
    def is_over(self) -> bool:
        """Whether the application has ended."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


class KeyWatch(Protocol):
    """Changes of keys since it was opened."""

    def get(self) -> tuple[str, bytes | None] | None:
        """Wait for the next change: a key and its value, None if it was deleted.

        Return None after ``stop``.
        """

    def stop(self) -> None:
        """Wake the thread that waits in ``get``."""


class KeyValueStore(Protocol):
    """The store in an application's master: it lives as long as the master's attempt."""

    def get(self, key: str) -> bytes | None:
        """Return a key's value; None if it has none."""

    def put(self, key: str, value: bytes, owner: str | None = None) -> None:
        """Set a key; it is deleted when the container ``owner`` ends."""

    def pop(self, key: str) -> bytes | None:
        """Delete a key and return its value."""

    def wait(self, key: str) -> bytes:
        """Wait until a key has a value, and return it."""

    def with_prefix(self, prefix: str) -> dict[str, bytes]:
        """Return all keys that begin with a prefix, with their values."""

    def watch(self, prefix: str) -> AbstractContextManager[KeyWatch]:
        """Watch the keys that begin with a prefix."""


class YarnApplication(Protocol):
    """A running application. Every call may raise ``YarnCallError``."""

    @property
    def id(self) -> str:
        """YARN's id, ``application_…``."""

    @property
    def store(self) -> KeyValueStore:
        """The key-value store of its master."""

    @property
    def credentials(self) -> Credentials:
        """The certificate and key that its processes share."""

    def containers(
        self, services: Sequence[str] | None = None, states: Sequence[ContainerState] | None = None
    ) -> list[ServiceContainer]:
        """List containers; by default of all services, those that have not ended."""

    def add(self, service: str) -> ServiceContainer:
        """Request one more container."""

    def scale(self, service: str, count: int) -> list[ServiceContainer]:
        """Request or kill containers until there are ``count``; return the new ones."""

    def kill(self, name: str) -> None:
        """Kill a container, or withdraw its request; do nothing if it has ended."""

    def set_progress(self, share: float) -> None:
        """Report the progress, in [0, 1], that YARN shows."""

    def shutdown(self, status: str, diagnostics: str | None = None) -> None:
        """End the application with a final status: SUCCEEDED, FAILED or KILLED."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *error: object) -> None:
        """Close the connection; the application goes on."""


class YarnClient(Protocol):
    """A connection to the cluster. Every call may raise ``YarnCallError``."""

    def submit(self, spec: Any) -> str:
        """Submit an application, a specification in dask-yarn's format; return its id at once."""

    def connect(self, app_id: str, *, wait: bool = False, security: Any = None) -> YarnApplication:
        """Connect to a running application; with ``wait``, first wait until it runs."""

    def status(self, app_id: str) -> ApplicationStatus:
        """Return an application's status."""

    def running(self, name: str) -> list[str]:
        """List the ids of the running applications of a name."""

    def kill(self, app_id: str) -> None:
        """Kill an application."""


# Submit an application; errors are one line with a remedy.


def check_grantable(spec: Any) -> None:
    """Raise if the ResourceManager says that an application could never run.

    The check is skipped without a Hadoop configuration, or if a secured ResourceManager refuses to
    talk to this process; YARN itself then reports problems.

    Raises
    ------
    ConfigError
        When the configuration cannot be read.
    SubmissionError
        When the ResourceManager is down, the queue is unknown, or a container exceeds every node.
    """
    if not has_conf(os.environ):
        return
    conf = require_conf(os.environ)
    # One container of each kind: more may fit later.
    containers = [(ask.memory_mib, ask.vcores, ask.node_label) for ask in asked_containers(spec)]
    try:
        ask_whether_grantable(ResourceManager.from_conf(conf), spec.queue, containers)
    except SubmissionError as error:
        if not (is_secure(conf) and "url" in error.fields):
            raise
        logger.info("cannot check what the cluster can grant: %s", error)


def submit(client: YarnClient, spec: Any) -> str:
    """Submit an application and return its id at once.

    Raises
    ------
    SubmissionError
        When the ResourceManager refuses it.
    """
    try:
        return client.submit(spec)
    except YarnCallError as error:
        raise SubmissionError(
            f"YARN refused {spec.name!r} in queue {spec.queue!r}: {one_line(error)}; see "
            "elasticml doctor --yarn"
        ) from error


@contextmanager
def explain_failed_start(
    client: YarnClient, app_id: str, environment: str | None = None
) -> Iterator[None]:
    """Convert the loss of a starting application into an error with YARN's reason.

    Parameters
    ----------
    client : YarnClient
        Client to query YARN with.
    app_id : str
        The application.
    environment : str or None
        Python environment of its containers, if known.

    Raises
    ------
    SubmissionError
        When the application has ended.
    """
    try:
        yield
    except ApplicationLostError as error:
        raise SubmissionError(
            f"{app_id} ended before its scheduler started: {diagnostics(client, app_id)};"
            f"{_environment_hint(environment)} see elasticml logs {app_id}",
            application=app_id,
        ) from error


def _environment_hint(environment: str | None) -> str:
    """Return a hint that the environment may be missing on the nodes; empty for an archive."""
    if environment is None:
        return ""
    python = read_environment(environment)
    if python.kind == "archive":
        return ""
    is_here = python.kind == "conda" or Path(python.place).exists()
    here = "" if is_here else ", which is not on this machine,"
    return f" is {environment}{here} on every node?"


def diagnostics(client: YarnClient, app_id: str) -> str:
    """Return YARN's diagnostics of an application that has ended, in one line."""
    with suppress(YarnCallError):
        status = client.status(app_id)
        return status.diagnostics.rstrip(".") or f"its state is {status.state}"
    return "YARN gives no reason"


# Running applications.


@contextmanager
def explain_not_running(client: YarnClient, app_id: str) -> Iterator[None]:
    """Convert a refused connection to an application into an error of one line.

    Raises
    ------
    SubmissionError
        When it is not running, or does not exist.
    """
    try:
        yield
    except ApplicationLostError as error:
        raise SubmissionError(
            f"{app_id} is not running: {diagnostics(client, app_id)}; start another",
            application=app_id,
        ) from error
    except YarnCallError as error:
        raise SubmissionError(
            f"{app_id} cannot be found: {one_line(error)}; list applications: "
            "yarn application -list",
            application=app_id,
        ) from error


@contextmanager
def explain_lost_connection(app_id: str) -> Iterator[None]:
    """Convert the loss of a running application into an error of one line."""
    try:
        yield
    except ApplicationLostError as error:
        raise SubmissionError(
            f"{app_id} cannot be reached: {one_line(error)}; see elasticml status {app_id}",
            application=app_id,
        ) from error


def wait_for_addresses(app: YarnApplication) -> tuple[str, str | None]:
    """Wait for the address of the scheduler; return it and that of its dashboard, if any."""
    scheduler = app.store.wait(SCHEDULER_KEY).decode()
    dashboard = app.store.get(DASHBOARD_KEY)
    return scheduler, None if dashboard is None else dashboard.decode()


def post_addresses(
    app: YarnApplication, scheduler: str, dashboard: str | None, owner: str | None = None
) -> None:
    """Publish the scheduler's addresses to the containers and clients of an application."""
    # The dashboard first: clients wait only for the scheduler's address.
    if dashboard is not None:
        app.store.put(DASHBOARD_KEY, dashboard.encode(), owner)
    app.store.put(SCHEDULER_KEY, scheduler.encode(), owner)


def kill_containers(app: YarnApplication, names: Iterable[str]) -> None:
    """Kill containers; skip those that have ended."""
    for name in names:
        app.kill(name)


def shut_down(
    app: YarnApplication, status: str = "SUCCEEDED", diagnostics: str | None = None
) -> None:
    """End an application; do nothing if it has ended."""
    with suppress(ApplicationLostError):
        app.shutdown(status, diagnostics)


def finish_application(application: YarnApplication, status: str, diagnostics: str) -> None:
    """Finish an application from within it, if its next attempt would end the same way.

    skein restarts an application that has not succeeded until its attempts are used up. Therefore
    the application reports success to skein, and the agent reports the true status to YARN. Without
    the agent the remaining attempts run.

    Parameters
    ----------
    application : YarnApplication
    status : {"SUCCEEDED", "FAILED", "KILLED"}
        Final status for YARN.
    diagnostics : str
        Final message for YARN.
    """
    if status != "SUCCEEDED":
        hello = application.store.get(HELLO)
        prefix = None if hello is None else json.loads(hello).get("end")
        if prefix is not None:
            # The agent recognises this prefix: yarn/agent, FinalStatus.java.
            status, diagnostics = "SUCCEEDED", f"{prefix}{status}: {diagnostics}"
    application.shutdown(status, diagnostics)
