"""Run a bench of elasticml: ``python -m tests.bench CASE [options]``.

    python -m tests.bench                                     lists the cases
    python -m tests.bench CASE --help                         what it measures, its options
    python -m tests.bench CASE [options]                      prints its tables
    python -m tests.bench --against CHECKOUT CASE [options]   this and another, by turns

``--against`` runs the case of this checkout with the package of each, every time in a fresh
process, and one more turn first that does not count. For every number that the case prints it shows
the medians, their ratio (now by before), and the smallest and largest ratio of a turn: a ratio
counts as a change only when its spread lies on one side of 1. A word, such as a digest, is
compared. ``--turns`` says how many.

Figures of separate runs vary by more than most changes do: compare by turns, on a quiet machine.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.bench import harness

Turn = dict[str, float | str]


def cases() -> dict[str, str]:
    """Return the first line of each case's docstring, by name; nothing is imported."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(getattr(node, "name", "") == "main" for node in tree.body) and path.stem[0] != "_":
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def turn(words: Sequence[str], path: str) -> Turn:
    """Run a case in a fresh process with this module path; return its figures."""
    with tempfile.NamedTemporaryFile("r") as file:
        environment = {**os.environ, "PYTHONPATH": path, harness.FIGURES: file.name}
        environment["PYTHONSAFEPATH"] = "1"
        command = [sys.executable, "-m", "tests.bench", *words]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        figures: Turn = {}
        for line in file.read().splitlines():
            figures |= json.loads(line)
        return figures


def compared(before: Sequence[Turn], now: Sequence[Turn]) -> list[list[str]]:
    """Return a row for each figure: its medians, their ratio, and the ratios' spread."""
    rows = []
    for key, last in now[-1].items():
        pairs = [
            (a[key], b[key]) for a, b in zip(before, now, strict=True) if key in a and key in b
        ]
        if isinstance(last, str):
            rows.append([key, "", "", "equal" if all(a == b for a, b in pairs) else "DIFFERS", ""])
            continue
        numbers = [(float(a), float(b)) for a, b in pairs if float(a)]
        if not numbers:
            continue
        one, other = (statistics.median(side) for side in zip(*numbers, strict=True))
        ratios = [b / a for a, b in numbers]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        rows.append([key, f"{one:.4g}", f"{other:.4g}", f"{other / one:.3f}", spread])
    return rows


def against(checkout: Path, turns: int, words: Sequence[str]) -> None:
    """Run a case with both packages by turns, and print the comparison."""
    package = checkout.resolve() / "elasticml"
    # A fixed place, by which compiled code of earlier comparisons is found again.
    folder = Path(tempfile.gettempdir()) / f"elasticml-against-{zlib.crc32(bytes(package)):08x}"
    folder.mkdir(exist_ok=True)
    if not (folder / "elasticml").is_symlink():
        (folder / "elasticml").symlink_to(package)
    paths = {"before": f"{folder}:{harness.ROOT}", "now": str(harness.ROOT)}
    ways = {name: partial(turn, words, path) for name, path in paths.items()}
    runs = harness.interleaved(ways, turns, warm_up=1)
    harness.head("figure", "before", "now", "now / before", "of single turns")
    for row in compared(runs["before"], runs["now"]):
        harness.row(*row)


def main(words: Sequence[str]) -> int | None:
    """Run the command line; return the exit status of the case."""
    known = cases()
    listed = "\n".join(f"  {name:16}{line}" for name, line in known.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=f"{__doc__}\nCases:\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="python -m tests.bench [--against CHECKOUT] [--turns N] CASE [options]",
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout")
    parser.add_argument("--turns", type=int, default=5, help="of each checkout; 5 by default")
    parser.add_argument("case", nargs="?", metavar="CASE", help="one of the cases above")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the case")
    given = parser.parse_args(words)
    if given.case is None:
        parser.print_help()
        return None
    if given.case not in known:
        parser.error(f"no case {given.case!r}; the cases are {', '.join(known)}")
    if given.against is not None:
        against(given.against, given.turns, [given.case, *given.options])
        return None
    case = importlib.import_module(f"tests.bench.{given.case}")
    options = vars(harness.parser_of(case, given.case).parse_args(given.options))
    status: int | None = case.main(**options)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
