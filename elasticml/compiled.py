"""Decorators of compiled functions, and the cache of their machine code.

The machine code is kept in the user's cache folder, by version of the code, of numba, llvmlite and
Python, and by the processor's name and features, and so is compiled once on a machine, whatever
environments and processes need it. Of
several processes that need a function at the same time one compiles it and the others wait.
``$NUMBA_CACHE_DIR`` replaces the folder. If it cannot be written, machine code is kept beside the
source, or where numba can write. ``ELASTICML_CACHE=off`` is about data: it changes nothing here.

A function that compiled code calls is compiled as a part of it: it gets no machine code, no entry
from Python and no file of its own, and is optimised once, in place. numba by itself would optimise
a function and everything below it again at each level of calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar, cast

import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import _dynfunc, carray, njit
from numba.core import caching, typed_passes, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.environment import Environment
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic, overload, overload_method

from elasticml.user_cache import cache_directory

_Function = TypeVar("_Function", bound=Callable[..., Any])

PACKAGE: Final = Path(__file__).resolve().parent
_FOLDER: Final = "kernels"
#: Longest wait for another process that compiles the same function; then it is compiled here too.
LOCK_WAIT_S_MAX: Final = 60.0
#: Time between two looks at its lock.
_LOCK_LOOK_S: Final = 0.02
#: Imports of this package at the top of a file.
_IMPORT: Final = re.compile(
    r"^(?:from|import) elasticml\.?([\w.]*)(?: import (\([^)]*\)|.+))?", re.M
)


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The LLVM code of a function that is compiled as a part of those that call it."""

    def _optimize_final_module(self) -> None:
        """Leave the optimisation to the callers."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(typed_passes.NativeLowering):  # type: ignore[misc]
    """Translate a function to LLVM code without making machine code of it."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        context = state.targetctx
        state.library = _PartLibrary(context.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state.cr
        # Numba refers to a compiled function by this object, which is never called.
        name, module = lowered.fndesc.qualname.rpartition(".")[2], lowered.fndesc.lookup_module()
        handle = _dynfunc.make_function(module, name, "", 0, lowered.env, (state.library,))
        context.insert_user_function(handle, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=handle)
        return True


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler, up to LLVM code."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_PartLowering, typed_passes.NativeLowering)
        passes.passes = [each for each in passes.passes if each[0] is not _LOWERING]
        passes.finalize()
        return [passes]


def _part_of(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return a dispatcher of a function for the compiled code that calls it."""
    return njit(nogil=True, no_cpython_wrapper=True, pipeline_class=_PartCompiler, **options)(
        function
    )


_LOWERING: Final = typed_passes.NativeLowering


#: Result types of operators, by the operator and the types of its operands.
_KNOWN_RESULTS: Final[dict[Any, Any]] = {}
_RESULT_OF: Final = types.Function.get_call_type


def _known_result(function: Any, context: Any, operands: tuple[Any, ...], named: Any) -> Any:
    """Return the types of a call; those of an operator are found once for the same operands.

    numba tries the rules of an operator, several of them NumPy's, for each of its uses: a sixth of
    the time that it takes to compile.
    """
    if named or getattr(function.typing_key, "__module__", None) != "_operator":
        return _RESULT_OF(function, context, operands, named)
    key = function, context, operands
    known = _KNOWN_RESULTS.get(key)
    if known is None:
        known = _KNOWN_RESULTS[key] = _RESULT_OF(function, context, operands, named)
    return known


class _Haste:
    """Makes numba faster while any thread compiles.

    The garbage collector is off, which takes a tenth of that time, and result types of operators
    are remembered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiling = 0
        self._were_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._compiling == 0:
                self._were_on = gc.isenabled()
                if self._were_on:
                    gc.disable()
                types.Function.get_call_type = _known_result
            self._compiling += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._compiling -= 1
            if self._compiling == 0:
                del types.Function.get_call_type
                if self._were_on:
                    gc.enable()


_HASTE: Final = _Haste()


def _in_haste(compile_for: Callable[..., Any], release: Callable[[], None]) -> Callable[..., Any]:
    """Return a compiler that collects no garbage and types no operator twice.

    However it ends, by Ctrl-C too, ``release`` tells other processes to wait no longer.
    """

    def compile_so(signature: Any) -> Any:
        try:
            with _HASTE:
                return compile_for(signature)
        finally:
            release()

    return compile_so


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a serial function, which releases the GIL.

    Parameters
    ----------
    **options
        Those of ``numba.njit``, except ``cache`` and ``nogil``.
    """

    def decorate(function: _Function) -> _Function:
        without = {"no_cfunc_wrapper": True, **options}
        dispatcher = njit(nogil=True, **without)(function)
        if dispatcher is not function:  # $NUMBA_DISABLE_JIT
            dispatcher._cache = _Cache(function)
            dispatcher.compile = _in_haste(dispatcher.compile, dispatcher._cache.release)
            part = cache(lambda: _part_of(function, without))
            dispatcher.get_call_template = lambda *types: part().get_call_template(*types)
            dispatcher.get_overload = lambda signature: part().get_overload(signature)
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


# Records: NamedTuples whose methods compiled code calls. Numba specialises a kernel by the type of
# a record among its arguments, as by that of an array.

#: Of methods of records and the functions that they call.
_PARTS: Final[dict[str, Any]] = {
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "forceinline": True,
    "pipeline_class": _PartCompiler,
}


# A record without fields is true, as other types are: numba asks whether a method has a receiver.
types.NamedTuple.__bool__ = lambda kind: True


def _chooser(parameters: str, choose: Callable[[Any], Any]) -> Any:
    """Return a function of these parameters, as numba wants it, that applies one to the first."""
    first = parameters.partition(",")[0] or None
    return eval(f"lambda {parameters}: choose({first})", {"choose": choose})


@cache
def _make_method(name: str, parameters: str) -> None:
    """Let compiled code call the methods of this name of all records."""

    def choose(record: Any) -> Any:
        found = getattr(record.instance_class, name, None)
        return found if isinstance(found, FunctionType) else None

    for kind in (types.NamedTuple, types.NamedUniTuple):
        overload_method(kind, name, jit_options=_PARTS, strict=False)(_chooser(parameters, choose))


def replaces(function: Any) -> Callable[[Any], Any]:
    """Return a decorator of what compiled code calls in the place of a function."""

    def decorate(other: Any) -> Any:
        _REPLACED.add(function)
        parameters = ", ".join(signature(function).parameters)
        overload(function, jit_options=_PARTS, strict=False)(_chooser(parameters, lambda _: other))
        return other

    return decorate


@cache
def make_callable(record: type) -> None:
    """Let compiled code call the methods of a NamedTuple, and the functions that they call."""
    for name, method in _methods(record):
        _make_method(name, ", ".join(signature(method).parameters))
    for function in _called(record):
        if function not in _REPLACED:
            replaces(function)(function)


#: Functions of which compiled code calls itself, or another one.
_REPLACED: Final[set[Any]] = set()


def _methods(record: type) -> Iterator[tuple[str, FunctionType]]:
    # With those of a record from which it is derived.
    for name in dir(record):
        method = getattr(record, name)
        if isinstance(method, FunctionType) and not name.startswith("_"):
            yield name, method


def _called(record: type) -> list[FunctionType]:
    """Return the plain functions that the methods of a record call, directly or not."""
    found: dict[FunctionType, None] = {}
    ahead = [method for _, method in _methods(record)]
    while ahead:
        function = ahead.pop()
        for name in function.__code__.co_names:
            other = function.__globals__.get(name)
            if isinstance(other, FunctionType) and other not in found:
                found[other] = None
                ahead.append(other)
    return list(found)


def _foreign_records(kinds: Iterable[Any]) -> Iterator[type]:
    """Return the records outside this package among types, and among the fields of records."""
    for kind in kinds:
        if isinstance(kind, types.BaseNamedTuple):
            if kind.instance_class.__module__.partition(".")[0] != "elasticml":
                yield kind.instance_class
            yield from _foreign_records(kind.types)


@cache
def _code_digest(record: type) -> str:
    """Return a digest of all code and constants that a record's methods use, by their values."""
    digest = hashlib.sha256(f"{record.__module__}:{record.__qualname__}".encode())
    for function in [*(method for _, method in _methods(record)), *_called(record)]:
        _add_code(digest, function.__code__)
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, bool | int | float | str | tuple):
                digest.update(f"{name}={value!r}\n".encode())
    return digest.hexdigest()


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            digest.update(repr(constant).encode())


@cache
def imports_of(path: Path) -> frozenset[Path]:
    """Return the files of this package that a file imports."""
    files = set()
    for module, names in _IMPORT.findall(path.read_text()):
        place = PACKAGE.joinpath(*filter(None, module.split(".")))
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
        new = imports_of(ahead.pop()) - seen
        seen |= new
        ahead += new
    digest = hashlib.sha256()
    for file in sorted(seen):
        digest.update(f"{file.relative_to(PACKAGE)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _version_digest(path: Path) -> str:
    """Return a digest of a file's source and of what compiles it."""
    versions = f"{numba.__version__} {llvmlite.__version__} {source_digest(path)}"
    return hashlib.sha256(versions.encode()).hexdigest()


def _shared_folder(path: Path) -> Path:
    """Return the folder in the user's cache for the machine code of a file of this package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return cache_directory() / _FOLDER / "-".join([*parts, _version_digest(path)[:16]])


class _SharedLocator(caching._CacheLocator):  # type: ignore[misc]
    """Files of machine code in the user's cache folder, by the source and the versions of numba.

    They are beside the source where that folder cannot be used. numba's own locators do not see a
    change of a file that the source imports.

    The index of each file has the processor's name and features.
    """

    def __init__(self, function: Callable[..., Any], path: Path, *, is_shared: bool) -> None:
        self._digest = _version_digest(path)
        self._line = function.__code__.co_firstlineno
        self._folder = _shared_folder(path) if is_shared else path.parent / "__pycache__"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _SharedLocator | None:
        path = Path(py_file).resolve()
        if not path.is_relative_to(PACKAGE) or not path.is_file():
            return None
        for is_shared in (True, False):
            try:
                locator = cls(py_func, path, is_shared=is_shared)
                locator.ensure_cache_path()
            except (OSError, RuntimeError):  # read-only, a file in the way, no home directory
                continue
            return locator
        return None

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return str(self._line)


def has_machine_code(file: str) -> bool:
    """Whether the cache has machine code of a file of this package, or of one that it imports.

    True if another folder replaces the user's.
    """
    if numba.config.CACHE_DIR:
        return True
    path = Path(file).resolve()
    folders = [_shared_folder(each) for each in (path, *imports_of(path))]
    return any(True for folder in folders for _ in folder.glob("*.nbc"))


class _Files(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (
        caching.UserProvidedCacheLocator,
        _SharedLocator,
        *caching.CacheImpl._locator_classes,
    )

    def reduce(self, result: Any) -> Any:
        """Return what is needed to run a function.

        Without its types in words and without its LLVM code. numba keeps that to link it into other
        functions, which ours never are, see :func:`_part_of`.
        """
        library, descriptor, *rest, _, reload_init, environments = result._reduce()
        name, kind, (machine_code, _) = library
        outline = _outline(result.library._final_module)
        own = [_without_module(each, descriptor.modname) for each in environments]
        return (name, kind, (machine_code, outline)), descriptor, *rest, "", reload_init, own


def _outline(module: llvm.ModuleRef) -> bytes:
    """Return LLVM code that defines the same names as a module, and nothing else."""
    outline, nothing, byte = ir.Module(), ir.FunctionType(ir.VoidType(), ()), ir.IntType(8)
    for each in module.functions:
        if not each.is_declaration:
            body = ir.Function(outline, nothing, each.name).append_basic_block()
            ir.IRBuilder(body).ret_void()
    for each in module.global_variables:
        if not each.is_declaration:
            ir.GlobalVariable(outline, byte, each.name).initializer = ir.Constant(byte, 0)
    return bytes(llvm.parse_assembly(str(outline)).as_bitcode())


def _without_module(environment: Environment, module: str) -> Environment:
    """Return an environment with the same constants in another module.

    numba would import the modules of its own functions that a compiled function contains: 6 MB.
    """
    own = Environment({"__name__": module})
    own.consts[:] = environment.consts
    own.env_name = environment.env_name
    return own


def _take(lock: int) -> None:
    """Take the lock of an open file; a process that is stopped while it compiles keeps it.

    Raises
    ------
    OSError
        When it is not free in time.
    """
    until_s = time.monotonic() + LOCK_WAIT_S_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_LOCK_LOOK_S)
        else:
            return


@cache
def _warn_of_cache(folder: str, why: str) -> None:
    warnings.warn(
        f"compiled functions are not kept in {folder} ({why}): each process compiles them again; "
        "make room, or name another folder with ELASTICML_CACHE",
        RuntimeWarning,
        stacklevel=1,
    )


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """A cache in which one process compiles a function while others wait for its machine code.

    numba compiles in one thread of a process at a time, and a function holds its lock while those
    that it calls are compiled: no two processes wait for each other.
    """

    _impl_class = _Files

    def __init__(self, function: Callable[..., Any], records: str = "") -> None:
        super().__init__(function)
        self._function = function
        self._cache_path: str
        if records:
            self._cache_path = os.path.join(self._cache_path, records[:16])
            self._cache_file = caching.IndexDataCacheFile(
                cache_path=self._cache_path,
                filename_base=self._impl.filename_base,
                source_stamp=self._impl.locator.get_source_stamp(),
            )
            os.makedirs(self._cache_path, exist_ok=True)
        #: For arguments that contain users' records, by a digest of these: who has none of them
        #: cannot read their types.
        self._of_records: dict[str, _Cache] = {}
        #: The open lock of each thread that compiles. One that only waited for another thread of
        #: this process must not free that one's.
        self._locks: dict[int, int] = {}

    def _of(self, kinds: Any) -> _Cache | None:
        """Return the cache for arguments of these types; None if there is none."""
        records = list(_foreign_records(getattr(kinds, "args", kinds)))
        if not records:
            return self
        if any(record.__module__ == "__main__" for record in records):
            return None  # another process would have another type
        digest = hashlib.sha256("".join(map(_code_digest, records)).encode()).hexdigest()
        if digest not in self._of_records:
            try:
                self._of_records[digest] = _Cache(self._function, digest)
            except OSError:  # the folder cannot be written
                return None
        return self._of_records[digest]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        own = self._of(sig)
        if own is not self:
            return None if own is None else own._load_or_lock(sig, target_context)
        return self._load_or_lock(sig, target_context)

    def _load_or_lock(self, sig: Any, target_context: Any) -> Any:
        known = self._load(sig, target_context)
        thread = threading.get_ident()
        if known is not None or thread in self._locks:
            return known
        try:
            path = os.path.join(self.cache_path, f"{self._impl.filename_base}.lock")
            self._locks[thread] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            _take(self._locks[thread])
        except OSError:  # a folder without locks, or a process that keeps one
            self.release()
            return None
        return self._load(sig, target_context)

    def _load(self, sig: Any, target_context: Any) -> Any:
        """Load machine code, or return None.

        Without what numba needs to compile, which it loads in a fifth of a second.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        own = self._of(sig)
        if own is not None:
            own._save(sig, data)

    def _save(self, sig: Any, data: Any) -> None:
        # A part's environment has no address before the machine code that contains it.
        for environment in data._find_referenced_environments():
            data.library.codegen.set_env(environment.env_name, environment)
        try:
            super().save_overload(sig, data)
        except OSError as error:  # such as a full disk: the machine code serves this process
            _warn_of_cache(str(cache_directory()), error.strerror or type(error).__name__)

    def release(self) -> None:
        """Let other processes compile, or load what this thread has compiled."""
        for own in self._of_records.values():
            own.release()
        lock = self._locks.pop(threading.get_ident(), None)
        if lock is not None:
            with contextlib.suppress(OSError):
                os.close(lock)


# Arrays by address, for kernels that visit the arrays of many chunks in one call: the owner of the
# addresses keeps the arrays alive.


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@inlined_kernel
def vector_at(address: Any, n: Any, like: Any) -> Any:
    """Return the array (n,) at an address, of the array ``like``'s type; without bounds checks."""
    return carray(_pointer(address), n, like.dtype)


@inlined_kernel
def matrix_at(address: Any, n: Any, k: Any, like: Any) -> Any:
    """Return the array (n, k) at an address, of the array ``like``'s type."""
    return carray(_pointer(address), (n, k), like.dtype)
