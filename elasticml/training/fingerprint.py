"""The environment that results depend on beside job and data: versions, CPU class, BLAS threads."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from functools import cache
from typing import Any

from elasticml.ids import VERSION

#: Libraries whose versions may change the bits of a result.
_LIBRARIES = ("numpy", "scipy", "numba", "llvmlite")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the numerical libraries."""
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"elasticml": VERSION, "python": platform.python_version(), **libraries}


@cache
def cpu_class() -> str:
    """Return LLVM's name of the CPU with a digest of its features.

    Two CPUs of one class run the same machine code for the same kernel.
    """
    from llvmlite import binding

    features = ",".join(f"{k}{v:d}" for k, v in sorted(binding.get_host_cpu_features().items()))
    digest = hashlib.blake2b(features.encode(), digest_size=4).hexdigest()
    return f"{binding.get_host_cpu_name()}-{digest}"


def blas_threads() -> int:
    """Return the number of BLAS threads, on which the order of BLAS's additions depends."""
    return int(
        max((i["num_threads"] for i in _controller().select(user_api="blas").info()), default=1)
    )


class BlasThreadLimit:
    """Set the number of BLAS threads; a change takes about 100 us.

    A context manager that restores the former number on exit.
    """

    def __init__(self) -> None:
        self._before = self._now = blas_threads()

    def set(self, n_threads: int) -> None:
        """Set the number of threads; free if it is already set."""
        if n_threads != self._now:
            self._now = n_threads
            for library in _controller().select(user_api="blas").lib_controllers:
                library.set_num_threads(n_threads)

    def __enter__(self) -> BlasThreadLimit:
        return self

    def __exit__(self, *error: object) -> None:
        self.set(self._before)


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
