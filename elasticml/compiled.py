"""Decorators of compiled functions, and the cache of their machine code.

The machine code is kept in the user's cache folder, by version of the code and of numba, Python and
processor, and so is compiled once on a machine, whatever environments and processes need it. Of
several processes that need a function at the same time one compiles it and the others wait.
``$NUMBA_CACHE_DIR`` replaces the folder. With ``ELASTICML_CACHE=off``, or if the folder cannot be
written, machine code is kept beside the source, or where numba can write.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import njit
from numba.core import caching

from elasticml.user_cache import cache_directory, is_off

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGE: Final = Path(__file__).resolve().parent
_FOLDER: Final = "kernels"
#: Imports of this package at the top of a file.
_IMPORT: Final = re.compile(
    r"^(?:from|import) elasticml\.?([\w.]*)(?: import (\([^)]*\)|.+))?", re.M
)


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a serial function, which releases the GIL.

    Parameters
    ----------
    **options
        Those of ``numba.njit``, except ``cache`` and ``nogil``.
    """

    def decorate(function: _Function) -> _Function:
        dispatcher = njit(nogil=True, **options)(function)
        if dispatcher is not function:  # $NUMBA_DISABLE_JIT
            dispatcher._cache = _Cache(function)
        return cast(_Function, dispatcher)

    return decorate


#: Compile a serial function that releases the GIL.
kernel = compiled()
#: The same, allowing reassociated sums and fused multiply-adds.
regrouping_kernel = compiled(fastmath={"reassoc", "contract"})
#: The same, with NumPy's division by zero: infinite or NaN, no exception. The test for zero and its
#: exception would prevent optimisation, and an exception would leave other threads waiting.
unchecked_kernel = compiled(error_model="numpy")
#: The same, always inlined into its callers.
inlined_kernel = compiled(forceinline=True)


@cache
def _imports(path: Path) -> frozenset[Path]:
    """Return the files of this package that a file imports."""
    files = set()
    for module, names in _IMPORT.findall(path.read_text()):
        place = _PACKAGE.joinpath(*filter(None, module.split(".")))
        inner = [place / name for name in re.findall(r"\w+", names)]
        for each in (place, *inner):
            found = each.with_suffix(".py")
            files.update([found] if found.is_file() else [])
    return frozenset(files)


@cache
def source_digest(path: Path) -> str:
    """Return a digest of a file of this package and of those that it imports, directly or not.

    A compiled function contains those that it calls, and constants of other modules.
    """
    seen, ahead = {path}, [path]
    while ahead:
        new = _imports(ahead.pop()) - seen
        seen |= new
        ahead += new
    digest = hashlib.sha256()
    for file in sorted(seen):
        digest.update(f"{file.relative_to(_PACKAGE)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


class _SharedLocator(caching._CacheLocator):  # type: ignore[misc]
    """Files of machine code in the user's cache folder, by the digest of the source."""

    def __init__(self, function: Callable[..., Any], path: Path) -> None:
        self._digest, self._line = source_digest(path), function.__code__.co_firstlineno
        name = "-".join([*path.relative_to(_PACKAGE).with_suffix("").parts, self._digest[:16]])
        self._folder = cache_directory() / _FOLDER / name

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _SharedLocator | None:
        path = Path(py_file).resolve()
        if is_off() or not path.is_relative_to(_PACKAGE) or not path.is_file():
            return None
        try:
            locator = cls(py_func, path)
            locator.ensure_cache_path()
        except (OSError, RuntimeError):  # read-only, a file in the way, no home directory
            return None
        return locator

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Files(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (
        caching.UserProvidedCacheLocator,
        _SharedLocator,
        *(
            each
            for each in caching.CacheImpl._locator_classes
            if each is not caching.UserProvidedCacheLocator
        ),
    )


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """A cache in which one process compiles a function while others wait for its machine code.

    numba compiles in one thread of a process at a time, and a function holds its lock while those
    that it calls are compiled: no two processes wait for each other.
    """

    _impl_class = _Files
    _lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        known = super().load_overload(sig, target_context)
        if known is not None or self._lock is not None:
            return known
        try:
            path = os.path.join(self.cache_path, f"{self._impl.filename_base}.lock")
            self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError:  # a folder without locks
            self._release()
            return None
        known = super().load_overload(sig, target_context)
        if known is not None:
            self._release()
        return known

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None
