"""Machine code is compiled once on a machine, and again after a change of any of its sources."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import psutil
import pytest
from numba.core import caching, types

from elasticml import compiled
from elasticml.algorithms.cocoa.damping import compiled_adapted
from elasticml.algorithms.kernel_modules import kernel_modules
from elasticml.arrays import F64
from elasticml.objectives.losses import LOSSES
from elasticml.user_cache import cache_directory
from tests.waiting import until

#: Waits until both processes are here, compiles, and prints where the machine code came from.
PROGRAM = """
import pathlib, sys
from elasticml.algorithms.cocoa import damping
print("ready", flush=True)
sys.stdin.readline()
damping.compiled_adapted(1.0, 2.0, 3.0, 4.0, 5.0)
stats = damping.compiled_adapted.stats
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


@pytest.mark.slow
def test_all_kernels_are_compiled_ahead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elasticml", "warm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"machine code is in {cache_directory()}")
    for name in (*(f"loss {name}" for name in LOSSES), *kernel_modules()):
        assert f"{name} " in done.stdout


@pytest.mark.slow
def test_compiling_ahead_is_interrupted_with_its_processes(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "elasticml", "warm"],
        env={**os.environ, "ELASTICML_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # One child keeps track of semaphores.
    shown = psutil.Process(command.pid)
    until(lambda: len(shown.children()) > 1, "no process compiles")
    command.terminate()
    # The pipe ends with the last process that holds it.
    _, errors = command.communicate()
    assert command.returncode == 130
    assert "elasticml: interrupted" in errors


def test_without_a_cache_folder_machine_code_lies_where_numba_puts_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    hits, misses, place = results([start(tmp_path / "file")])[0]
    assert hits + misses == 1
    assert place.name == "__pycache__"


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

    x, before = np.arange(4.0), types.Function.get_call_type
    assert sum_of_squares(x) == 14.0
    assert cast(Any, square).overloads == {}
    assert square(3.0) == 9.0
    # What makes the compiler faster is undone.
    assert types.Function.get_call_type is before
    assert gc.isenabled()


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


def test_machine_code_is_loaded_without_the_compiler_and_called_by_compiled_code(
    tmp_path: Path,
) -> None:
    program = """
import sys
import numpy as np
from elasticml.algorithms.cocoa import line_search
from elasticml.compiled import has_machine_code
from elasticml.objectives import loss_kernels

one, products = np.ones(1), line_search.products
print(has_machine_code(line_search.__file__))
value = loss_kernels.loss_named("logistic").value_and_slope(0.0 * one, one, one, one.copy())
assert value == np.log(2.0), value
assert (*products(one, one),) == (1.0, 1.0)
assert has_machine_code(line_search.__file__)
print(sum(loss_kernels.value_and_slope.stats.cache_hits.values()))
print(sum(products.stats.cache_hits.values()))
print("numba.typed.typeddict" in sys.modules, "numba.np.arrayobj" in sys.modules)
import numba
assert (*numba.njit(lambda x: products(x, x))(one),) == (1.0, 1.0)
"""
    first, second = words_of_runs(program, tmp_path)
    assert first == ["False", "0", "0", "True", "True"]
    assert second == ["True", "1", "1", "False", "False"]


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
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)

    def digest() -> str:
        compiled.imports_of.cache_clear()
        compiled.source_digest.cache_clear()
        return compiled.source_digest(tmp_path / "a.py")

    before = digest()
    (tmp_path / "rooms/other.py").write_text("# changed\n")
    assert digest() == before
    (tmp_path / "rooms/c.py").write_text("D = 2\n")
    assert digest() != before


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_machine_code_that_cannot_be_shared_serves_its_process(tmp_path, monkeypatch) -> None:
    arguments = (1.0, 2.0, 3.0, 4.0, 5.0)
    expected = compiled_adapted(*arguments)
    monkeypatch.setenv("ELASTICML_CACHE", str(tmp_path))

    def again() -> Any:
        """Return the same function, not compiled yet."""
        return compiled.kernel(cast(Any, compiled_adapted).py_func)

    with pytest.raises(numba.TypingError):
        again()("text", *arguments[1:])
    assert again()(*arguments) == expected
    locks = [path.open() for path in tmp_path.rglob("*.lock")]
    assert locks
    for lock in locks:  # both have left them to others
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Another process keeps a lock.
    for path in tmp_path.rglob("*.nb[ci]"):
        path.unlink()
    monkeypatch.setattr(compiled, "LOCK_WAIT_S_MAX", 0.0)
    assert again()(*arguments) == expected
    for lock in locks:
        lock.close()
    for path in tmp_path.rglob("*.nb[ci]"):
        path.unlink()
    # The disk is full.
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    function = again()
    with pytest.warns(RuntimeWarning, match="No space left on device") as warned:
        results = [function(*arguments), function(1, *arguments[1:])]
    assert results == [expected] * 2
    assert len(warned) == 1
