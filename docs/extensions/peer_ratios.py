"""Ratios of fit times, elasticml's by those of its peers, from the tables in ``docs/figures``.

    python docs/extensions/peer_ratios.py

A case is a row of a table: a data set, a model and a target that elasticml and the peer reached.
The page of performance shows the same rows above each table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parents[1] / "figures"
#: Files whose tables have a column of milliseconds for every peer.
FILES = ("linear-peers", "linear-peers-16-cores")
COLUMNS = ("threads", "to", "compared with", "cases", "geometric mean", "range", "slower in")
_OURS, _RATIO = "elasticml", "first / best other"
#: Scikit-learn's solvers, LIBLINEAR among them.
_SCIKIT_LEARN = (
    "liblinear",
    "liblinear-primal",
    "newton-cg",
    "saga",
    "lbfgs",
    "cholesky",
    "cd",
)


def ratios(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the rows of the summary of a table, in the order of ``COLUMNS``."""
    peers = columns[columns.index(_OURS) + 1 : columns.index(_RATIO)]
    groups = {
        "the fastest other": peers,
        "scikit-learn's fastest": _SCIKIT_LEARN,
        "Snap ML": ("snapml",),
    }
    cases = [dict(zip(columns, row, strict=True)) for row in rows]
    summary = []
    for threads, to in dict.fromkeys((case["threads"], case["to"]) for case in cases):
        those = [case for case in cases if (case["threads"], case["to"]) == (threads, to)]
        for name, group in groups.items():
            values = [value for case in those if (value := _ratio(case, group)) is not None]
            mean = math.exp(math.fsum(map(math.log, values)) / len(values))
            spread = f"{min(values):.2g} to {max(values):.2g}"
            slower = sum(value > 1 for value in values)
            summary.append([threads, to, name, len(values), f"{mean:.2f}", spread, slower])
    return summary


def _ratio(case: dict[str, str], peers: Sequence[str]) -> float | None:
    times = [float(case[peer]) for peer in peers if case.get(peer) not in (None, "", "-")]
    return float(case[_OURS]) / min(times) if times and case[_OURS] != "-" else None


def main() -> None:
    """Print the summaries."""
    for file in FILES:
        content = json.loads((FIGURES / f"{file}.json").read_text())
        for table in content.get("tables", [content]):
            print(
                f"\n{content['title']}; {table['title']}: elasticml's time divided by the other's"
            )
            for row in (COLUMNS, *ratios(table["columns"], table["rows"])):
                print(" | ".join(map(str, row)))


if __name__ == "__main__":
    main()
