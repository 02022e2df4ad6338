"""The two big generated sets: seconds of fits to a relative suboptimality of 1e-3, by peers.

    python -m tests.bench big_linear --folder KEPT --python PEERS_VENV/bin/python
        [--sets rcv1_shaped criteo_shaped] [--models hinge logistic] [--threads 1 2]
        [--peers elasticml snapml ...] [--repeats 3] [--limit-s 120] [--only find] [--cpu]

``linear_peers`` on sets of 120 and 78 million stored values, which are generated if the folder
lacks them: 1.6 GB. ``rcv1_shaped:200000`` has that many rows. l2 is 1/n, no intercept. Up to commit
f5a3cd13 the reference was the lower end of a certificate; now it is the best objective found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.bench import linear_peers
from tests.bench.peers.big_sets import ROWS

PEERS = ("elasticml", "snapml", "liblinear", "saga", "lbfgs", "vw", "dask-ml", "spark")


def main(
    *,
    folder: Path | None = None,
    python: str = sys.executable,
    sets: Sequence[str] = tuple(ROWS),
    models: Sequence[str] = ("hinge", "logistic"),
    threads: Sequence[int] = (1, 2),
    peers: Sequence[str] = PEERS,
    repeats: int = 3,
    limit_s: float = 120.0,
    only: Literal["find"] | None = None,
    cpu: bool = False,
) -> None:
    """Print the table of ``linear_peers``; ``--limit-s`` is of looking for a peer's effort."""
    linear_peers.main(
        sets=sets,
        models=models,
        C=(1.0,),
        targets=(1e-3,),
        peers=peers,
        threads=threads,
        repeats=repeats,
        limit_s=[str(limit_s)],
        python=python,
        folder=folder,
        only=only,
        cpu=cpu,
    )
