"""HTTP and HTTPS requests to Hadoop's web services, with Kerberos if the server requires it."""

from __future__ import annotations

import base64
import errno
import http
import importlib
import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import urllib3

from elasticml.errors import one_line

TIMEOUT_S: Final = 30.0

#: Connections to one host that are kept for later requests.
_CONNECTIONS_MAX: Final = 8

#: Hadoop's authentication cookie by host; it saves later requests the Kerberos exchange.
_cookies: dict[str, str] = {}
_cookies_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A server's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body parsed as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(
    method: str,
    url: str,
    body: bytes | BinaryIO = b"",
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> HttpResponse:
    """Send one request and return the response; redirects are returned, not followed.

    Raises
    ------
    OSError
        When there is no response: ``ConnectionError`` with host and port, or ``TimeoutError``.
    PermissionError
        When the server requires Kerberos and there is no ticket, or no Kerberos library.
    """
    host = urlsplit(url).netloc
    request_headers = dict(headers or {})
    with _cookies_lock:
        if host in _cookies:
            request_headers["Cookie"] = _cookies[host]
    answer = _ask_once(method, url, body, request_headers, timeout_s)
    scheme = answer.headers.get("www-authenticate", "")
    if answer.status == http.HTTPStatus.UNAUTHORIZED and scheme.lower().startswith("negotiate"):
        if not isinstance(body, bytes):
            body.seek(0)
        request_headers.pop("Cookie", None)
        request_headers["Authorization"] = f"Negotiate {_ticket(urlsplit(url).hostname or '')}"
        answer = _ask_once(method, url, body, request_headers, timeout_s)
        cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        # A cookie without Kerberos is not kept: it would pin the first user name to the host.
        if cookie.startswith("hadoop.auth="):
            with _cookies_lock:
                _cookies[host] = cookie
    return answer


def _ask_once(
    method: str, url: str, body: bytes | BinaryIO, headers: Mapping[str, str], timeout_s: float
) -> HttpResponse:
    host, scheme = urlsplit(url).netloc, urlsplit(url).scheme
    # A server may close a connection that the pool keeps: what only reads is asked once more.
    reads = 1 if method == "GET" else 0
    try:
        answer = _pool().request(
            method,
            url,
            body=body if body or method in ("PUT", "POST") else None,
            headers=headers,
            timeout=timeout_s,
            retries=urllib3.Retry(None, connect=0, read=reads, redirect=0, status=0, other=0),
            redirect=False,
        )
    except urllib3.exceptions.HTTPError as error:
        cause = getattr(error, "reason", None) or error
        raise _unanswered(host, scheme, timeout_s, cause) from error
    names = {name.lower(): value for name, value in answer.headers.items()}
    return HttpResponse(status=answer.status, headers=names, body=answer.data)


@cache
def _pool() -> urllib3.PoolManager:
    """Return the connections of this process, kept for later requests; proxies are not used."""
    return urllib3.PoolManager(
        maxsize=_CONNECTIONS_MAX, blocksize=2**20, ssl_context=ssl.create_default_context()
    )


def _unanswered(host: str, scheme: str, timeout_s: float, error: object) -> OSError:
    """Say in one line why there was no response."""
    why = getattr(error, "strerror", None) or error
    for cause in (error, getattr(error, "__cause__", None), *getattr(error, "args", ())):
        if isinstance(cause, OSError) and cause.strerror:
            why = cause.strerror
    match error:
        case urllib3.exceptions.NameResolutionError():
            return ConnectionError(errno.EHOSTUNREACH, f"{host} cannot be reached ({why})")
        case urllib3.exceptions.NewConnectionError():
            return ConnectionError(errno.ECONNREFUSED, f"{host} does not answer ({why})")
        case urllib3.exceptions.TimeoutError():
            return TimeoutError(errno.ETIMEDOUT, f"{host} did not answer within {timeout_s:g} s")
        case urllib3.exceptions.SSLError():
            return ConnectionError(
                errno.ECONNABORTED,
                f"{host} is not trusted or does not speak TLS ({one_line(error)}); name its "
                "authority's certificates in SSL_CERT_FILE",
            )
    return ConnectionError(
        errno.ECONNRESET,
        f"{host} broke the connection or does not speak {scheme.upper()} ({type(error).__name__})",
    )


def _ticket(host: str) -> str:
    """Return the Negotiate token for a host, made from the user's Kerberos ticket."""
    try:
        gssapi = importlib.import_module("gssapi")
    except ImportError:
        raise PermissionError(
            errno.EACCES, f"{host} requires Kerberos; pip install gssapi, then kinit"
        ) from None
    try:
        name = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        token: bytes = gssapi.SecurityContext(name=name, usage="initiate").step()
    except gssapi.exceptions.GSSError as error:
        raise PermissionError(
            errno.EACCES,
            f"{host} requires Kerberos, and there is no usable ticket ({one_line(error)}); kinit "
            "first",
        ) from None
    return base64.b64encode(token).decode()
