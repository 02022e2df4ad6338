"""Where a member's local problem is solved: on the processor, or on a GPU by numba's CUDA."""

from __future__ import annotations

import ctypes
from typing import Any, Literal

from numba.core import config

from elasticml.errors import ConfigError

Device = Literal["cpu", "cuda"]
#: The driver's library; where there is none there is no GPU, and numba.cuda need not be loaded.
_DRIVER = "libcuda.so.1"


def cuda_module() -> Any:
    """Return ``numba.cuda``, loaded when first asked for, which takes a tenth of a second."""
    from numba import cuda

    return cuda


def has_cuda() -> bool:
    """Tell whether this process has a CUDA device, or numba's simulator of one."""
    if not config.ENABLE_CUDASIM:
        try:
            ctypes.CDLL(_DRIVER)
        except OSError:
            return False
    try:
        return bool(cuda_module().is_available())
    except ImportError:  # a numba without CUDA
        return False


def device_of(wanted: str) -> Device:
    """Return the device that a job asks for: "auto" is CUDA where this process has it.

    Raises
    ------
    ConfigError
        When CUDA is asked for and not there.
    """
    if wanted == "cpu":
        return "cpu"
    if has_cuda():
        return "cuda"
    if wanted == "cuda":
        raise ConfigError(
            "algorithm.device is cuda, and this process has no CUDA device that numba can use; "
            "use device: auto, or pip install 'elasticml[gpu]' on workers that have a GPU",
            key="algorithm.device",
        )
    return "cpu"
