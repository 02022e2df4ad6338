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


def why_not_cuda() -> str | None:
    """Say why this process cannot compute on a CUDA device; None where it can.

    What numba itself says is not enough: it finds a device also where nothing can be compiled for
    it. So the smallest kernel is run. Numba's simulator counts as a device.
    """
    if not config.ENABLE_CUDASIM:
        try:
            ctypes.CDLL(_DRIVER)
        except OSError:
            return f"there is no {_DRIVER}, the driver of a GPU"
    try:
        if not cuda_module().is_available():
            return "numba finds no device"
        from elasticml.algorithms.cocoa.cuda_kernels import try_device

        try_device()
    except Exception as error:
        # Whatever numba, its compiler or the driver lack, they say in errors of their own.
        said = str(error).strip().splitlines() or [type(error).__name__]
        return f"numba cannot compute on it: {said[0]}"
    return None


def device_of(wanted: str) -> Device:
    """Return the device that a job asks for: "auto" is CUDA where this process has it.

    Raises
    ------
    ConfigError
        When CUDA is asked for and not there.
    """
    if wanted == "cpu":
        return "cpu"
    why = why_not_cuda()
    if why is None:
        return "cuda"
    if wanted == "cuda":
        raise ConfigError(
            f"algorithm.device is cuda, which this process cannot use ({why}); use device: auto, "
            "or pip install 'elasticml[gpu]' on workers that have a GPU",
            key="algorithm.device",
        )
    return "cpu"
