"""CoCoA on real worker processes under whatever can happen to them, on real data.

    PYTHONPATH=. python tests/bench/cocoa_real_kills.py [--first 0] [--runs 20] [--members 5]

A seed draws data, loss, holders, policies, topology and what a thread does to the workers while
the job runs: SIGKILL, SIGTERM, SIGSTOP with and without SIGCONT, notices, scaling up and down,
everybody at once. Every run must end at its gap; every round's objective and gap are compared with
what numpy makes of its model. Ends with status 1 where a run hangs, fails or says what is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import elasticml as em
from elasticml.errors import ElasticmlError

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "papers"))
from support.cocoa_data import SETS

#: Little of a penalty, so that a run lasts.
L2, GAP = 1e-4, 1e-5
#: Rounding of two ways to add up the same losses.
SLACK = 1e-9
LIMIT_S = 150.0
HOW = ("kill", "kill", "kill", "kill", "terminate", "notice", "stop", "scale", "half", "all")


class Disturber(threading.Thread):
    """Does things to workers for some seconds, then only brings them back."""

    def __init__(self, cluster: em.LocalCluster, members: int, seed: int, for_s: float) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.members = members
        self.rng = random.Random(seed)
        self.for_s = for_s
        self.over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.frozen: list[int] = []
        #: Examples that are absent now, as the job says.
        self.absent = 0

    def run(self) -> None:
        """Until it is over."""
        until_s = time.monotonic() + self.for_s
        while not self.over.wait(self.rng.uniform(0.02, 0.5)):
            there = [w for w in self.cluster.workers() if w.address is not None]
            with contextlib.suppress(ElasticmlError, ProcessLookupError):
                if time.monotonic() < until_s and there:
                    self.disturb([str(w.address) for w in there], [w.pid for w in there])
                missing = self.members - len(self.cluster.workers())
                # Later, whom a policy has given back stays away, unless a job waits for somebody.
                wanted = time.monotonic() < until_s or self.absent or missing == self.members
                if missing > 0 and wanted and self.rng.random() < 0.6:
                    self.counts["returns"] += missing
                    self.cluster.bring_back(missing)

    def disturb(self, there: list[str], pids: list[int | None]) -> None:
        """Do one thing."""
        rng, n = self.rng, len(there)
        how = rng.choice(HOW)
        self.counts[how] += 1
        if how in ("kill", "terminate", "notice"):
            chosen = rng.sample(there, rng.randint(1, max(1, n // 2)))
            self.cluster.lose(chosen, how, 0.5)
        elif how in ("half", "all"):
            self.cluster.lose(there if how == "all" else there[: n // 2], "kill", 0.0)
        elif how == "scale":
            self.cluster.scale(rng.randint(1, self.members + 1))
        else:
            pid = rng.choice([p for p in pids if p is not None])
            os.kill(pid, signal.SIGSTOP)
            self.frozen.append(pid)
            if rng.random() < 0.7:
                threading.Timer(rng.uniform(0.2, 4.0), thaw, [pid]).start()

    def stop(self) -> None:
        """Leave no process stopped."""
        self.over.set()
        self.join()
        for pid in self.frozen:
            thaw(pid)


def thaw(pid: int) -> None:
    """Let a stopped process go on, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@functools.cache
def rows_of(name: str) -> tuple[Any, np.ndarray]:
    """Read a data set."""
    X, y = SETS[name]()
    if hasattr(X, "indptr"):
        X.indptr, X.indices = X.indptr.astype(np.int32), X.indices.astype(np.int32)
    return X, y


def primal(name: str, loss: str, w: np.ndarray) -> float:
    """Objective of a model over all rows."""
    X, y = rows_of(name)
    margins = y * (X @ w)
    room = np.maximum(1.0 - margins, 0.0)
    losses = {"hinge": room, "squared_hinge": room**2, "logistic": np.logaddexp(0.0, -margins)}
    return float(losses[loss].mean() + 0.5 * L2 * w @ w)


@functools.cache
def best(name: str, loss: str) -> float:
    """The least objective, or a little more, by LIBLINEAR."""
    X, y = rows_of(name)
    C = 1.0 / (L2 * len(y))
    if loss == "logistic":
        made = LogisticRegression(C=C, fit_intercept=False, solver="newton-cg", tol=1e-10)
    else:
        made = LinearSVC(loss=loss, C=C, fit_intercept=False, tol=1e-7, max_iter=2000)
    return primal(name, loss, made.fit(X, y).coef_[0])


