"""Lazy import of PyTorch."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

from elasticml.specification.algorithms import torch_missing


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
