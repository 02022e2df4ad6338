"""The client of a cluster, from what a user names: a client, a cluster, an address, or nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from elasticml.errors import ConfigError, one_line, shown

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security


class ClusterLike(Protocol):
    """A cluster object, of Dask's or with the same interface."""

    @property
    def scheduler_address(self) -> str:
        """The scheduler's address."""


#: Where a job runs. None is Dask's current client.
Target: TypeAlias = "Client | ClusterLike | str | None"

#: Seconds for a scheduler to respond.
CONNECT_S = 10


def client_of(target: Target) -> tuple[Client, bool]:
    """Return the client of a cluster, and whether it was made here, to be closed after use.

    Raises
    ------
    ConfigError
        When there is no client, no cluster, or no scheduler at the address.
    """
    from distributed import Client, get_client

    if target is None:
        try:
            return get_client(), False
        except ValueError:
            raise ConfigError(
                "client: this process has none, wanted one; give a client, a cluster or an address "
                '("tcp://scheduler:8786"), or make one first: client = Client(cluster)'
            ) from None
    if isinstance(target, str):
        return connect(target), True
    if hasattr(target, "scheduler_address"):
        is_awaited = bool(getattr(target, "asynchronous", False))
        try:
            made = Client(target, asynchronous=is_awaited, timeout=CONNECT_S, set_as_default=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"client: {shown(target)} cannot be reached ({one_line(error)}); start it first"
            ) from error
        return made, True
    if not callable(getattr(target, "sync", None)):
        raise ConfigError(
            f"client: got {shown(target)}, wanted a distributed.Client, a cluster, or a "
            'scheduler\'s address such as "tcp://scheduler:8786"'
        )
    return target, False


def connect(
    address: str | None,
    scheduler_file: str | None = None,
    security: Security | None = None,
    *,
    key: str = "client",
) -> Client:
    """Return a client of the scheduler at an address, or of the one that has written a file.

    Parameters
    ----------
    security : Security, optional
        By default what Dask's configuration says.
    key : str
        What messages call the setting.

    Raises
    ------
    ConfigError
        When no scheduler responds, or its certificate is missing.
    """
    from distributed import Client

    where = address or scheduler_file or ""
    _check_tls(where, security)
    try:
        return Client(
            address,
            scheduler_file=scheduler_file,
            security=security,
            timeout=CONNECT_S,
            set_as_default=False,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{key}: no scheduler answers at {where!r} ({type(error).__name__}); start one or "
            f"correct the {'address' if scheduler_file is None else 'scheduler file'}"
        ) from error


def _check_tls(where: str, security: Security | None) -> None:
    """Check the certificate for a scheduler: without one, Dask's client fails and waits for 20 s.

    Parameters
    ----------
    where : str
        The scheduler's address, or the file that it has written.
    security : Security, optional
        By default what Dask's configuration says.

    Raises
    ------
    ConfigError
        When the files of the certificate cannot be used, or there is none for a ``tls://`` address.
    """
    import dask.config
    from distributed.security import Security

    if security is None and dask.config.get("distributed.client.security-loader", None):
        return
    security = security or Security()
    try:
        context = security.get_connection_args("client")["ssl_context"]
    except (OSError, ValueError) as error:
        files = (security.tls_ca_file, security.tls_client_cert, security.tls_client_key)
        raise ConfigError(
            f"cluster.tls: {', '.join(map(str, files))} cannot be used: {one_line(error)}; give "
            "the PEM files of a certificate authority, a certificate and its key"
        ) from error
    address = where
    if "://" not in where:
        with suppress(OSError, ValueError, LookupError, TypeError):
            address = str(json.loads(Path(where).read_text(encoding="utf-8"))["address"])
    if address.startswith("tls://") and context is None:
        raise ConfigError(
            f"{address} is encrypted, and there is no certificate; give cluster.tls: {{ca, cert, "
            "key}, or set distributed.comm.tls in Dask's configuration"
        )
