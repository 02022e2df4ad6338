"""Machine code is compiled once on a machine, and again after a change of any of its sources."""

from __future__ import annotations

import errno
import fcntl
import gc
import operator
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pytest
from numba.core import types

from elasticml import compiled
from elasticml.algorithms.cocoa.damping import compiled_adapted
from elasticml.arrays import F64

#: Waits until both processes are here, compiles, and prints where the machine code came from.
PROGRAM = """
import pathlib, sys
from elasticml.algorithms.cocoa.damping import compiled_adapted
print("ready", flush=True)
sys.stdin.readline()
compiled_adapted(1.0, 2.0, 3.0, 4.0, 5.0)
stats = compiled_adapted.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), stats.cache_path)
"""


def start(folder: Path | str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | {"ELASTICML_CACHE": str(folder)},
    )


def results(processes: list[subprocess.Popen[str]]) -> list[tuple[int, int, Path]]:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    found = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        words = process.communicate()[0].split(maxsplit=2)
        assert process.returncode == 0
        found.append((int(words[0]), int(words[1]), Path(words[2].strip())))
    return found


def test_of_two_processes_one_compiles_and_the_other_loads(tmp_path: Path) -> None:
    found = results([start(tmp_path), start(tmp_path)])
    assert sorted(each[:2] for each in found) == [(0, 1), (1, 0)]
    assert {each[2].parent for each in found} == {tmp_path / "kernels"}
    assert results([start(tmp_path)])[0][:2] == (1, 0)


def test_without_a_cache_folder_machine_code_lies_where_numba_puts_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    hits, misses, place = results([start(tmp_path / "file")])[0]
    assert hits + misses == 1
    assert place.name == "__pycache__"


def test_machine_code_beside_the_source_is_outdated_by_a_change_of_what_the_source_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELASTICML_CACHE", str(tmp_path / "file"))
    function = cast(Any, compiled_adapted).py_func
    locator = compiled._Files(function).locator
    assert Path(locator.get_cache_path()).name == "__pycache__"
    monkeypatch.setattr(compiled, "source_digest", lambda path: "of changed files")
    changed = compiled._Files(function).locator
    assert changed.get_source_stamp() != locator.get_source_stamp()


def test_a_function_that_compiled_code_calls_gets_no_machine_code_of_its_own() -> None:
    @compiled.kernel
    def square(x: float) -> float:
        return x * x

    @compiled.kernel
    def sum_of_squares(x: F64) -> float:
        total = 0.0
        for i in range(x.size):
            total += square(x[i])
        return total

    x = np.arange(4.0)
    assert sum_of_squares(x) == 14.0
    assert cast(Any, square).overloads == {}
    assert square(3.0) == 9.0


def words_of_runs(program: str, folder: Path, n: int = 2) -> list[list[str]]:
    """Run a program in some processes, one after the other, with one new cache of machine code."""
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment["ELASTICML_CACHE"] = str(folder)
    command = [sys.executable, "-c", program]
    return [
        subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(n)
    ]


def test_machine_code_that_allocates_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
from elasticml.objectives import loss_kernels

one = np.ones(1)
value = loss_kernels.loss_named("logistic").value_and_slope(0.0 * one, one, one, one.copy())
assert value == np.log(2.0), value
print(sum(loss_kernels.value_and_slope.stats.cache_hits.values()))
print("numba.typed.typeddict" in sys.modules, "numba.np.arrayobj" in sys.modules)
"""
    first, second = words_of_runs(program, tmp_path)
    assert first == ["0", "True", "True"]
    assert second == ["1", "False", "False"]


def test_machine_code_of_an_own_loss_is_cached_until_the_loss_changes(tmp_path: Path) -> None:
    module = """
import typing

SCALE = {scale}

def scaled(r):
    return r * r * SCALE

class Own(typing.NamedTuple):
    def value(self, m, y):
        return {factor} * scaled(m - y)

    def slope(self, m, y):
        return 2.0 * (m - y)

    def curvature(self, m, y):
        return 2.0
"""
    program = """
import numpy as np
from elasticml.objectives import loss_kernels
from elasticml.objectives.losses import complete
import own_loss_of_a_test

one, loss = np.ones(1), loss_kernels.MarginLoss("own", complete(own_loss_of_a_test.Own)())
print(loss.value_and_slope(3.0 * one, one, None, one.copy()))
print(sum(loss_kernels.value_and_slope.stats.cache_hits.values()))
"""
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"
    # Both a constant and the code of the loss count.
    for scale, factor, value in ((1.0, 1.0, "4.0"), (2.0, 1.0, "8.0"), (2.0, 3.0, "24.0")):
        source = module.format(scale=scale, factor=factor)
        (tmp_path / "own_loss_of_a_test.py").write_text(source)
        assert words_of_runs(program, tmp_path, n=1) == [[value, "0"]]
    assert words_of_runs(program, tmp_path, n=1) == [["24.0", "1"]]


def test_loaded_machine_code_can_be_called_by_compiled_code(tmp_path: Path) -> None:
    program = """
import numba
import numpy as np
from elasticml.algorithms.cocoa.line_search import products

