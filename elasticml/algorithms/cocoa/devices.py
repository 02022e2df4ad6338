"""Where a member's local problem is solved: on the processor, or on a GPU by numba's CUDA."""

from __future__ import annotations

import ctypes
from typing import Any, Final, Literal

from numba.core import config

from elasticml.errors import ConfigError

Device = Literal["cpu", "cuda"]
#: The driver's library; where there is none there is no GPU, and numba.cuda need not be loaded.
_DRIVER: Final = "libcuda.so.1"
#: Stored values of a member's rows from which "auto" takes a GPU: a guess, not measured. A pass
#: over fewer takes a thread of a processor about a tenth of a second.
AUTO_VALUES_MIN: Final = 50_000_000


def cuda_module() -> Any:
    """Return ``numba.cuda``, loaded when first asked for, which takes a tenth of a second."""
    from numba import cuda

    return cuda


def why_not_cuda() -> str | None:
    """Say why this process cannot compute on a CUDA device; None where it can.

    What numba itself says is not enough: it finds a device also where nothing can be compiled for
    it. So the smallest kernel is run: the first time that takes seconds. Numba's simulator counts
    as a device.
    """
    why = _why_no_driver()
    if why is not None:
        return why
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


def _why_no_driver() -> str | None:
    if config.ENABLE_CUDASIM:
        return None
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"there is no {_DRIVER}, the driver of a GPU"
    return None


def check_driver(wanted: str) -> None:
    """Refuse CUDA where it is plain that there is none, which takes no time to see.

    Raises
    ------
    ConfigError
        When CUDA is asked for and there is no driver.
    """
    why = _why_no_driver() if wanted == "cuda" else None
    if why is not None:
        raise _refusal(why)


def device_of(wanted: str, n_values: int) -> Device:
    """Return the device that a job asks for.

    Parameters
    ----------
    wanted : {"auto", "cpu", "cuda"}
        "auto" is CUDA where this process has it and there is enough to do.
    n_values : int
        Stored values of the rows.

    Raises
    ------
    ConfigError
        When CUDA is asked for and not there.
    """
    if wanted == "cpu" or (wanted == "auto" and n_values < AUTO_VALUES_MIN):
        return "cpu"
    why = why_not_cuda()
    if why is None:
        return "cuda"
    if wanted == "cuda":
        raise _refusal(why)
    return "cpu"


def _refusal(why: str) -> ConfigError:
    return ConfigError(
        f"algorithm.device is cuda, which this process cannot use ({why}); use device: auto, "
        "or pip install 'elasticml[gpu]' on workers that have a GPU",
        key="algorithm.device",
    )
