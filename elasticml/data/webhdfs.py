"""HDFS over HTTP, as an fsspec file system: byte ranges from the data nodes, whole-file writes."""

from __future__ import annotations

import errno
import tempfile
import time
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlencode, urlsplit

from fsspec.caching import BaseCache
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from elasticml.data.web import Answer, ask

#: Seconds between the attempts to reach a name node; a read tries as many data nodes.
_PAUSES_S: Final = (0.2, 1.0)
#: The least and the most that is read ahead of who reads on.
_AHEAD_BYTES_MIN: Final = 64 * 2**10
_AHEAD_BYTES_MAX: Final = 8 * 2**20
_SPOOL_BYTES_MAX: Final = 64 * 2**20

#: What the name node's exceptions mean; the rest is an OSError with their message.
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
#: A name node that is on standby, or has just become active.
_ELSEWHERE: Final = ("StandbyException", "RetriableException")


class WebHdfs(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """HDFS through the name node's web service.

    Parameters
    ----------
    addresses : tuple of str
        ``http://host:port`` of the name node, of each where there are several.
    user : str
        Who reads and writes; "" where the server finds that out, by Kerberos or token.
    token : str, optional
        A delegation token.
    """

    protocol = "hdfs"
    root_marker = "/"
    #: Two with the same arguments are one, which remembers the active name node.
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
        """List a directory; of a file, itself."""
        path = self._strip_protocol(path)
        found = self._call("GET", path, "LISTSTATUS").json()["FileStatuses"]["FileStatus"]
        entries = [_entry(_below(path, status["pathSuffix"]), status) for status in found]
        return entries if detail else [entry["name"] for entry in entries]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """Read bytes from ``start`` up to ``end``, both at least 0; the whole without."""
        start = start or 0
        if end is not None and end <= start:
            return b""
        path = self._strip_protocol(path)
        range_ = {"offset": start} | ({} if end is None else {"length": end - start})
        unreachable: list[str] = []
        while True:
            told = {"excludedatanodes": ",".join(unreachable)} if unreachable else {}
            answer = self._call("GET", path, "OPEN", **range_, **told)
            if answer.status == 200:  # nothing is left from here on
                return answer.body
            location = answer.headers["location"]
            try:
                return self._checked(ask("GET", location), path).body
            except (ConnectionError, TimeoutError):
                if len(unreachable) == len(_PAUSES_S):
                    raise
                unreachable.append(urlsplit(location).netloc)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write a file, in place of any that is there; ``options`` are the name node's."""
        self._create(path, bytes(value), overwrite=str(mode != "create").lower(), **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Copy a local file here, as a stream."""
        with open(lpath, "rb") as file:
            self._create(rpath, file)

    def _create(self, path: str, content: bytes | BinaryIO, **options: Any) -> None:
        path = self._strip_protocol(path)
        told = {"overwrite": "true", **options}
        location = self._call("PUT", path, "CREATE", **told).headers["location"]
        headers = {"Content-Type": "application/octet-stream"}
        self._checked(ask("PUT", location, content, headers=headers), path)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Make a directory and those above it."""
        path = self._strip_protocol(path)
        self._call("PUT", path, "MKDIRS")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, "is there already", path)
        self.mkdir(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; directories with all that is in them, where ``recursive``."""
        for name in [path] if isinstance(path, str) else path:
            inner = self._strip_protocol(name)
            done = self._call("DELETE", inner, "DELETE", recursive=str(recursive).lower())
            if not done.json()["boolean"]:
                raise FileNotFoundError(errno.ENOENT, "does not exist", inner)

    def _rm(self, path: str) -> None:
        self.rm(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory; the name node itself refuses one that is not."""
        self.rm(path)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename a file, in one step in place of any that has the new name."""
        new = self._strip_protocol(path2)
        self._call(
            "PUT",
            self._strip_protocol(path1),
            "RENAME",
            destination=new,
            renameoptions="OVERWRITE",
        )

    def chmod(self, path: str, permission: str) -> None:
        """Set who may do what: ``"700"``."""
        self._call("PUT", self._strip_protocol(path), "SETPERMISSION", permission=permission)

    def home(self) -> str:
        """Return the user's own directory."""
        return str(self._call("GET", "/", "GETHOMEDIRECTORY").json()["Path"])

    def free_bytes(self) -> int | None:
        """Return how many bytes the file system has left; None where the server does not say."""
        try:
            found = self._call("GET", "/", "GETSTATUS").json()
        except (OSError, ValueError):
            return None
        return int(found["FsStatus"]["remaining"]) if "FsStatus" in found else None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            size = self.info(path)["size"]
            return _RangeFile(self, path, size=size)
        return _NewFile(self, path)

    def _call(self, method: str, path: str, operation: str, **more: Any) -> Answer:
        """Ask the active name node; tries all of them, a few times."""
        query = urlencode({"op": operation, **more, **self._who})
        for pause_s in (*_PAUSES_S, None):
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

    def _checked(self, answer: Answer, path: str) -> Answer:
        """Return an answer that is good; raise what a bad one says."""
        if answer.status < 400:
            return answer
        body = answer.json()
        remote = body.get("RemoteException", {}) if isinstance(body, dict) else {}
        name = remote.get("exception", "")
        said = str(remote.get("message", "")).strip().partition("\n")[0]
        if name in _ELSEWHERE or name.startswith("Standby") or "StandbyException" in said:
            raise ConnectionError(errno.EAGAIN, "the name node is on standby")
        # Of a wrapped exception the message begins with the class of the inner one.
        inner = said.partition(":")[0].rpartition(".")[2]
        kind, number = _ERRORS.get(inner) or _ERRORS.get(name, (OSError, errno.EIO))
        if answer.status == 401:
            kind, number = PermissionError, errno.EACCES
        what = said or f"the server answers {answer.status}, wanted WebHDFS"
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


class _GrowingCache(BaseCache):  # type: ignore[misc]  # fsspec has no types
    """Reads ahead, twice as far each time that reading goes on where it ended.

    A look at the first bytes costs little, and a decompressor that asks for small pieces gets
    them out of large requests.
    """

    name = "growing"

    def __init__(self, blocksize: int, fetcher: Any, size: int) -> None:
        super().__init__(blocksize, fetcher, size)
        self._start = 0
        self._bytes = b""
        self._ahead = _AHEAD_BYTES_MIN

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start = start or 0
        stop = min(self.size if stop is None else stop, self.size)
        if start >= stop:
            return b""
        have = self._start + len(self._bytes)
        if not (self._start <= start and stop <= have):
            kept = self._bytes[start - self._start :] if self._start <= start < have else b""
            is_onward = bool(self._bytes) and self._start <= start <= have
            self._ahead = min(2 * self._ahead, _AHEAD_BYTES_MAX) if is_onward else _AHEAD_BYTES_MIN
            until = min(self.size, stop + self._ahead)
            fetched = self.fetcher(start + len(kept), until)
            self._start, self._bytes = start, kept + fetched if kept else fetched
        return self._bytes[start - self._start : stop - self._start]


class _RangeFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file to read in ranges."""

    def __init__(self, system: WebHdfs, path: str, size: int) -> None:
        super().__init__(system, path, "rb", cache_type="none", size=size)
        self.cache = _GrowingCache(self.blocksize, self._fetch_range, size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        found: bytes = self.fs.cat_file(self.path, start=start, end=end)
        if len(found) < end - start:
            raise OSError(
                errno.EIO,
                f"has {start + len(found)} bytes, had {self.size} when it was opened; it was "
                "written anew meanwhile",
                self.path,
            )
        return found


class _NewFile(tempfile.SpooledTemporaryFile[bytes]):
    """A file to write, which is there when it is closed."""

    def __init__(self, system: WebHdfs, path: str) -> None:
        super().__init__(max_size=_SPOOL_BYTES_MAX)
        self._system = system
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.seek(0)
            self._system._create(self._path, self)  # type: ignore[arg-type]
        finally:
            super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:  # what was begun is not kept
            super().close()
        self.close()
