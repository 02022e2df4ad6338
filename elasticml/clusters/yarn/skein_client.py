"""Submit, find and finish applications through skein; errors are one line with a remedy."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from elasticml.clusters.yarn.application_spec import QUICK_JAVA, asked_containers
from elasticml.clusters.yarn.compat import import_skein
from elasticml.clusters.yarn.container_context import DASHBOARD_KEY, SCHEDULER_KEY
from elasticml.clusters.yarn.hadoop_conf import has_conf, is_secure, require_conf
from elasticml.clusters.yarn.notice_parser import HELLO
from elasticml.clusters.yarn.python_environments import read_environment
from elasticml.clusters.yarn.resource_manager import ResourceManager
from elasticml.clusters.yarn.resource_manager import check_grantable as ask_whether_grantable
from elasticml.errors import ConfigError, SubmissionError, one_line

if TYPE_CHECKING:
    import skein


# Submit and find applications through skein; errors are one line with a remedy.

logger = logging.getLogger(__name__)


def start_client(*, keytab: str | None = None, principal: str | None = None) -> skein.Client:
    """Return a skein client with a driver process of its own, which ends when the client is closed.

    Parameters
    ----------
    keytab, principal : str or None
        For Kerberos; None uses the ticket in the cache.

    Raises
    ------
    ConfigError
        When the keytab does not exist, or `yarn` or `java` is not on the PATH.
    SubmissionError
        When the driver does not start; the message has the reason from its log.
    """
    model = import_skein()
    _check_keytab(keytab, principal)
    with tempfile.TemporaryDirectory(prefix="elasticml-skein-") as folder:
        log = Path(folder) / "driver.log"
        try:
            # skein leaves its log file open and warns when it creates credentials.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return model.Client(
                    keytab=keytab, principal=principal, log=str(log), java_options=_java_options()
                )
        except FileNotFoundError as error:
            raise ConfigError(
                f"skein needs the command {error.filename or error}, which is not on the PATH; "
                "install Hadoop's client and Java, or run where they are installed"
            ) from error
        except (model.exceptions.SkeinError, OSError) as error:
            raise SubmissionError(
                f"skein's driver did not start: {_reason_in(log) or one_line(error)}; see "
                "elasticml doctor --yarn"
            ) from error


@contextmanager
def client_or_own(
    client: skein.Client | None, keytab: str | None = None, principal: str | None = None
) -> Iterator[skein.Client]:
    """Yield the given client, or else a new one that is closed afterwards."""
    if client is not None:
        yield client
        return
    own = start_client(keytab=keytab, principal=principal)
    try:
        yield own
    finally:
        own.close()


def default_credentials() -> skein.Security:
    """Return this user's credentials, created if absent; inside a container, the container's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_skein().Security.from_default()


def check_grantable(spec: skein.ApplicationSpec) -> None:
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


def submit(client: skein.Client, spec: skein.ApplicationSpec) -> str:
    """Submit an application and return its id at once.

    Raises
    ------
    SubmissionError
        When the ResourceManager refuses it.
    """
    try:
        return str(client.submit(spec))
    except (import_skein().exceptions.SkeinError, ValueError) as error:
        raise SubmissionError(
            f"YARN refused {spec.name!r} in queue {spec.queue!r}: {one_line(error)}; see "
            "elasticml doctor --yarn"
        ) from error


@contextmanager
def explain_failed_start(
    client: skein.Client, app_id: str, environment: str | None = None
) -> Iterator[None]:
    """Convert the loss of a starting application into an error with YARN's reason.

    Parameters
    ----------
    client : skein.Client
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
    model = import_skein()
    try:
        yield
    except (model.ConnectionError, model.ApplicationNotRunningError, model.ApplicationError) as e:
        raise SubmissionError(
            f"{app_id} ended before its scheduler started: {diagnostics(client, app_id)};"
            f"{_environment_hint(environment)} see elasticml logs {app_id}",
            application=app_id,
        ) from e


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


def diagnostics(client: skein.Client, app_id: str) -> str:
    """Return YARN's diagnostics of an application that has ended, in one line."""
    with suppress(import_skein().exceptions.SkeinError):
        report = client.application_report(app_id)
        return one_line(report.diagnostics).rstrip(".") or f"its state is {report.state}"
    return "YARN gives no reason"


# Running applications.


def connect_running(client: skein.Client, app_id: str) -> skein.ApplicationClient:
    """Return the client of a running application.

    Raises
    ------
    SubmissionError
        When it is not running, or does not exist.
    """
    exceptions = import_skein().exceptions
    try:
        return client.connect(app_id, wait=False)
    except exceptions.ApplicationNotRunningError as error:
        raise SubmissionError(
            f"{app_id} is not running: {diagnostics(client, app_id)}; start another",
            application=app_id,
        ) from error
    except (exceptions.SkeinError, KeyError, ValueError) as error:
        raise SubmissionError(
            f"{app_id} cannot be found: {one_line(error)}; list applications: "
            "yarn application -list",
            application=app_id,
        ) from error


