"""PyTorch, loaded when it is first needed, and what a user is told where it is missing."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from typing import Any

from elasticml.errors import ConfigError


@functools.cache
def load_torch() -> Any:
    """Return the module ``torch``.

    Raises
    ------
    ConfigError
        When it is not installed in this process.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise torch_missing(error) from None
    with warnings.catch_warnings():
        # Said once a process: memory of chunks is read-only, and nobody here writes to it.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        torch.frombuffer(b"\0\0\0\0", dtype=torch.float32)
    return torch


def has_torch() -> bool:
    """Say whether PyTorch is installed, without loading it: that takes seconds."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # somebody has put something else in its place
        return False


def torch_missing(error: ImportError | None = None) -> ConfigError:
    """Make the error for a process without PyTorch."""
    found = "" if error is None or isinstance(error, ModuleNotFoundError) else f" ({error})"
    return ConfigError(
        f"algorithm.name is local_sgd, which needs PyTorch, and that is not installed here{found}; "
        "pip install 'elasticml[torch]', here, on every worker and on the scheduler",
        key="algorithm.name",
    )
