"""Modules that take long to load: which an algorithm needs, and their warm-up.

With an empty cache each module with compiled kernels takes seconds to compile; so does the import
of PyTorch. A worker of our own clusters does it before it registers; a member on any other worker
does it before it reports that it is ready, so that no round waits for it. Imports nothing that
compiles, so that a small process may import it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

#: Kernels that every algorithm uses.
_ALWAYS: Final = ("elasticml.data.chunks.products", "elasticml.objectives.loss_kernels")
#: Loaded only where an algorithm needs it: it takes seconds and 300 MB.
_TORCH: Final = "torch"
_OF_ALGORITHM: Final[dict[str, tuple[str, ...]]] = {
    "async_sgd": ("elasticml.algorithms.async_sgd.kmeans",),
    "batch_gradient": ("elasticml.algorithms.batch_gradient.solver",),
    "cocoa": (
        "elasticml.algorithms.cocoa.dual_blocks",
        "elasticml.algorithms.cocoa.line_search",
        "elasticml.algorithms.cocoa.local_pass",
    ),
    "local_sgd": (_TORCH,),
    "primal_cocoa": (
        "elasticml.algorithms.cocoa.column_blocks",
        "elasticml.algorithms.cocoa.line_search",
    ),
}

#: Algorithms for which this process was warmed up as a whole, before its members began.
_warm: set[str] = set()


def warms_up(algorithm: str) -> bool:
    """Whether the kernels of an algorithm are known; those of one at an import path are not."""
    return algorithm in _OF_ALGORITHM


def kernel_modules(algorithms: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the modules to load for algorithms; None: those of all, except PyTorch."""
    names = _OF_ALGORITHM if algorithms is None else algorithms
    modules = dict.fromkeys(module for name in names for module in _OF_ALGORITHM.get(name, ()))
    return _ALWAYS + tuple(m for m in modules if algorithms is not None or m != _TORCH)


@contextlib.contextmanager
def noting_missing(missing: list[ImportError]) -> Iterator[None]:
    """Add the import error of a library to a list; that of a module of this package is raised."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "elasticml":
            raise
        missing.append(error)


def warm_up(
    modules: Iterable[str], kind: str | None = None, dtype: str | None = None
) -> list[ImportError]:
    """Import modules and compile their kernels, or load the machine code from the cache.

    Calls ``warm_kernels(kind, dtype)`` of each module that defines it, in the calling thread; it
    starts no thread.

    Parameters
    ----------
    modules : iterable of str
    kind, dtype : str, optional
        The layout of the data, see :class:`elasticml.data.chunks.body.Layout`: only its kernels are
        compiled. None: those of all.

    Returns
    -------
    list of ImportError
        Libraries that cannot be imported: the code that needs one raises a better error.

    Raises
    ------
    ImportError
        When a module of this package is missing.
    """
    missing: list[ImportError] = []
    for name in modules:
        module: Any = None
        with noting_missing(missing):
            module = importlib.import_module(name)
        warm_kernels = getattr(module, "warm_kernels", None)
        if warm_kernels is not None:
            warm_kernels(kind, dtype)
    return missing


def note_warm(algorithms: Iterable[str] | None) -> None:
    """Record that this process was warmed up for algorithms; None: for all."""
    _warm.update(_OF_ALGORITHM if algorithms is None else algorithms)


def is_warm(algorithm: str) -> bool:
    """Whether this process, or the one that forked it, was warmed up for an algorithm."""
    return algorithm in _warm
