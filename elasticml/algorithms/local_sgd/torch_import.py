"""Lazy import of PyTorch, and the error if it is not installed."""

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
        # Torch warns once per process that a buffer is read-only. Chunks are, on purpose.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        torch.frombuffer(b"\0\0\0\0", dtype=torch.float32)
    return torch


def has_torch() -> bool:
    """Return whether PyTorch is installed, without importing it, which takes seconds."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # sys.modules["torch"] is not a module
        return False


def torch_missing(error: ImportError | None = None) -> ConfigError:
    """Return the error for a process without PyTorch."""
    detail = "" if error is None or isinstance(error, ModuleNotFoundError) else f" ({error})"
    return ConfigError(
        f"algorithm.name is local_sgd, which needs PyTorch, and that is not installed here{detail}"
        "; pip install 'elasticml[torch]', here, on every worker and on the scheduler",
        key="algorithm.name",
    )
