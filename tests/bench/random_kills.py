"""Count hangs, double counts and undeserved losses over many seeded runs with random faults.

    python tests/bench/random_kills.py [--seeds 500] [--first 0]

Prints one line of totals as JSON, and a line for each run that went wrong; exits with 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.random_faults import RandomRun, random_run


async def run_all(first: int, seeds: int) -> list[RandomRun]:
    return [await random_run(seed) for seed in range(first, first + seeds)]


def totals(runs: list[RandomRun]) -> dict[str, int]:
    faults: Counter[str] = Counter()
    for run in runs:
        faults.update(run.faults)
    return {
        "runs": len(runs),
        **{name: faults[name] for name in ("kills", "pauses", "notices", "returns")},
        "hangs": sum(run.state == "hangs" for run in runs),
        "double_counts": sum(run.state == "failed" for run in runs),
        "undeserved_losses": sum(len(run.collateral) for run in runs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began_s = time.perf_counter()
    runs = asyncio.run(run_all(arguments.first, arguments.seeds))
    for run in runs:
        if not run.is_good:
            print(run.seed, run.state, run.collateral, run.error)
    print(json.dumps({**totals(runs), "seconds": round(time.perf_counter() - began_s, 1)}))
    return 0 if all(run.is_good for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