one = np.ones(2)
print(*products(one, one), sum(products.stats.cache_hits.values()))
print(*numba.njit(lambda x: products(x, x))(one))
"""
    first, second = words_of_runs(program, tmp_path)
    assert first == ["2.0", "2.0", "0", "2.0", "2.0"]
    assert second == ["2.0", "2.0", "1", "2.0", "2.0"]


def test_operators_are_typed_once_and_only_while_one_of_our_functions_is_compiled() -> None:
    @compiled.kernel
    def quotients(x: F64, y: F64) -> float:
        return x[0] / y[0] + x[1] / y[1] + x[2] / y[2]

    cast(Any, quotients)._cache.disable()  # else an earlier run's code is loaded
    before = types.Function.get_call_type
    x = np.arange(3.0)
    assert quotients(x, x + 1.0) == 0.5 + 2.0 / 3.0
    assert types.Function.get_call_type is before
    divisions = [
        operands
        for function, _, operands in compiled._KNOWN_RESULTS
        if function.typing_key is operator.truediv
    ]
    assert divisions.count((types.float64, types.float64)) == 1


def test_the_digest_covers_every_imported_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = {
        "a.py": "from elasticml.rooms import (\n    b,\n    c,\n)\nimport os\n",
        "rooms/b.py": "from elasticml.rooms.c import D\nfrom elasticml.a import E\n",
        "rooms/c.py": "D = 1\n",
        "rooms/other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path)

    def digest() -> str:
        compiled._imports.cache_clear()
        compiled.source_digest.cache_clear()
        return compiled.source_digest(tmp_path / "a.py")

    before = digest()
    (tmp_path / "rooms/other.py").write_text("# changed\n")
    assert digest() == before
    (tmp_path / "rooms/c.py").write_text("D = 2\n")
    assert digest() != before


def test_a_file_whose_functions_were_only_imported_has_no_machine_code(tmp_path):
    text = (
        "from elasticml.algorithms.cocoa import damping\n"
        "from elasticml.compiled import has_machine_code\n"
        "print(has_machine_code(damping.__file__))\n"
        "damping.compiled_adapted(1.0, 2.0, 3.0, 4.0, 5.0)\n"
        "print(has_machine_code(damping.__file__))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"ELASTICML_CACHE": str(tmp_path)},
    )
    assert done.stdout.split() == ["False", "True"]


def test_the_garbage_collector_is_off_until_the_last_of_several_compilations_ends() -> None:
    first, second = threading.Event(), threading.Event()
    states = []

    released = threading.Semaphore(0)

    def compile_first(signature: Any) -> None:
        first.set()
        assert second.wait(60)

    def compile_second(signature: Any) -> None:
        assert first.wait(60)
        second.set()
        thread.join(60)
        states.append(gc.isenabled())

    thread = threading.Thread(target=compiled._in_haste(compile_first, released.release), args=[()])
    assert gc.isenabled()
    thread.start()
    compiled._in_haste(compile_second, released.release)(())
    assert not thread.is_alive()
    assert states == [False]
    assert gc.isenabled()
    assert all(released.acquire(blocking=False) for _ in range(2))


def lock_of(function: Any) -> Path:
    """Return the file that a process locks while it compiles a function."""
    return Path(function._cache.cache_path) / f"{function._cache._impl.filename_base}.lock"


def is_free(function: Any) -> bool:
    """Whether another process may compile a function."""
    with lock_of(function).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def test_a_compilation_that_fails_leaves_the_lock_to_others() -> None:
    @compiled.kernel
    def wrong(x: Any) -> Any:
        return x.no_such_attribute

    for _ in range(2):
        with pytest.raises(numba.TypingError, match="no_such_attribute"):
            wrong(1.0)
        assert is_free(wrong)


def test_a_compilation_that_is_interrupted_leaves_the_lock_to_others(monkeypatch) -> None:
    @compiled.kernel
    def doubled(x: float) -> float:
        return 2.0 * x

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(doubled._cache, "_load", lambda *_: None)  # an earlier run has compiled it
        patched.setattr(doubled._compiler, "compile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            doubled(1.0)
    assert is_free(doubled)
    assert doubled(1.0) == 2.0


def test_a_process_that_keeps_its_lock_holds_up_others_for_a_limited_time(monkeypatch) -> None:
    @compiled.kernel
    def tripled(x: float) -> float:
        return 3.0 * x

    monkeypatch.setattr(compiled, "LOCK_WAIT_S_MAX", 0.0)
    monkeypatch.setattr(tripled._cache, "_load", lambda *_: None)
    with lock_of(tripled).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert tripled(1.0) == 3.0


def test_machine_code_that_cannot_be_kept_serves_its_process(monkeypatch) -> None:
    @compiled.kernel
    def quadrupled(x: float) -> float:
        return 4.0 * x

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(quadrupled._cache, "_load", lambda *_: None)
    monkeypatch.setattr(quadrupled._cache, "_save_overload", full)
    compiled._warn_of_cache.cache_clear()
    with pytest.warns(RuntimeWarning, match="No space left on device") as warned:
        results = [quadrupled(1.0), quadrupled(1)]
    assert results == [4.0, 4]
    assert len(warned) == 1
