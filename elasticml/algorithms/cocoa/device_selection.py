"""Choose where a member's local problem is solved: on the CPU, or on a GPU by numba's CUDA."""

from __future__ import annotations

import ctypes
from typing import Any, Final, Literal

from numba.core import config

from elasticml.errors import ConfigError, how_to_install, one_line

Device = Literal["cpu", "cuda"]
#: The driver's library; without it there is no GPU, and numba.cuda is not loaded.
_DRIVER: Final = "libcuda.so.1"
#: Stored values of a member's rows from which "auto" chooses a GPU: a guess, not measured. A CPU
#: thread makes a pass over fewer in about a tenth of a second.
AUTO_VALUES_MIN: Final = 50_000_000


def cuda_module() -> Any:
    """Return ``numba.cuda``, loaded at the first call, which takes a tenth of a second."""
    from numba import cuda

    return cuda


def why_not_cuda() -> str | None:
    """Return the reason why this process cannot use a CUDA device; None if it can.

    Numba's own check is not enough: it also reports a device for which nothing can be compiled.
    The smallest kernel is therefore run, which takes seconds the first time. Numba's simulator
    counts as a device.
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
        # Numba, its compiler and the driver each raise their own errors for what they lack.
        return f"numba cannot compute on it: {one_line(error)}"
    return None


def _why_no_driver() -> str | None:
    if config.ENABLE_CUDASIM:
        return None
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"there is no {_DRIVER}, the driver of a GPU"
    return None


def check_driver(setting: str) -> None:
    """Refuse CUDA early where there is no driver; the check takes no time.

    Raises
    ------
    ConfigError
        When CUDA is requested and there is no driver.
    """
    why = _why_no_driver() if setting == "cuda" else None
    if why is not None:
        raise _refusal(why)


def device_of(setting: str, n_values: int) -> Device:
    """Return the device for a job's setting.

    Parameters
    ----------
    setting : {"auto", "cpu", "cuda"}
        "auto" is CUDA if this process can use it and there is enough work.
    n_values : int
        Stored values of the rows.

    Raises
    ------
    ConfigError
        When CUDA is requested but not available.
    """
    if setting == "cpu" or (setting == "auto" and n_values < AUTO_VALUES_MIN):
        return "cpu"
    why = why_not_cuda()
    if why is None:
        return "cuda"
    if setting == "cuda":
        raise _refusal(why)
    return "cpu"


def _refusal(why: str) -> ConfigError:
    return ConfigError(
        f"algorithm.device is cuda, which this process cannot use ({why}); use device: auto, "
        f"or, on workers that have a GPU, {how_to_install('gpu')}"
    )