def current_application() -> skein.ApplicationClient:
    """Return the client of the application that this process belongs to.

    The variables that dask-yarn sets for local scripts name it, else skein's in a container.

    Raises
    ------
    ConfigError
        When it belongs to none.
    """
    model = import_skein()
    app_id = os.environ.get("DASK_APPLICATION_ID")
    address = os.environ.get("DASK_APPMASTER_ADDRESS")
    if app_id is not None and address is not None:
        folder = os.environ.get("DASK_SECURITY_CREDENTIALS")
        security = None if folder is None else model.Security.from_directory(folder)
        return model.ApplicationClient(address, app_id, security=security)
    if model.properties.application_id is None:
        raise ConfigError(
            "this process does not run in a YARN container; use from_application_id()"
        )
    return model.ApplicationClient.from_current()


@contextmanager
def explain_lost_connection(app_id: str) -> Iterator[None]:
    """Convert the loss of a running application into an error of one line."""
    exceptions = import_skein().exceptions
    try:
        yield
    except (exceptions.ConnectionError, exceptions.ApplicationError) as error:
        raise SubmissionError(
            f"{app_id} cannot be reached: {one_line(error)}; see elasticml status {app_id}",
            application=app_id,
        ) from error


def wait_for_addresses(app: skein.ApplicationClient) -> tuple[str, str | None]:
    """Wait for the address of the scheduler; return it and that of its dashboard, if any."""
    scheduler = app.kv.wait(SCHEDULER_KEY).decode()
    dashboard = app.kv.get(DASHBOARD_KEY)
    return scheduler, None if dashboard is None else dashboard.decode()


def post_addresses(app: skein.ApplicationClient, scheduler: str, dashboard: str | None) -> None:
    """Publish the scheduler's addresses to the containers and clients of an application."""
    # The dashboard first: clients wait only for the scheduler's address.
    if dashboard is not None:
        app.kv[DASHBOARD_KEY] = dashboard.encode()
    app.kv[SCHEDULER_KEY] = scheduler.encode()


def kill_containers(app: skein.ApplicationClient, names: Iterable[str]) -> None:
    """Kill containers; skip those that have ended."""
    for name in names:
        with suppress(ValueError, KeyError):
            app.kill_container(name)


def shut_down(
    app: skein.ApplicationClient, status: str = "SUCCEEDED", diagnostics: str | None = None
) -> None:
    """End an application; do nothing if it has ended."""
    with suppress(import_skein().exceptions.ConnectionError):
        app.shutdown(status=status, diagnostics=diagnostics)


def _java_options() -> str:
    """Return the options of the driver's JVM: the user's, else those for a short-lived JVM."""
    return os.environ.get("SKEIN_DRIVER_JAVA_OPTIONS") or " ".join(QUICK_JAVA)


def _check_keytab(keytab: str | None, principal: str | None) -> None:
    if keytab is None and principal is None:
        return
    if keytab is None:
        raise ConfigError(f"principal {principal!r} without a keytab; set keytab=PATH as well")
    if principal is None:
        raise ConfigError(f"keytab {keytab!r} without a principal; set principal=NAME as well")
    if not Path(keytab).is_file():
        raise ConfigError(
            f"keytab: there is no file {keytab}; name one that `klist -kt` can read, or leave both "
            "out and use `kinit`"
        )


def _reason_in(log: Path) -> str | None:
    """Return the line of a Java log with the error: the first exception, else the last line."""
    if not log.is_file():
        return None
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return next(iter(errors or lines[-1:]), None)


# Finish an application from within it, without further attempts by skein.


def finish_application(application: skein.ApplicationClient, status: str, diagnostics: str) -> None:
    """Finish an application whose next attempt would end the same way.

    skein restarts an application that has not succeeded until its attempts are used up. Therefore
    the application reports success to skein, and the agent reports the true status to YARN. Without
    the agent the remaining attempts run.

    Parameters
    ----------
    application : skein.ApplicationClient
    status : {"SUCCEEDED", "FAILED", "KILLED"}
        Final status for YARN.
    diagnostics : str
        Final message for YARN.
    """
    if status != "SUCCEEDED":
        hello = application.kv.get(HELLO)
        prefix = None if hello is None else json.loads(hello).get("end")
        if prefix is not None:
            # The agent recognises this prefix: yarn/agent, FinalStatus.java.
            status, diagnostics = "SUCCEEDED", f"{prefix}{status}: {diagnostics}"
    application.shutdown(status, diagnostics)
