"""WebHDFS as an fsspec file system: byte ranges from the data nodes, whole-file writes."""

from __future__ import annotations

import errno
import time
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlencode, urlsplit

from fsspec.caching import ReadAheadCache
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from elasticml.data.storage.hadoop_http import HttpResponse, ask

#: Seconds between attempts to reach a name node; a read tries as many further data nodes.
PAUSES_S: Final = (0.2, 1.0)
#: Smallest and largest read-ahead of sequential reads.
_AHEAD_BYTES_MIN: Final = 64 * 2**10
_AHEAD_BYTES_MAX: Final = 8 * 2**20

#: Python exceptions for the name node's exceptions; others become an OSError with their message.
_ERRORS: Final[dict[str, tuple[type[OSError], int]]] = {
    "AccessControlException": (PermissionError, errno.EACCES),
    "DSQuotaExceededException": (OSError, errno.EDQUOT),
    "FileAlreadyExistsException": (FileExistsError, errno.EEXIST),
    "FileNotFoundException": (FileNotFoundError, errno.ENOENT),
    "InvalidToken": (PermissionError, errno.EACCES),
    "NSQuotaExceededException": (OSError, errno.EDQUOT),
    "ParentNotDirectoryException": (NotADirectoryError, errno.ENOTDIR),
    "PathIsNotEmptyDirectoryException": (OSError, errno.ENOTEMPTY),
    "SafeModeException": (OSError, errno.EROFS),
    "SecurityException": (PermissionError, errno.EACCES),
}
#: Exceptions of a name node that is on standby, or has just become active.
_ELSEWHERE: Final = ("StandbyException", "RetriableException")


