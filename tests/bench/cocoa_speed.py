"""CoCoA's local solver against Snap ML and LIBLINEAR: seconds to the same suboptimality.

    python -m tests.bench cocoa_speed [--sets reuters kdd rcv1_shaped:200000] [--models hinge]
        [--C 1 100] [--threads 1 2] [--repeats 3] [--python PEERS_VENV/bin/python]

``linear_peers`` with the peer ``cocoa``: passes of one member's local solver with the exact line
search between them, in memory, without a job. ``C`` is 1 / (l2 n).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.bench import linear_peers


def main(
    *,
    sets: Sequence[str] = ("reuters", "kdd", "rcv1_shaped:2050000"),
    models: Sequence[str] = ("hinge",),
    C: Sequence[float] = (1.0, 100.0),
    threads: Sequence[int] = (1, 2),
    repeats: int = 3,
    limit_s: float = 120.0,
    python: str = sys.executable,
) -> None:
    """Print the table of ``linear_peers``; ``python`` has Snap ML."""
    linear_peers.main(
        sets=sets,
        models=models,
        C=C,
        peers=("cocoa", "snapml", "liblinear"),
        threads=threads,
        repeats=repeats,
        limit_s=[str(limit_s)],
        python=python,
    )
