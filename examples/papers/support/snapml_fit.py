"""One peer's logistic regressions, in a separate process: a line for each fit.

    python snapml_fit.py TASK

TASK is JSON: ``folder``, ``train`` and ``test`` (names of sets there), ``peer``, ``threads``,
``l2`` and ``limit_s``, and optionally ``efforts``, the numbers of the fits. A line has the number
of a fit from scratch, its seconds, its final objective, and the mean log-loss of the test set; the
first line has the seconds of the first fit, including compilation, or the reason why there is none.
For pythons that have NumPy, SciPy and the peer; elasticml is needed only for its own fits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.peers.fits import PEERS
from tests.bench.peers.problems import Data, Problem


def main(task: dict[str, Any]) -> None:
    """Fit with increasing effort until more iterations change nothing, or the time is over.

    The time is that of the fits alone, without that of evaluating their models. Efforts that the
    task names are all fitted.
    """
    train, test = (Data(Path(task["folder"]), task[name]) for name in ("train", "test"))
    problem, no_penalty = Problem(model="logistic", l2=task["l2"]), Problem(model="logistic")
    try:
        fits = PEERS[task["peer"]](train, problem, task["threads"])
        print(json.dumps({"first_s": fits.fit(0)[0]}), flush=True)
    except (LookupError, ImportError, MemoryError) as error:
        print(json.dumps({"none": f"{type(error).__name__}: {error}"}), flush=True)
        return
    spent_s, last, still = 0.0, np.inf, 0
    for effort in task.get("efforts", range(fits.efforts)):
        seconds, w = fits.fit(effort)
        spent_s += seconds
        objective = train.objective(problem, w)
        logloss = test.objective(no_penalty, w)
        line = {"effort": effort, "s": seconds, "objective": objective, "logloss": logloss}
        print(json.dumps(line), flush=True)
        if "efforts" in task:
            continue
        # Two efforts may reach the same model before a third one improves it.
        is_still = fits.are_iterations and abs(last - objective) < 1e-8 * abs(objective)
        still = still + 1 if is_still else 0
        if still == 4 or spent_s > task["limit_s"]:
            return
        last = objective


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
