"""The Snap ML paper's figures on CPUs: single node, hierarchy, streaming, and the scatter.

    python examples/papers/snapml.py [--figures single hierarchical streaming] [--limit 100]
        [--peers-python PEERS_VENV/bin/python] [--out runs/snapml] [--quick]

* ``single``: the single-node benchmark and the scatter of test log-loss against time: logistic
  regressions of elasticml, scikit-learn (LIBLINEAR's dual, lbfgs, SAGA) and, if the python
  given with ``--peers-python`` has them, Snap ML, Vowpal Wabbit, dask-ml and Spark MLlib, each in
  a separate process, refitted with increasing effort; the first fit that is within 1e-3 of the
  best objective is repeated, and its median reported. On a generated set of Criteo's shape
  (39 fields, 1,000,000 hashed columns, power law), and on 200 rows of Criteo's own if
  ``ELASTICML_DATA`` has them. Missing peers are listed, with the reason.
* ``hierarchical``: time to a gap against t2, the passes of a round, over links of 1 and 10 Gbit/s:
  real worker processes whose uplinks are limited to a rate. Beside it the prediction of the cost
  model of ``policies: [inner_iterations]``, fitted to t2 = 1 and 4, and the policy itself.
* ``streaming``: reading, permuting and computing alone, one after the other, and overlapped in an
  out-of-core epoch, under three memory limits; the paper's slow and fast interconnect are here an
  empty page cache, and one that has the files.

Every run is kept in ``OUT/runs`` and not repeated; ``--limit`` starts no further run after this
many seconds, and the next call continues. Publishable figures need a quiet machine. Writes
``tables.md``, ``figures.json`` and plots.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT))

from support import snapml_peers, snapml_rounds, snapml_streaming  # noqa: E402
from support.asgd_figures import picture  # noqa: E402
from support.asgd_study import Figure  # noqa: E402
from support.cocoa_figures import write_files  # noqa: E402
from support.snapml_store import Store  # noqa: E402

FIGURES = ("single", "hierarchical", "streaming")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2].partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--figures",
        nargs="+",
        default=FIGURES,
        choices=FIGURES,
        metavar="FIGURE",
        help=f"which: {', '.join(FIGURES)} (default: all)",
    )
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds after which no run is started"
    )
    parser.add_argument(
        "--peers-python", default=sys.executable, help="python that has the other peers"
    )
    parser.add_argument("--members", type=int, default=2, help="real processes")
    parser.add_argument("--out", type=Path, default=Path("runs/snapml"), help="folder to write to")
    parser.add_argument("--quick", action="store_true", help="toy sizes: some seconds")
    arguments = parser.parse_args(argv)
    if wrong := check_arguments(arguments):
        parser.error(wrong)
    store = Store(folder=arguments.out.resolve(), quick=arguments.quick, limit_s=arguments.limit)
    figures: dict[str, Figure] = {}
    for name in arguments.figures:
        figures[name] = run(name, store, arguments)
        text = tables(figures, store)
        files = {"tables.md": text.encode(), "figures.json": numbers(figures).encode()}
        panels = [panel for panel in figures[name].panels if any(panel.lines.values())]
        if panels:
            files |= picture(f"snapml-{name}", figures[name].title, panels)
        # Write after each figure: a later failure must not lose this one.
        write_files(arguments.out, files)
    print(tables(figures, store))
    return 0


def check_arguments(arguments: argparse.Namespace) -> str | None:
    """Validate the command line before anything is run; make the folder."""
    if arguments.members < 1:
        return f"--members: got {arguments.members}, wanted at least 1"
    if math.isnan(arguments.limit):
        return f"--limit: got {arguments.limit}, wanted seconds"
    if shutil.which(arguments.peers_python) is None:
        return f"--peers-python: got {arguments.peers_python}, wanted a program that can be run"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"--out: got {arguments.out}, wanted a folder ({error.strerror})"
    return None


def run(name: str, store: Store, arguments: argparse.Namespace) -> Figure:
    """Run one of ``FIGURES``."""
    if name == "single":
        return snapml_peers.figure(store, arguments.peers_python)
    if name == "hierarchical":
        return snapml_rounds.figure(store, arguments.members)
    return snapml_streaming.figure(store)


def tables(figures: dict[str, Figure], store: Store) -> str:
    """Format all tables, and the number of runs that the time limit left out."""
    parts: list[str] = []
    for figure in figures.values():
        parts.append(f"## {figure.title}\n")
        for heading, table in figure.tables:
            parts += [f"{heading}:\n", table]
    if store.missing:
        parts.append(f"{store.missing} runs are missing: call again to continue.\n")
    return "\n".join(parts)


def numbers(figures: dict[str, Figure]) -> str:
    """Return the plotted lines as JSON values."""
    content = {
        name: [{"title": p.title, "x": p.x, "y": p.y, "lines": p.lines} for p in figure.panels]
        for name, figure in figures.items()
    }
    return json.dumps(content, indent=1, allow_nan=False)


if __name__ == "__main__":
    sys.exit(main())
