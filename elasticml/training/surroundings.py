"""What results depend on besides job and data: versions, the processor's class, BLAS threads."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from functools import cache
from typing import Any

from elasticml.terms import VERSION

#: Whose versions decide about bits.
_LIBRARIES = ("numpy", "scipy", "numba", "llvmlite")


@cache
def versions() -> dict[str, str]:
    """List the versions of Python, of this package, and of the libraries that compute."""
    found = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"elasticml": VERSION, "python": platform.python_version(), **found}


@cache
def cpu_class() -> str:
    """Name the processor as compilers see it, with a digest of its features.

    Two processors of one class run the same machine code for the same kernel.
    """
    from llvmlite import binding

    features = ",".join(f"{k}{v:d}" for k, v in sorted(binding.get_host_cpu_features().items()))
    digest = hashlib.blake2b(features.encode(), digest_size=4).hexdigest()
    return f"{binding.get_host_cpu_name()}-{digest}"


def blas_threads() -> int:
    """Return how many threads the linear algebra library uses: its sums depend on it."""
    return int(
        max((i["num_threads"] for i in _controller().select(user_api="blas").info()), default=1)
    )


class BlasThreads:
    """Has the linear algebra library use so many threads from now on; a change takes some 100 us.

    A context manager: in the end the number is what it was.
    """

    def __init__(self) -> None:
        self._before = self._now = blas_threads()

    def set(self, n_threads: int) -> None:
        """Use so many threads; costs nothing where that is so already."""
        if n_threads != self._now:
            self._now = n_threads
            for library in _controller().select(user_api="blas").lib_controllers:
                library.set_num_threads(n_threads)

    def __enter__(self) -> BlasThreads:
        return self

    def __exit__(self, *error: object) -> None:
        self.set(self._before)


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
