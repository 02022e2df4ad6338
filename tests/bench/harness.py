"""Shared parts of the benches: options, data, clocks, medians of interleaved runs, tables, JSON.

A case is a module with a docstring, which ``--help`` shows, and ``main``, whose parameters are the
options of the command line. It prints its figures with :func:`head` and :func:`row`, or with
:func:`report`; the same figures are what ``--against`` compares. ``examples/papers``, where the
data sets of the CoCoA studies are, is put on ``sys.path``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")
K = TypeVar("K")

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT / "examples" / "papers"
if str(PAPERS) not in sys.path:
    sys.path.append(str(PAPERS))

#: Folder of the data sets.
DATA = Path(os.environ.get("ELASTICML_DATA") or ROOT.parent / "shared" / "data")
#: Environment variable: the file to which a case's figures are appended for ``--against``.
FIGURES = "ELASTICML_BENCH_FIGURES"
#: Variables that limit the threads of numerical libraries.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def parser_of(case: ModuleType, name: str) -> argparse.ArgumentParser:
    """Make the options of a case from the signature of its ``main``.

    A parameter without a default is an argument; ``bool`` a switch; ``Literal`` a choice; a
    sequence takes several values. Parameters with an underscore are of the case's own
    processes.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m tests.bench {name}",
        description=case.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hints = typing.get_type_hints(case.main)
    for parameter in inspect.signature(case.main).parameters.values():
        kind, default, more = hints[parameter.name], parameter.default, dict[str, Any]()
        option = f"--{parameter.name.lstrip('_').replace('_', '-')}"
        if default is parameter.empty:
            made.add_argument(parameter.name, type=kind)
            continue
        hidden = parameter.name.startswith("_")
        more["help"] = argparse.SUPPRESS if hidden else f"by default {default}"
        if kind is bool:
            made.add_argument(option, dest=parameter.name, action="store_true", help=more["help"])
            continue
        kind = (
            next(k for k in (*typing.get_args(kind), kind) if k is not type(None))
            if (typing.get_origin(kind) in (Union, UnionType))
            else kind
        )
        if typing.get_origin(kind) in (Sequence, tuple):
            kind, more["nargs"] = typing.get_args(kind)[0], "*"
        if typing.get_origin(kind) is Literal:
            more["choices"], kind = typing.get_args(kind), str
        made.add_argument(option, dest=parameter.name, type=kind, default=default, **more)
    return made


def path() -> str:
    """Return the module path for fresh processes: this checkout, or the one that is compared."""
    return os.environ.get("PYTHONPATH") or str(ROOT)


def in_process(
    name: str, *words: object, python: str = sys.executable, host: str | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a case in a fresh process, or in a network namespace; return it with what it printed."""
    inside = ["ip", "netns", "exec", host] if host else []
    command = [*inside, python, "-m", "tests.bench", name, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": path()}
    environment.pop(FIGURES, None)
    environment |= more.pop("env", {})
    return subprocess.run(
        command, env=environment, **{"check": True, "stdout": subprocess.PIPE, "text": True, **more}
    )


def one_thread() -> None:
    """Limit numerical libraries to one thread, here and in child processes.

    Call it before numpy is imported: libraries read the variables when they are loaded.
    """
    os.environ.update(dict.fromkeys(THREADS, "1"))


# --- clocks ---------------------------------------------------------------------------------


def timed(
    function: Callable[[], T], clock: Callable[[], float] = time.perf_counter
) -> tuple[T, float]:
    """Call a function; return its result and the seconds that it took."""
    start = clock()
    result = function()
    return result, clock() - start


def interleaved(
    ways: Mapping[K, Callable[[], T]],
    repeats: int,
    *,
    warm_up: int = 0,
    rng: random.Random | None = None,
) -> dict[K, list[T]]:
    """Run each way once per turn, and return the figures of each.

    Slow changes of the machine's speed then affect all ways equally. ``warm_up`` turns come first
    and are not kept; ``rng`` draws another order for each turn.
    """
    figures: dict[K, list[T]] = {name: [] for name in ways}
    for turn in range(warm_up + repeats):
        order = list(ways) if rng is None else rng.sample(list(ways), len(ways))
        for name in order:
            figure = ways[name]()
            if turn >= warm_up:
                figures[name].append(figure)
    return figures


def seconds(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    return timed(function)[1]


def seconds_of(
    function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """Wrap a function for ``interleaved``: each call returns its own seconds."""
    return lambda: timed(function, clock)[1]


def medians(figures: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """Return the median of each way's figures."""
    return {name: statistics.median(each) for name, each in figures.items()}


def column_medians(rows: Iterable[Sequence[float]]) -> list[float]:
    """Return the median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def memory_mb(pid: int) -> dict[str, float]:
    """Return megabytes of a process by the kernel's names, such as ``Rss`` and ``Pss``."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return {name.rstrip(":"): int(number) * 1024 / 1e6 for name, number, _ in fields}


def private_mb(pid: int) -> float:
    """Return the megabytes that only this process has."""
    sizes = memory_mb(pid)
    return sizes["Private_Clean"] + sizes["Private_Dirty"]


@contextmanager
def peaks(look: Callable[[], Mapping[K, float]], every_s: float = 0.02) -> Iterator[dict[K, float]]:
    """Look at figures again and again, in a thread; yield the largest of each so far."""
    largest, over = dict[K, float](), threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            for key, figure in look().items():
                largest[key] = max(largest.get(key, figure), figure)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        over.set()
        thread.join()


# --- output ---------------------------------------------------------------------------------


def row(*cells: object) -> None:
    """Print a row of a Markdown table at once."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    columns, keys = _TABLE
    name = ", ".join(map(str, cells[:keys]))
    record({f"{name}: {c}": cell for c, cell in zip(columns[keys:], cells[keys:], strict=False)})


def head(*columns: str, keys: int = 1) -> None:
    """Print a Markdown table's header; the first ``keys`` columns name a row."""
    _TABLE[:] = (), 0
    row(*columns)
    _TABLE[:] = columns, keys
    print("|" + "---|" * len(columns), flush=True)


#: Columns of the table that is being printed, and how many of them name a row.
_TABLE: list[Any] = [(), 0]


def record(figures: Mapping[str, Any]) -> None:
    """Hand figures to the process that compares; numbers are those that cells begin with."""
    path = os.environ.get(FIGURES)
    if path is None:
        return
    found: dict[str, float | str] = {}
    for key, value in figures.items():
        number = re.match(r"-?[\d.,]*\d(e-?\d+)?(?=[ %]|$)", str(value))
        if number or value:
            found[key] = float(number[0].replace(",", "")) if number else str(value)
    with open(path, "a") as file:
        file.write(json.dumps(found) + "\n")


def machine() -> str:
    """Describe the machine, and how busy it is, for the documentation's tables."""
    load = os.getloadavg()[1]
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load average {load:.1f} over "
        "five minutes, the bench included"
    )


def write_docs(path: Path, **table: Any) -> None:
    """Write a table of the documentation (``docs/figures``), measured today on this machine."""
    whole = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), **table}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def report(figures: Any, path: Path | None = None) -> None:
    """Print figures as one line of JSON, or write them to a file."""
    if isinstance(figures, dict):
        record(
            {key: value for key, value in figures.items() if isinstance(value, (int, float, str))}
        )
    if path is None:
        print(json.dumps(figures), flush=True)
    else:
        path.write_text(json.dumps(figures, indent=1) + "\n")
