"""TLS between the scheduler, the workers and the clients of one application.

skein creates one self-signed certificate for each user (or application) and ships it to every
container. Dask uses the same one: a process that has the key belongs to the application.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticml.errors import ConfigError, one_line

if TYPE_CHECKING:
    import skein
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


def dask_security(credentials: skein.Security) -> Security:
    """Return Dask security settings with skein's credentials; encryption is required.

    Raises
    ------
    ConfigError
        When the certificate or the key cannot be read.
    """
    from distributed import Security

    certificate, key = pem(credentials, "cert"), pem(credentials, "key")
    fields: dict[str, Any] = {"tls_ca_file": certificate}
    for role in ("client", "scheduler", "worker"):
        fields[f"tls_{role}_cert"] = certificate
        fields[f"tls_{role}_key"] = key
    return Security(require_encryption=True, **fields)


def container_security() -> Security | None:
    """Return the settings for a process in a skein container; None if TLS is off."""
    from elasticml.clusters.yarn.compat import import_skein

    return dask_security(import_skein().Security.from_default()) if wants_tls() else None


def pem(credentials: skein.Security, what: str) -> str:
    """Return the text of skein's certificate (``"cert"``) or key (``"key"``)."""
    held = getattr(credentials, f"{what}_bytes")
    if held is not None:
        return bytes(held).decode()
    source = getattr(credentials, f"{what}_file").source
    try:
        return Path(source.removeprefix("file://")).read_text()
    except OSError as error:
        raise ConfigError(
            f"skein's credentials cannot be read: {one_line(error)}; create new ones: skein "
            "config gencerts --force"
        ) from error
