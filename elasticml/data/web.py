"""Requests to the web services of Hadoop: HTTP, HTTPS, Kerberos where they ask for it."""

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

TIMEOUT_S: Final = 30.0

#: Hadoop's cookie of a signed-on user, by host; saves the Kerberos exchange of later requests.
_cookies: dict[str, str] = {}
_cookies_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Read the body as JSON; None where it is none."""
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
) -> Answer:
    """Send one request and return the answer, a redirect too; nothing is followed.

    Raises
    ------
    OSError
        When there is no answer: ``ConnectionError`` with host and port in it, ``TimeoutError``.
    PermissionError
        When the server wants Kerberos and there is no ticket, or no library for it.
    """
    host = urlsplit(url).netloc
    sent = dict(headers or {})
    with _cookies_lock:
        if host in _cookies:
            sent["Cookie"] = _cookies[host]
    answer = _ask_once(method, url, body, sent, timeout_s)
    wanted = answer.headers.get("www-authenticate", "")
    if answer.status == http.HTTPStatus.UNAUTHORIZED and wanted.lower().startswith("negotiate"):
        if not isinstance(body, bytes):
            body.seek(0)
        sent.pop("Cookie", None)
        sent["Authorization"] = f"Negotiate {_ticket(urlsplit(url).hostname or '')}"
        answer = _ask_once(method, url, body, sent, timeout_s)
        cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        # Without Kerberos the cookie would pin the first user name to the host.
        if cookie.startswith("hadoop.auth="):
            with _cookies_lock:
                _cookies[host] = cookie
    return answer


def _ask_once(
    method: str, url: str, body: bytes | BinaryIO, headers: Mapping[str, str], timeout_s: float
) -> Answer:
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.netloc, timeout_s)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    sent = dict(headers)
    if isinstance(body, bytes):
        if body or method in ("PUT", "POST"):
            sent["Content-Length"] = str(len(body))
    else:
        sent["Transfer-Encoding"] = "chunked"
    try:
        connection.request(
            method, path, body or None, sent, encode_chunked=not isinstance(body, bytes)
        )
        with connection.getresponse() as response:
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=names, body=response.read())
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
            f"{parts.netloc} broke off or speaks no {parts.scheme.upper()} "
            f"({type(error).__name__})",
        ) from error
    except ssl.SSLError as error:
        raise ConnectionError(
            errno.ECONNABORTED,
            f"{parts.netloc} is not trusted or speaks no TLS ({error.reason or error}); name its "
            "authority's certificates in SSL_CERT_FILE",
        ) from error
    except OSError as error:  # an unknown host, above all
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
    """Make the token that a service which asks for Kerberos wants, from the user's ticket."""
    try:
        gssapi = importlib.import_module("gssapi")
    except ImportError:
        raise PermissionError(
            errno.EACCES, f"{host} wants Kerberos; pip install gssapi, then kinit"
        ) from None
    try:
        name = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        token: bytes = gssapi.SecurityContext(name=name, usage="initiate").step()
    except gssapi.exceptions.GSSError as error:
        raise PermissionError(
            errno.EACCES,
            f"{host} wants Kerberos, and there is no usable ticket ({error}); kinit first",
        ) from None
    return base64.b64encode(token).decode()
