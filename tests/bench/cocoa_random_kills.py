"""CoCoA jobs in the in-memory world under many seeded random faults: hangs, wrong gaps, lost rows.

    python tests/bench/cocoa_random_kills.py [--seeds 300] [--first 0]

Prints a line for each run that went wrong and one line of totals as JSON; exits with 1 then.
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

from tests.faults.cocoa_faults import CocoaRun, cocoa_run


def totals(runs: list[CocoaRun]) -> dict[str, int]:
    """Count what happened."""
    faults: Counter[str] = Counter()
    for run in runs:
        faults.update(run.faults)
    names = ("killed", "aimed", "many", "pauses", "notices", "joins")
    return {
        "runs": len(runs),
        "rounds": sum(run.rounds for run in runs),
        **{name: faults[name] for name in names},
        "hangs": sum(run.state == "hangs" for run in runs),
        "failed": sum(run.state == "failed" for run in runs),
        "wrong": sum(bool(run.wrong) for run in runs),
        "undeserved_losses": sum(len(run.collateral) for run in runs),
    }


def main() -> int:
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began_s = time.perf_counter()
    runs = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        run = asyncio.run(cocoa_run(seed))
        runs.append(run)
        if not run.is_good:
            print(f"{seed}: {run.what}: {run.state} {run.collateral} {run.wrong[:3]}", flush=True)
            print(f"    {run.error[-1500:]}", flush=True)
    print(json.dumps({**totals(runs), "seconds": round(time.perf_counter() - began_s, 1)}))
    return 0 if all(run.is_good for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
