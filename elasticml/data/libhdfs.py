"""HDFS through Hadoop's own client library, which runs a Java machine inside this process."""

from __future__ import annotations

import os
from typing import Any, Final

from fsspec.implementations.arrow import HadoopFileSystem

from elasticml.data.hdfs import class_path
from elasticml.data.webhdfs import WebHdfs

#: Java would take a quarter of the machine's memory, which no container has.
_HEAP: Final = "-Xmx256m"


class LibHdfs(HadoopFileSystem):  # type: ignore[misc]  # fsspec has no types
    """HDFS through pyarrow and libhdfs.

    What a file is, and renaming in one step, still go over the web where it answers: libhdfs
    knows modification times to the second only, so that members with and without it would not
    agree on a file's fingerprint.

    Parameters
    ----------
    host : str or None
        None stands for the configuration's default.
    port : int
        0 for a name service.
    """

    def __init__(self, host: str | None, port: int, user: str, web: WebHdfs) -> None:
        os.environ.setdefault("CLASSPATH", class_path(os.environ))
        os.environ.setdefault("LIBHDFS_OPTS", _HEAP)
        super().__init__(host=host or "default", port=port, user=user or None)
        self._web = web

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return name, size, type and modification time in ms."""
        try:
            return dict(self._web.info(path))
        except (ConnectionError, TimeoutError):
            found = dict(super().info(path, **options))
            changed = found.pop("mtime")
            return {**found, "modificationTime": int(changed.timestamp() * 1000)}

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename a file, in place of any that has the new name."""
        try:
            self._web.mv(path1, path2)
        except (ConnectionError, TimeoutError):
            super().mv(path1, path2, **options)
