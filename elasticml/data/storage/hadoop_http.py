"""HTTP and HTTPS requests to Hadoop's web services, with Kerberos if the server requires it."""

from __future__ import annotations

import base64
import errno
import http.client
import importlib
import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from elasticml.errors import one_line

TIMEOUT_S: Final = 30.0

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
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.netloc, timeout_s)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    request_headers = dict(headers)
    if isinstance(body, bytes):
        if body or method in ("PUT", "POST"):
            request_headers["Content-Length"] = str(len(body))
    else:
        request_headers["Transfer-Encoding"] = "chunked"
    try:
        connection.request(
            method, path, body or None, request_headers, encode_chunked=not isinstance(body, bytes)
        )
        with connection.getresponse() as response:
            names = {name.lower(): value for name, value in response.getheaders()}
            return HttpResponse(status=response.status, headers=names, body=response.read())
    except ConnectionError as error:
        raise ConnectionError(
            error.errno, f"{parts.netloc} does not answer ({error.strerror or error})"
        ) from error
    except TimeoutError as error:
        raise TimeoutError(
            errno.ETIMEDOUT, f"{parts.netloc} did not answer within {timeout_s:g} s"
        ) from error
    except http.client.HTTPException as error:
        raise ConnectionError(
            errno.ECONNRESET,
            f"{parts.netloc} broke the connection or does not speak {parts.scheme.upper()} "
            f"({type(error).__name__})",
        ) from error
    except ssl.SSLError as error:
        raise ConnectionError(
            errno.ECONNABORTED,
            f"{parts.netloc} is not trusted or does not speak TLS ({error.reason or error}); name "
            "its authority's certificates in SSL_CERT_FILE",
        ) from error
    except OSError as error:  # mostly an unknown host
        raise ConnectionError(
            errno.EHOSTUNREACH, f"{parts.netloc} cannot be reached ({error.strerror or error})"
        ) from error
    finally:
        connection.close()


def _connection(scheme: str, netloc: str, timeout_s: float) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(netloc, timeout=timeout_s, context=context)
    connection = http.client.HTTPConnection(netloc, timeout=timeout_s)
    connection.blocksize = 2**20
    return connection


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
