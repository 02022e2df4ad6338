"""Limits on open files and on the use of disks."""

from __future__ import annotations

import contextlib
import functools
import resource
from typing import Final

#: Caches and spilled chunks leave at least this share of a disk free.
FREE_SHARE_MIN: Final = 0.1


@functools.cache
def raise_open_file_limit() -> None:
    """Raise the soft limit on open files to half of the hard limit, if that is higher.

    Every link and every mapped block of the cache needs a descriptor; the usual limit of 1,024
    exists for programs that call ``select``. The limit is raised once; a refusal is ignored.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard // 2), hard))
