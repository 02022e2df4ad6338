"""HDFS through Hadoop's own client library, with a Java virtual machine in this process."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, Final

import pyarrow.fs

from elasticml.data.storage.hdfs import class_path
from elasticml.data.storage.webhdfs import WebHdfs

#: By default Java takes a quarter of the machine's memory, more than a container has.
_HEAP: Final = "-Xmx256m"


class LibHdfs(WebHdfs):
    """HDFS that reads byte ranges with pyarrow and libhdfs; all other calls use WebHDFS.

    libhdfs reports modification times in whole seconds, so members with and without it would not
    agree on a file's fingerprint; it renames in two steps and reports failures as numbers.

    Parameters
    ----------
    authority : str
        As in a URL: ``host:port``, or the name of a name service.
    addresses, user, token
        As for :class:`elasticml.data.storage.webhdfs.WebHdfs`.
    """

    def __init__(
        self, authority: str, addresses: tuple[str, ...], user: str, token: str | None
    ) -> None:
        super().__init__(addresses, user, token)
        self._authority = authority
        self._user = user

    @cached_property
    def _java(self) -> Any:
        os.environ.setdefault("CLASSPATH", class_path(os.environ))
        os.environ.setdefault("LIBHDFS_OPTS", _HEAP)
        host, _, port = self._authority.partition(":")
        return pyarrow.fs.HadoopFileSystem(host, int(port or 0), user=self._user or None)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """Read bytes from ``start`` up to ``end``, both at least 0; by default the whole file."""
        if end is None:  # small files, which may be absent
            return super().cat_file(path, start, end, **options)
        with self._java.open_input_file(self._strip_protocol(path)) as file:
            return bytes(file.read_at(end - (start or 0), start or 0))
