"""TLS between the scheduler, the workers and the clients of one application.

skein creates one self-signed certificate for each user (or application) and ships it to every
container. Dask uses the same one: a process that has the key belongs to the application.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticml.errors import ConfigError

if TYPE_CHECKING:
    from distributed import Security

#: Environment variable with the value ``tls`` or ``none``, in containers and at clients.
SECURITY_VARIABLE = "ELASTICML_YARN_SECURITY"

#: The same setting in Dask's configuration, for clients.
SECURITY_SETTING = "yarn.security"


def wants_tls(choice: str | None = None) -> bool:
    """Return whether to encrypt connections; the default is yes.

    Parameters
    ----------
    choice : {"tls", "none"} or None
        None uses the environment variable, then Dask's configuration, then ``"tls"``.

    Raises
    ------
    ConfigError
        When the setting is neither.
    """
    import dask

    chosen = choice or os.environ.get(SECURITY_VARIABLE) or dask.config.get(SECURITY_SETTING, None)
    if chosen not in (None, "tls", "none"):
        raise ConfigError(
            f"security: got {chosen!r}, wanted 'tls' or 'none'; set {SECURITY_VARIABLE}=tls"
        )
    return chosen != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The certificate that the processes of one application show each other, and its key; PEM."""

    certificate: str
    key: str = field(repr=False)


def dask_security(credentials: Credentials) -> Security:
    """Return Dask security settings with an application's credentials; encryption is required."""
    from distributed import Security

    fields: dict[str, Any] = {"tls_ca_file": credentials.certificate}
    for role in ("client", "scheduler", "worker"):
        fields[f"tls_{role}_cert"] = credentials.certificate
        fields[f"tls_{role}_key"] = credentials.key
    return Security(require_encryption=True, **fields)
