"""Room for the files that a process has open at a time."""

from __future__ import annotations

import contextlib
import functools
import resource


@functools.cache
def allow_open_files() -> None:
    """Let this process have half as many files open as its system lets it have, where that is more.

    Links take one each and mapped blocks of the cache another, and the usual limit of 1,024 is for
    programs that wait with ``select``. It is raised once; where that is refused all stays as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard // 2), hard))
