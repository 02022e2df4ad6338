"""Run dask-ml or XGBoost on Dask under kills: a scheduler and four workers without nannies.

``--way dask_ml``: ``dask_ml.linear_model.LogisticRegression(solver="lbfgs")`` on persisted arrays;
Dask computes lost partitions again. ``--way xgboost``: ``xgboost.dask.train`` with trees (``hist``,
depth 6): it has no distributed linear model; ``coll_cfg=Config(retry=3, timeout=30)``. Either runs
with ``distributed.scheduler.allowed-failures=1000``. If training ends with an error, it is started
again at once on the workers that are there: XGBoost from its last checkpoint (every 5 rounds),
dask-ml, which has none, from the beginning.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.peers import goodput_run
from tests.bench.peers.goodput_run import COLUMNS, GROUP_ROWS, L2, ROWS, WORKERS, Run, kill_tree

#: Boosting rounds between checkpoints.
CHECKPOINT_ROUNDS = 5


def arrays_of(run: Run, client: Any) -> tuple[Any, Any]:
    """Return the data as persisted arrays, read by the workers."""
    import dask
    import dask.array as da
    from distributed import wait

    folder = str(run.data / "linear")

    def part(name: str, start: int) -> np.ndarray:
        array = np.load(f"{folder}/{name}.npy", mmap_mode="r")
        return np.array(array[start : start + GROUP_ROWS], np.float64)

    starts, read = range(0, ROWS, GROUP_ROWS), dask.delayed(part)
    X = da.concatenate(
        [da.from_delayed(read("x", k), (GROUP_ROWS, COLUMNS), np.float64) for k in starts]
    )
    y = da.concatenate([da.from_delayed(read("y", k), (GROUP_ROWS,), np.float64) for k in starts])
    X, y = client.persist([X, y])
    wait([X, y])
    return X, y


def dask_ml(run: Run, client: Any) -> None:
    """Fit with dask-ml, counting the passes over the data."""
    import dask_glm.algorithms
    from dask_ml.linear_model import LogisticRegression

    X, y = arrays_of(run, client)
    minimize, passes = dask_glm.algorithms.fmin_l_bfgs_b, [0]

    def counted(function: Any, start: Any, **options: Any) -> Any:
        def evaluate(*arguments: Any) -> Any:
            loss, gradient = function(*arguments)
            passes[0] += 1
            run.progress(passes[0] * ROWS, float(np.ravel(loss)[0]) / ROWS)
            return loss, gradient

        return minimize(evaluate, start, **{**options, "maxfun": 10**9})

    dask_glm.algorithms.fmin_l_bfgs_b = counted
    model = LogisticRegression(
        solver="lbfgs",
        C=1.0 / (L2 * ROWS),
        fit_intercept=False,
        max_iter=10**6,
        tol=0.0,
    )
    try:
        model.fit(X, y)
    finally:
        dask_glm.algorithms.fmin_l_bfgs_b = minimize


def xgboost(run: Run, client: Any) -> None:
    """Fit with XGBoost, from the last checkpoint if there is one."""
    import xgboost as xgb
    from xgboost import dask as dxgb
    from xgboost.collective import Config

    folder, saved = str(run.folder), run.folder / "booster.ubj"
    X, y = arrays_of(run, client)

    class Report(xgb.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if xgb.collective.get_rank() == 0:
                done = model.num_boosted_rounds()
                loss = evals_log["train"]["logloss"][-1]
                path = Path(folder)
                goodput_run.append(path, "progress.jsonl", examples=done * ROWS, loss=loss)
                if done % CHECKPOINT_ROUNDS == 0:
                    fresh = path / f"booster-{os.getpid()}.ubj"
                    model.save_model(fresh)
                    fresh.replace(path / "booster.ubj")
            return False

    data = dxgb.DaskQuantileDMatrix(client, X, y)
    booster = xgb.Booster(model_file=str(saved)) if saved.exists() else None
    dxgb.train(
        client,
        {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "eta": 0.1},
        data,
        num_boost_round=10**6,
        evals=[(data, "train")],
        verbose_eval=False,
        xgb_model=booster,
        callbacks=[Report()],
        coll_cfg=Config(retry=3, timeout=30),
    )


def main() -> None:
    """Start the cluster, fit in a thread, play the trace, and end all."""
    run = Run.from_command_line(__doc__, way=("dask_ml", "xgboost"))
    import dask
    from distributed import Client

    os.environ["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"] = "1000"
    os.environ["DASK_DISTRIBUTED__ADMIN__TICK__LIMIT"] = "60s"
    address_file = run.folder / "scheduler.json"
    log = (run.folder / "cluster.log").open("ab")
    command = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0"]
    command += ["--no-dashboard", "--scheduler-file", str(address_file)]
    scheduler = subprocess.Popen(command, stdout=log, stderr=log)
    while not address_file.exists():
        if scheduler.poll() is not None:
            raise RuntimeError(
                f"the scheduler ended with status {scheduler.returncode}: {log.name}"
            )
        time.sleep(0.1)
    workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(places: list[int]) -> None:
        for place in places:
            command = [sys.executable, "-m", "dask", "worker", "--no-nanny", "--nthreads", "1"]
            command += ["--no-dashboard", "--scheduler-file", str(address_file)]
            workers[place] = subprocess.Popen(
                [*command, "--local-directory", str(run.folder)], stdout=log, stderr=log
            )

    def kill(places: list[int]) -> None:
        kill_tree(workers[place].pid for place in places)

    start(list(range(WORKERS)))
    client = Client(scheduler_file=str(address_file))
    client.wait_for_workers(WORKERS)
    fit = {"dask_ml": dask_ml, "xgboost": xgboost}[run.arguments.way]

    def fits() -> None:
        with dask.config.set(scheduler=client):
            while not run.over.is_set():
                try:
                    fit(run, client)
                    run.note("the fit returned")
                    return
                except Exception as error:
                    run.note("the fit failed", error=f"{type(error).__name__}: {error}"[:400])
                    run.over.wait(0.5)

    threading.Thread(target=fits, daemon=True).start()
    run.disturb(kill, start)
    run.over.wait()
    kill_tree([*(process.pid for process in workers.values()), scheduler.pid])
    os._exit(0)


if __name__ == "__main__":
    main()
