"""The environment that results depend on beside job and data: versions, CPU class, BLAS threads."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
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
    libraries = _blas("scipy.linalg" in sys.modules, "torch" in sys.modules).info()
    return max((library["num_threads"] for library in libraries), default=1)


@cache
def _blas(with_scipy: bool, with_torch: bool) -> Any:
    """Find the BLAS libraries, again when one came with another package: a search takes 10 ms."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
