"""The protocol of ``yarn_client`` with skein: the only file that calls skein's clients.

skein's driver, a Java process, talks to the ResourceManager; its application master serves the
application's containers and store by gRPC.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from elasticml.clusters.yarn.application_spec import QUICK_JAVA
from elasticml.clusters.yarn.compat import import_skein
from elasticml.clusters.yarn.tls import Credentials, dask_security, wants_tls
from elasticml.clusters.yarn.yarn_client import (
    ApplicationLostError,
    ApplicationStatus,
    ContainerState,
    ServiceContainer,
    YarnCallError,
)
from elasticml.errors import ConfigError, SubmissionError, one_line

if TYPE_CHECKING:
    import skein
    from distributed import Security


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the protocol's errors instead of skein's."""
    errors = import_skein().exceptions
    try:
        yield
    except (errors.ConnectionError, errors.ApplicationError) as error:
        raise ApplicationLostError(one_line(error)) from error
    except (errors.SkeinError, ValueError, KeyError) as error:
        raise YarnCallError(one_line(error)) from error


class SkeinWatch:
    """Changes of keys, from a queue of skein's events."""

    def __init__(self, events: Any) -> None:
        self._events = events

    def get(self) -> tuple[str, bytes | None] | None:
        """Wait for the next change; None after ``stop``."""
        with _translated():
            event = self._events.get()
        if event is None:
            return None
        return event.key, None if event.result is None else event.result.value

    def stop(self) -> None:
        """Wake the thread that waits in ``get``."""
        self._events.put(None)


class SkeinStore:
    """The key-value store in skein's application master."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str) -> bytes | None:
        """Return a key's value."""
        with _translated():
            value: bytes | None = self._store.get(key)
            return value

    def put(self, key: str, value: bytes, owner: str | None = None) -> None:
        """Set a key; skein deletes it when its owner ends."""
        with _translated():
            self._store.put(key, value=value, **({} if owner is None else {"owner": owner}))

    def pop(self, key: str) -> bytes | None:
        """Delete a key and return its value."""
        with _translated():
            value: bytes | None = self._store.pop(key, None)
            return value

    def wait(self, key: str) -> bytes:
        """Wait until a key has a value."""
        with _translated():
            return bytes(self._store.wait(key))

    def with_prefix(self, prefix: str) -> dict[str, bytes]:
        """Return all keys that begin with a prefix."""
        with _translated():
            return dict(self._store.get_prefix(prefix))

    @contextmanager
    def watch(self, prefix: str) -> Iterator[SkeinWatch]:
        """Watch the keys that begin with a prefix."""
        with _translated():
            events = self._store.events(prefix=prefix)
        with events:
            yield SkeinWatch(events)


class SkeinApplication:
    """A running application of skein.

    Parameters
    ----------
    client : skein.ApplicationClient
    """

    def __init__(self, client: skein.ApplicationClient) -> None:
        self.client = client
        self.store = SkeinStore(client.kv)

    @property
    def id(self) -> str:
        """YARN's id."""
        return str(self.client.id)

    @property
    def credentials(self) -> Credentials:
        """The certificate and key that skein shipped to its containers."""
        return credentials_of(self.client.security)

    def specification(self) -> skein.ApplicationSpec:
        """Return its specification."""
        with _translated():
            return self.client.get_specification()

    def containers(
        self, services: Sequence[str] | None = None, states: Sequence[ContainerState] | None = None
    ) -> list[ServiceContainer]:
        """List containers; by default those that have not ended."""
        names = None if states is None else [state.upper() for state in states]
        with _translated():
            listed = self.client.get_containers(services, names)
        return [_container(one) for one in listed]

    def add(self, service: str) -> ServiceContainer:
        """Request one more container."""
        with _translated():
            return _container(self.client.add_container(service))

    def scale(self, service: str, count: int) -> list[ServiceContainer]:
        """Request or kill containers until there are ``count``; return the new ones."""
        with _translated():
            return [_container(one) for one in self.client.scale(service, count)]

    def kill(self, name: str) -> None:
        """Kill a container, or withdraw its request."""
        with _translated(), suppress(ValueError, KeyError):  # it has ended already
            self.client.kill_container(name)

    def set_progress(self, share: float) -> None:
        """Report the progress that YARN shows."""
        with _translated():
            self.client.set_progress(share)

    def shutdown(self, status: str, diagnostics: str | None = None) -> None:
        """End the application."""
        with _translated():
            self.client.shutdown(status=status, diagnostics=diagnostics)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        self.client.close()


