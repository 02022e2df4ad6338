"""Shared parts of the benches: options, data, clocks, medians of interleaved runs, tables, JSON.

Run a bench as a script, ``python tests/bench/NAME.py``. It puts the repository's root on
``sys.path`` before it imports this module, which adds ``examples/papers``, where the data sets of
the CoCoA studies are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K")

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT / "examples" / "papers"
if str(PAPERS) not in sys.path:
    sys.path.append(str(PAPERS))

#: Folder of the data sets.
DATA = Path(os.environ.get("ELASTICML_DATA") or ROOT.parent / "shared" / "data")
#: Variables that limit the threads of numerical libraries.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Make a bench's option parser from its module docstring; ``--help`` shows it whole."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def one_thread() -> None:
    """Limit numerical libraries to one thread, here and in child processes.

    Call it before numpy is imported: libraries read the variables when they are loaded.
    """
    os.environ.update(dict.fromkeys(THREADS, "1"))


def labelled(path: str) -> tuple[Any, Any]:
    """Read an svmlight file; label its most frequent class 1 and the others 0."""
    import numpy as np
    import scipy.sparse as sp
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(DATA / path))
    values, counts = np.unique(y, return_counts=True)
    # LIBLINEAR takes 32-bit indices only.
    rows = (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32))
    return sp.csr_matrix(rows, shape=X.shape), (y == values[counts.argmax()]).astype(int)


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


# --- output ---------------------------------------------------------------------------------


def row(*cells: object) -> None:
    """Print a row of a Markdown table at once."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*columns: str) -> None:
    """Print a Markdown table's header."""
    row(*columns)
    print("|" + "---|" * len(columns), flush=True)


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
    if path is None:
        print(json.dumps(figures), flush=True)
    else:
        path.write_text(json.dumps(figures, indent=1) + "\n")