class WebHdfs(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """HDFS through the name node's web service.

    Parameters
    ----------
    addresses : tuple of str
        ``http://host:port`` of every name node.
    user : str
        User name; "" if the server determines it by Kerberos or token.
    token : str, optional
        A delegation token.
    """

    protocol = "hdfs"
    root_marker = "/"
    #: Instances with the same arguments are shared, and so remember the active name node.
    cachable = True

    def __init__(
        self, addresses: tuple[str, ...], user: str = "", token: str | None = None
    ) -> None:
        super().__init__(use_listings_cache=False)
        self.addresses = addresses
        self._who = {"delegation": token} if token else {"user.name": user} if user else {}
        self._active = addresses[0]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        inner = path.partition("://")[2].partition("/")[2] if "://" in path else path
        return "/" + inner.strip("/")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return name, size, type and modification time in ms."""
        path = self._strip_protocol(path)
        return _entry(path, self._call("GET", path, "GETFILESTATUS").json()["FileStatus"])

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """List a directory; for a file, return its own entry."""
        path = self._strip_protocol(path)
        statuses = self._call("GET", path, "LISTSTATUS").json()["FileStatuses"]["FileStatus"]
        entries = [_entry(_below(path, status["pathSuffix"]), status) for status in statuses]
        return entries if detail else [entry["name"] for entry in entries]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """Read bytes from ``start`` up to ``end``, both at least 0; by default the whole file."""
        start = start or 0
        if end is not None and end <= start:
            return b""
        path = self._strip_protocol(path)
        range_ = {"offset": start} | ({} if end is None else {"length": end - start})
        unreachable: list[str] = []
        while True:
            excluded = {"excludedatanodes": ",".join(unreachable)} if unreachable else {}
            answer = self._call("GET", path, "OPEN", **range_, **excluded)
            if answer.status == 200:  # no redirect: there is nothing to read from ``start`` on
                return answer.body
            location = answer.headers["location"]
            try:
                return self._checked(ask("GET", location), path).body
            except (ConnectionError, TimeoutError):
                if len(unreachable) == len(PAUSES_S):
                    raise
                unreachable.append(urlsplit(location).netloc)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write a file, by default replacing an existing one; ``options`` go to the name node."""
        self._create(path, bytes(value), overwrite=str(mode != "create").lower(), **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Upload a local file as a stream."""
        with open(lpath, "rb") as file:
            self._create(rpath, file)

    def _create(self, path: str, content: bytes | BinaryIO, **options: Any) -> None:
        path = self._strip_protocol(path)
        parameters = {"overwrite": "true", **options}
        location = self._call("PUT", path, "CREATE", **parameters).headers["location"]
        headers = {"Content-Type": "application/octet-stream"}
        self._checked(ask("PUT", location, content, headers=headers), path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a directory and its parents."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, "exists already", path)
        self._call("PUT", self._strip_protocol(path), "MKDIRS")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with ``recursive``, also directories and their content."""
        for name in [path] if isinstance(path, str) else path:
            inner = self._strip_protocol(name)
            response = self._call("DELETE", inner, "DELETE", recursive=str(recursive).lower())
            if not response.json()["boolean"]:
                raise FileNotFoundError(errno.ENOENT, "does not exist", inner)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory; the name node refuses if it is not empty."""
        self.rm(path)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename a file atomically, replacing a file of the new name."""
        new = self._strip_protocol(path2)
        self._call(
            "PUT",
            self._strip_protocol(path1),
            "RENAME",
            destination=new,
            renameoptions="OVERWRITE",
        )

    def home(self) -> str:
        """Return the user's home directory."""
        return str(self._call("GET", "/", "GETHOMEDIRECTORY").json()["Path"])

    def free_bytes(self) -> int | None:
        """Return the free bytes of the file system; None if the server does not report them."""
        try:
            status = self._call("GET", "/", "GETSTATUS").json()
        except (OSError, ValueError):
            return None
        return int(status["FsStatus"]["remaining"]) if "FsStatus" in status else None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            raise ValueError(f"mode: got {mode!r}, wanted rb; pipe_file writes whole files")
        return _RangeFile(self, path, size=self.info(path)["size"])

    def _call(self, method: str, path: str, operation: str, **more: Any) -> HttpResponse:
        """Call the active name node; on failure try all name nodes, a few times."""
        query = urlencode({"op": operation, **more, **self._who})
        for pause_s in (*PAUSES_S, None):
            failure: OSError | None = None
            for address in (self._active, *(a for a in self.addresses if a != self._active)):
                url = f"{address}/webhdfs/v1{quote(path)}?{query}"
                try:
                    answer = self._checked(ask(method, url), path)
                except (ConnectionError, TimeoutError) as error:
                    failure = failure or error
                    continue
                self._active = address
                return answer
            if pause_s is None:
                assert failure is not None
                raise failure
            time.sleep(pause_s)
        raise AssertionError("unreachable")

    def _checked(self, answer: HttpResponse, path: str) -> HttpResponse:
        """Return a successful response; raise the exception that a failed one describes."""
        if answer.status < 400:
            return answer
        body = answer.json()
        remote = body.get("RemoteException", {}) if isinstance(body, dict) else {}
        name = remote.get("exception", "")
        message = str(remote.get("message", "")).strip().partition("\n")[0]
        if name in _ELSEWHERE or name.startswith("Standby") or "StandbyException" in message:
            raise ConnectionError(errno.EAGAIN, "the name node is on standby")
        # The message of a wrapped exception begins with the inner exception's class.
        inner = message.partition(":")[0].rpartition(".")[2]
        kind, number = _ERRORS.get(inner) or _ERRORS.get(name, (OSError, errno.EIO))
        if answer.status == 401:
            kind, number = PermissionError, errno.EACCES
        what = message or f"the server answers {answer.status}, wanted WebHDFS"
        raise kind(number, what, path)


def _entry(name: str, status: dict[str, Any]) -> dict[str, Any]:
    return {
        **status,
        "name": name,
        "size": int(status["length"]),
        "type": status["type"].lower(),
    }


def _below(path: str, suffix: str) -> str:
    return f"{path.rstrip('/')}/{suffix}" if suffix else path


class _GrowingCache(ReadAheadCache):  # type: ignore[misc]  # fsspec has no types
    """Read-ahead cache that doubles its read-ahead with each sequential read.

    Reading only the first bytes stays cheap, and a decompressor's small reads are served from
    large requests.
    """

    name = "growing"
    blocksize: int

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        first, last = start or 0, self.size if stop is None else min(stop, self.size)
        if first < self.start or last > self.end:
            is_onward = self.end > 0 and self.start <= first <= self.end
            longer = min(2 * self.blocksize, _AHEAD_BYTES_MAX)
            self.blocksize = longer if is_onward else _AHEAD_BYTES_MIN
        content: bytes = super()._fetch(first, last)
        return content


class _RangeFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file that is read in ranges."""

    def __init__(self, system: WebHdfs, path: str, size: int) -> None:
        super().__init__(system, path, "rb", cache_type="none", size=size)
        self.cache = _GrowingCache(self.blocksize, self._fetch_range, size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.cat_file(self.path, start=start, end=end)
        if len(content) < end - start:
            raise OSError(
                errno.EIO,
                f"has {start + len(content)} bytes, had {self.size} when it was opened; it was "
                "rewritten in between",
                self.path,
            )
        return content