def job_of(seed: int, members: int, sets: list[str]) -> tuple[em.Job, str, str, str]:
    """Draw a job."""
    rng = random.Random(seed)
    name, loss = rng.choice(sets), rng.choice(["hinge", "squared_hinge", "logistic"])
    absent, holders = rng.choice(["auto", "auto", "freeze", "stall"]), rng.choice([1, 2, 2])
    policies: list[Any] = ["redeal"] if rng.random() < 0.6 else []
    policies += ["rebalance"] if rng.random() < 0.4 else []
    policies += [{"name": "shuffle", "share": 0.1}] if rng.random() < 0.2 else []
    policies += ["straggler"] if rng.random() < 0.2 else []
    scaling = rng.choice([None, {"name": "knee", "factor": 2, "minimum": 2}, "grow"])
    if scaling == "grow":
        kind = {
            "name": "gap_per_container_second",
            "objective": rng.choice(["seconds", "container_seconds"]),
        }
        policies.append({**kind, "maximum": members + 2, "window": 2, "probe": 2, "cool": 2})
    elif scaling is not None:
        policies.append(scaling)
    topology = rng.choice(["tree", "tree", "star"])
    X, y = rows_of(name)
    job = em.Job(
        em.CoCoA(loss=loss, l2=L2, gap_every=rng.choice([1, "auto"])),
        em.from_arrays(X, y),
        name=f"kills-{seed}",
        absent=absent,
        holders=holders,
        policies=policies,
        stop=em.Stop(gap=GAP, rounds=100_000, seconds=LIMIT_S - 30),
        members=em.Members(start=members),
        collective=em.Collective(
            topology=topology, fan_out=rng.randint(1, 2), deadline=1.0, stuck_factor=3.0
        ),
        evaluate=em.Evaluate(every=1),
        seed=seed,
    )
    return job, name, loss, f"{name} {loss} {absent} holders {holders} {topology} {policies}"


def one(cluster: em.LocalCluster, client: Client, seed: int, options: argparse.Namespace) -> bool:
    """Run a job and judge it."""
    job, name, loss, what = job_of(seed, options.members, options.sets)
    handle = job.start(client)
    disturber = Disturber(cluster, options.members, seed, options.disturb_s)
    disturber.start()
    began_s, wrong = time.monotonic(), []
    try:
        for _ in handle.batches():  # the scheduler answers when there is news, or after a second
            disturber.absent = handle.status().absent_examples
            if time.monotonic() - began_s > LIMIT_S:
                wrong.append(f"hangs: {handle.status()}")
                handle.cancel()
                break
    finally:
        disturber.stop()
    took_s = time.monotonic() - began_s
    try:
        wrong += judged(handle, name, loss)
        rounds = handle.status().round
    except ElasticmlError as error:
        wrong.append(f"{type(error).__name__}: {error}")
        rounds = -1
    print(f"{seed}: {what}: {rounds} rounds, {took_s:.1f} s, {dict(disturber.counts)}", flush=True)
    for line in wrong[:20]:
        print("    WRONG", line, flush=True)
    if wrong and options.stories:
        path = Path(options.stories) / f"story-{seed}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in handle))
    handle.forget()
    return not wrong


def judged(handle: em.Handle, name: str, loss: str) -> list[str]:
    """Compare what the job has said of its models with what they are."""
    outcome, wrong = handle.outcome(), []
    least = best(name, loss)
    for row in outcome.history:
        arrays = outcome.snapshots.get(row["round"])
        gap, objective = row.get("gap"), row.get("objective")
        if arrays is None or gap is None or objective is None:
            continue
        true = primal(name, loss, arrays["coef"][0])
        if gap < 0 or gap < true - least - SLACK:
            wrong.append(f"round {row['round']}: gap {gap} is below {true - least}")
        if row.get("gap_is_bound"):
            if objective < true - SLACK:
                wrong.append(f"round {row['round']}: bound {objective} is below {true}")
        elif abs(objective - true) > SLACK * max(1.0, true):
            wrong.append(f"round {row['round']}: objective {objective} is not {true}")
    story = list(handle)
    n_rows = len(rows_of(name)[1])
    last = [r for r in story if r["event"] == "ExchangeEnded"][-1]
    if last["examples"] + last["absent_examples"] != n_rows:
        wrong.append(f"{last['examples']} and {last['absent_examples']} examples at the end")
    end = story[-1]
    summary = outcome.summary
    if end["state"] != "done" or summary["gap"] is None or summary["gap"] > GAP:
        wrong.append(f"{end['state']}, {end['reason']}, gap {summary['gap']}")
    elif summary["gap"] < primal(name, loss, outcome.arrays["coef"][0]) - least - SLACK:
        wrong.append(f"final gap {summary['gap']}")
    return wrong


def main() -> int:
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--disturb-s", type=float, default=8.0)
    parser.add_argument("--sets", nargs="+", default=["rcv1", "ijcnn1", "a9a"])
    parser.add_argument("--stories", help="folder for the stories of runs that went wrong")
    options = parser.parse_args()
    wrong = 0
    with (
        em.LocalCluster(options.members, workers_max=options.members + 2) as cluster,
        Client(cluster) as client,
    ):
        for seed in range(options.first, options.first + options.runs):
            cluster.scale(options.members)
            client.wait_for_workers(options.members)
            wrong += not one(cluster, client, seed, options)
    print(f"{options.runs} runs, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