def _container(one: Any) -> ServiceContainer:
    state: Any = str(one.state).lower()
    return ServiceContainer(
        name=one.id,
        service=one.service_name,
        instance=one.instance,
        state=state,
        container=one.yarn_container_id or "",
        node_http=one.yarn_node_http_address or "",
        message=one.exit_message or "",
    )


class SkeinClient:
    """A connection to the cluster through skein's driver.

    Parameters
    ----------
    client : skein.Client
    """

    def __init__(self, client: skein.Client) -> None:
        self.client = client

    @property
    def credentials(self) -> Credentials:
        """The certificate and key of this user's applications."""
        return credentials_of(self.client.security)

    def submit(self, spec: skein.ApplicationSpec) -> str:
        """Submit an application."""
        with _translated():
            return str(self.client.submit(spec))

    def connect(self, app_id: str, *, wait: bool = False, security: Any = None) -> SkeinApplication:
        """Connect to a running application."""
        with _translated():
            return SkeinApplication(self.client.connect(app_id, wait=wait, security=security))

    def status(self, app_id: str) -> ApplicationStatus:
        """Return an application's status."""
        with _translated():
            report = self.client.application_report(app_id)
        usage = report.usage
        return ApplicationStatus(
            state=str(report.state),
            final_status=str(report.final_status),
            queue=report.queue,
            user=report.user,
            diagnostics=one_line(report.diagnostics or ""),
            progress=report.progress,
            containers=max(0, usage.num_used_containers),
            vcores=max(0, usage.used_resources.vcores),
            memory_mib=max(0, usage.used_resources.memory),
            url=report.tracking_url,
        )

    def running(self, name: str) -> list[str]:
        """List the ids of the running applications of a name."""
        with _translated():
            found = self.client.get_applications(states=["RUNNING"], name=name)
        return [str(report.id) for report in found]

    def kill(self, app_id: str) -> None:
        """Kill an application."""
        with _translated():
            self.client.kill_application(app_id)

    def close(self) -> None:
        """End the driver process."""
        self.client.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the driver process."""
        self.close()


# Start a client, or find the application of this process.


def start_client(*, keytab: str | None = None, principal: str | None = None) -> SkeinClient:
    """Return a client with a driver process of its own, which ends when the client is closed.

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
                return SkeinClient(
                    model.Client(
                        keytab=keytab,
                        principal=principal,
                        log=str(log),
                        java_options=_java_options(),
                    )
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
) -> Iterator[SkeinClient]:
    """Yield the given client of skein, or else a new one that is closed afterwards."""
    if client is not None:
        yield SkeinClient(client)
        return
    with start_client(keytab=keytab, principal=principal) as own:
        yield own


def current_application() -> SkeinApplication:
    """Return the application that this process belongs to.

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
        return SkeinApplication(model.ApplicationClient(address, app_id, security=security))
    if model.properties.application_id is None:
        raise ConfigError(
            "this process does not run in a YARN container; use from_application_id()"
        )
    return SkeinApplication(model.ApplicationClient.from_current())


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


# Credentials: skein creates one self-signed certificate for each user, and ships it to every
# container of an application.


def credentials_of(security: skein.Security) -> Credentials:
    """Read skein's certificate and key.

    Raises
    ------
    ConfigError
        When they cannot be read.
    """
    return Credentials(certificate=_pem(security, "cert"), key=_pem(security, "key"))


def _pem(security: skein.Security, what: str) -> str:
    held = getattr(security, f"{what}_bytes")
    if held is not None:
        return bytes(held).decode()
    source = getattr(security, f"{what}_file").source
    try:
        return Path(source.removeprefix("file://")).read_text()
    except OSError as error:
        raise ConfigError(
            f"skein's credentials cannot be read: {one_line(error)}; create new ones: skein "
            "config gencerts --force"
        ) from error


def default_credentials() -> Credentials:
    """Return this user's credentials, created if absent; inside a container, the container's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return credentials_of(import_skein().Security.from_default())


def container_security() -> Security | None:
    """Return Dask's settings for a process in a container; None if TLS is off."""
    return dask_security(default_credentials()) if wants_tls() else None
