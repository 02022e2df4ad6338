"""Many runs under faults: does a run hang, fail, lose an example or report something untrue?

    python tests/bench/kills.py [ALGORITHM] [--real] [--planned] [--runs 20] [--first 0] ...

Faults are drawn from the run's seed, or planned by round and phase (``--planned``). Jobs run in
this process, in the in-memory world of the tests, or on worker processes (``--real``). The switches
may be omitted if an algorithm has only one kind of runs. Without an algorithm every study runs with
its defaults.

toy
    A toy job with exact sums in memory; kills, pauses, notices and returns.
toy --real
    60,000 values a vector, in slots of shared memory (``--transport``), under SIGKILL. Each value
    of each sum is compared with the sum of its examples, each value of each model with the value
    that was sent (``tests/wide_toy.py``). No process may have a slot open afterwards; new names in
    /dev/shm are listed.
batch_gradient
    Logistic regression under SIGKILL. When all examples are present, the objective is compared with
    one computed from the source.
cocoa
    In memory: one or two holders, policies, little memory; kills are aimed at members that send,
    receive or hold something at that moment. Every gap and objective is verified with numpy.
cocoa --real
    Data sets, losses, holders, policies and topologies drawn from the seed; SIGKILL, SIGTERM,
    SIGSTOP with and without SIGCONT, notices, scaling, half or all workers at once. Every run must
    end at its gap; every round is verified with numpy. ``--stories`` keeps the stories of wrong
    runs.
cocoa --planned
    1, 2 and half of the members get SIGKILL in every phase of round 2; their chunks are taken over
    at once (``auto``) or their duals are frozen until round 12 (``freeze``; in ``mode: paper``,
    too, where a round reports its own model's certificate and not the best one so far). A
    certificate with examples absent must not be below the objective over all examples.
local_sgd
    Fashion-MNIST; each seed runs undisturbed and with three planned SIGKILLs: in computing, in
    adding up and in sending the model. Every epoch must have each sample once. The difference of
    the test accuracies is printed with the deviation among undisturbed seeds.
async_sgd
    K-Means on clusters with known centres: three undisturbed runs give the scatter of the final
    objective, then workers are killed and replaced until ``--kills`` kills are reached. Counts the
    fate of all messages.
models
    Every linear model on a9a with a SIGKILL in rounds 1, 2 and 3, each in another phase. Must end
    at its certified gap, and "above", the final objective less that of an undisturbed run to a
    hundredth of the gap, must be at most that gap and at least minus the undisturbed run's gap.
    Batch gradient has no certificates; its model's gap is computed from all rows.

Prints a line for each run (in memory: each wrong run) and the totals as one line of JSON. Exits
with status 1 if anything was wrong. With planned faults, a run in which no member was killed is
wrong, too.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


import elasticml as em
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.errors import ElasticmlError
from tests.bench import harness
from tests.faults.cocoa_faults import cocoa_run
from tests.faults.random_faults import random_run
from tests.primal_reference import SLACK, PrimalReference
from tests.process_faults import (
    EVERYTHING,
    Disturber,
    Outcome,
    disturbed,
    is_over_in_time,
    run_with_random_kills,
)

WAIT_S = 120


@dataclass(kw_only=True)
class Verdict:
    """The result of one run."""

    #: A line, or the cells of the study's table; None: not shown.
    shown: str | tuple[Any, ...] | None
    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class Study:
    """One kind of runs: the cases, how a case runs, and what must hold.

    By default the cases are seeds, and the runs need no cluster.
    """

    #: Options that the study has, and their defaults.
    defaults: ClassVar[dict[str, Any]] = {}
    #: Columns of the table of runs; without any, runs are lines.
    columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    @contextlib.contextmanager
    def workers(self) -> Iterator[None]:
        """Keep the workers of all runs."""
        yield

    def refill(self) -> None:
        """Restore the workers before a run."""

    def cases(self, totals: Counter[str]) -> Iterator[Any]:
        """Yield the cases; ``totals`` are of the runs so far."""
        yield from range(self.options.first, self.options.first + self.options.runs)

    def run(self, case: Any) -> Verdict:
        """Run one case and judge it."""
        raise NotImplementedError

    def final_check(self) -> list[str]:
        """Judge all runs together, when the workers have ended."""
        return []


def kill_loop(study: Study) -> int:
    """Run all cases of a study; return the exit code."""
    totals: Counter[str] = collections.Counter(runs=0, wrong=0)
    begin_s = time.monotonic()
    if study.columns:
        harness.head(*study.columns)
    with study.workers():
        for case in study.cases(totals):
            study.refill()
            try:
                verdict = study.run(case)
            except ElasticmlError as error:
                wrong = f"{type(error).__name__}: {error.message}"
                verdict = Verdict(shown=f"{case}", wrong=[wrong], counts={"failed": 1})
            totals["runs"] += 1
            totals["wrong"] += bool(verdict.wrong)
            totals.update(verdict.counts)
            if isinstance(verdict.shown, tuple):
                harness.row(*verdict.shown)
            elif verdict.shown is not None:
                print(verdict.shown, flush=True)
            for line in verdict.wrong[:20]:
                print("    WRONG", line, flush=True)
    wrong_in_all = study.final_check()
    for line in wrong_in_all:
        print("WRONG", line)
    harness.report({**totals, "seconds": round(time.monotonic() - begin_s, 1)})
    return 1 if totals["wrong"] or wrong_in_all else 0


# --- in this process ------------------------------------------------------------------------


class MemoryStudy(Study):
    """Seeded runs in the in-memory world."""

    defaults: ClassVar[dict[str, Any]] = {"runs": 300, "first": 0}
    #: Runs a job from a seed.
    job: ClassVar[Callable[[int], Any]]
    #: Faults that are counted.
    faults: ClassVar[tuple[str, ...]]

    @contextlib.contextmanager
    def workers(self) -> Iterator[None]:
        """Silence the log, which reports every fault."""
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)

    def run(self, case: int) -> Verdict:
        """Run a seed."""
        run = asyncio.run(type(self).job(case))
        false_rows = getattr(run, "wrong", [])
        counts = {
            **{name: run.faults[name] for name in self.faults},
            "hangs": int(run.state == "hangs"),
            # In the toy's job a sum that counts an example twice fails it.
            "failed": int(run.state == "failed"),
            "untrue": int(bool(false_rows)),
            "undeserved_losses": len(run.collateral),
            "rounds": getattr(run, "rounds", 0),
        }
        if run.is_good:
            return Verdict(shown=None, counts=counts)
        wrong = [f"{run.state}, lost without a fault: {run.collateral}", *false_rows[:3]]
        wrong += [run.error[-1500:]] if run.error else []
        return Verdict(shown=f"{case}: {getattr(run, 'what', '')}", wrong=wrong, counts=counts)


class MemoryToy(MemoryStudy):
    """The toy algorithm, whose sums are exact."""

    defaults: ClassVar[dict[str, Any]] = {"runs": 500, "first": 0}
    job = staticmethod(random_run)
    faults = ("kills", "pauses", "notices", "returns")


class MemoryCocoa(MemoryStudy):
    """CoCoA, verified with numpy."""

    job = staticmethod(cocoa_run)
    faults = ("killed", "aimed", "many", "pauses", "notices", "joins")


# --- worker processes -----------------------------------------------------------------------


class RealStudy(Study):
    """Runs on the worker processes of one local cluster."""

    cluster: em.LocalCluster
    client: Client
    #: Workers that a policy may add.
    spare: ClassVar[int] = 0

    @contextlib.contextmanager
    def workers(self) -> Iterator[None]:
        """Start the cluster, and end it."""
        n = self.options.members
        more = {"workers_max": n + self.spare} if self.spare else {}
        with em.LocalCluster(n, **more) as self.cluster, Client(self.cluster) as self.client:
            yield

    def refill(self) -> None:
        """Restore the workers: a run may end before its last return."""
        self.cluster.scale(self.options.members)
        self.client.wait_for_workers(self.options.members, timeout=WAIT_S)


def counted(outcome: Outcome) -> dict[str, int]:
    """Return the counts of a run under random kills."""
    lost = outcome.result.summary["lost"]
    return {"kills": outcome.kills, "returns": outcome.returns, "lost": lost}


class BatchGradientStudy(RealStudy):
    """Logistic regression under random SIGKILLs."""

    defaults: ClassVar[dict[str, Any]] = {
        "runs": 30,
        "first": 0,
        "members": 6,
        "rounds": 300,
        "transport": "auto",
    }
    modes = ("taylor", "stall", "reload", "ignore")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.data = synthetic_splice(rows=1500, length=30, seed=5)

    def run(self, case: int) -> Verdict:
        """Run a seed; the driver checks its invariants whenever a member joins or goes."""
        outcome = run_with_random_kills(
            self.cluster,
            self.client,
            self.data,
            seed=case,
            members=self.options.members,
            rounds=self.options.rounds,
            absent=self.modes[case % len(self.modes)],
            topology=("tree", "star")[case // len(self.modes) % 2],
            transport=self.options.transport,
        )
        wrong, n_compared = [], 0
        for row in outcome.result.history:
            full = row.get("objective_full")
            if row["objective_kind"] == "exact" and full is not None:
                n_compared += 1
                if not np.isclose(row["objective"], full, rtol=1e-9):
                    wrong.append(f"round {row['round']}: objective {row['objective']}, not {full}")
        rounds = outcome.result.summary["rounds"]
        return Verdict(
            shown=f"seed {case}: {rounds} rounds, {outcome.kills} killed",
            wrong=wrong,
            counts={**counted(outcome), "rows compared": n_compared, "wrong rows": len(wrong)},
        )


class SharedMemoryStudy(RealStudy):
    """A toy with long vectors under random SIGKILLs: is anything stale summed, or left behind?"""

    defaults: ClassVar[dict[str, Any]] = {
        "runs": 100,
        "first": 0,
        "members": 5,
        "rounds": 80,
        "transport": "shm",
    }
    #: Prefix of the link of a slot's descriptor in /proc.
    slot = "/memfd:elasticml"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.data = synthetic_splice(rows=600, length=30, seed=5)
        self.names_before = set(os.listdir("/dev/shm"))
        self.pids = set[int]()

    def run(self, case: int) -> Verdict:
        """Run a seed; a wrong value fails the job."""
        topology = ("tree", "star")[case % 2]
        job = em.Job(
            em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=self.options.rounds),
            self.data,
            name=f"shared-{case}",
            absent="ignore",
            stop=em.Stop(rounds=self.options.rounds),
            collective=em.Collective(
                topology=topology, transport=self.options.transport, fan_out=2, deadline=3.0
            ),
            chunk_size=1024,
        )
        outcome = disturbed(self.cluster, self.client, job, seed=case, members=self.options.members)
        scheduler = psutil.Process(self.cluster.scheduler_pid)
        self.pids |= {scheduler.pid, *(p.pid for p in scheduler.children(recursive=True))}
        n_checked = max(row.get("checked") or 0 for row in outcome.result.history)
        return Verdict(
            shown=f"seed {case}: {topology}, {outcome.kills} killed",
            counts={**counted(outcome), "sums checked": n_checked},
        )

    def final_check(self) -> list[str]:
        """No process of the cluster may still have a slot open."""
        left = sorted(set(os.listdir("/dev/shm")) - self.names_before)
        holders = sorted(pid for pid in self.pids if self.has_slot(pid))
        print(f"new names in /dev/shm: {left}; processes that still have slots: {holders}")
        return [f"{len(holders)} processes still have slots"] if holders else []

    def has_slot(self, pid: int) -> bool:
        """Return whether a process has a slot open."""
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(entry).startswith(self.slot):
                        return True
        return False


class AsyncSgdStudy(RealStudy):
    """K-Means by asynchronous SGD: the same result, however many workers are killed."""

    defaults: ClassVar[dict[str, Any]] = {
        "kills": 200,
        "first": 0,
        "members": 6,
        "rows": 60_000,
        "seconds": 60.0,
    }
    #: Counts of the history's last row that are summed over the disturbed runs.
    mail = ("posted", "skipped", "sent", "undelivered", "received", "merged", "overwritten")
    clusters, n_columns, deviation = 10, 10, 0.15

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        # Around uniform centres, as in the asynchronous SGD paper.
        rng, n = np.random.default_rng(20), options.rows
        centres = rng.uniform(size=(self.clusters, self.n_columns))
        noise = self.deviation * rng.normal(size=(n, self.n_columns))
        rows = centres[rng.integers(0, self.clusters, n)] + noise
        self.data = em.from_arrays(rows, np.zeros(n))
        self.undisturbed: list[float] = []
        self.disturbed: list[float] = []
        self.is_whole = True

    def cases(self, totals: Counter[str]) -> Iterator[int | None]:
        """Yield three undisturbed runs, then seeds until enough workers have been killed."""
        yield from (None, None, None)
        seed = self.options.first
        while totals["kills"] < self.options.kills:
            yield seed
            seed += 1

    def job(self, name: str, seconds: float) -> em.Job:
        """Make a job that runs for ``seconds``, from the same start every time."""
        return em.Job(
            em.AsyncSGD("kmeans", k=self.clusters, report_every=0.5),
            self.data,
            name=name,
            stop=em.Stop(seconds=seconds),
            collective=em.Collective(deadline=5.0),
            evaluate=False,
        )

    def objective(self, result: Any) -> float:
        """Return the final objective over all rows; NaN if it is not known."""
        value = result.summary["objective"]
        return float("nan") if value is None else float(value)

    def run(self, case: int | None) -> Verdict:
        """Run undisturbed, or under the kills of a seed."""
        seconds = self.options.seconds
        if case is None:
            name = f"undisturbed-{len(self.undisturbed)}"
            self.undisturbed.append(self.objective(self.job(name, seconds / 4).run(self.client)))
            return Verdict(shown=f"undisturbed: {self.undisturbed[-1]:.6f}")
        outcome = disturbed(
            self.cluster,
            self.client,
            self.job(f"disturbed-{case}", seconds),
            seed=case,
            members=self.options.members,
            episodes=int(2 * seconds),
            # No kills in the last seconds, so that all examples are present at the end.
            kill_s=seconds - 5.0,
            limit_s=seconds + 60.0,
        )
        last = outcome.result.history[-1]
        is_absent = last["absent_examples"] > 0
        self.is_whole &= not is_absent
        self.disturbed.append(self.objective(outcome.result))
        return Verdict(
            shown=f"seed {case}: {outcome.kills} killed, {outcome.returns} back, "
            f"{last['passes']:.1f} passes, {self.disturbed[-1]:.6f}",
            wrong=["examples are absent at the end"] if is_absent else [],
            counts={
                **counted(outcome),
                "absent at the end": int(is_absent),
                **{name: int(last[name]) for name in self.mail},
            },
        )

    def final_check(self) -> list[str]:
        """Compare the disturbed objectives with the undisturbed ones."""
        spread = max(self.undisturbed) - min(self.undisturbed)
        middle = statistics.median(self.undisturbed)
        # When examples are absent at the end the objective is not known.
        known = [value for value in self.disturbed if not math.isnan(value)]
        worst = max((abs(value - middle) for value in known), default=math.inf)
        text = f"disturbed differ by {worst:.2e} at most"
        print(f"undisturbed {middle:.6f}, spread {spread:.2e}; {text}")
        # 0.1 % is far below the difference that another start makes.
        return [] if worst <= max(3 * spread, 1e-3 * middle) else [text]


class RandomCocoaStudy(RealStudy):
    """CoCoA on real data under any fault of workers."""

    defaults: ClassVar[dict[str, Any]] = {
        "runs": 20,
        "first": 0,
        "members": 5,
        "disturb_s": 8.0,
        "sets": ["rcv1", "ijcnn1", "a9a"],
        "stories": None,
    }
    spare = 2
    #: A small penalty, so that a run takes long enough.
    l2, gap = 1e-4, 1e-5
    limit_s = 150.0

    @staticmethod
    @functools.cache
    def judge(name: str) -> PrimalReference:
        """Read a data set."""
        from support.cocoa_data import SETS

        X, y = SETS[name]()
        if hasattr(X, "indptr"):
            X.indptr, X.indices = X.indptr.astype(np.int32), X.indices.astype(np.int32)
        return PrimalReference(
            X=X,
            y=y,
            l2=RandomCocoaStudy.l2,
            tolerance=1e-7,
            epochs_max=2000,
            newton_tolerance=1e-10,
        )

    def job(self, seed: int) -> tuple[em.Job, str, str, str]:
        """Draw a job, its data set and its loss; describe it."""
        rng, members = random.Random(seed), self.options.members
        name = rng.choice(self.options.sets)
        loss = rng.choice(["hinge", "squared_hinge", "logistic"])
        absent, holders = rng.choice(["auto", "auto", "freeze", "stall"]), rng.choice([1, 2, 2])
        policies: list[Any] = ["redeal"] if rng.random() < 0.6 else []
        policies += ["rebalance"] if rng.random() < 0.4 else []
        policies += [{"name": "shuffle", "share": 0.1}] if rng.random() < 0.2 else []
        policies += ["straggler"] if rng.random() < 0.2 else []
        scaling = rng.choice([None, {"name": "knee", "factor": 2, "minimum": 2}, "grow"])
        if scaling == "grow":
            objective = rng.choice(["seconds", "container_seconds"])
            grow = {"name": "gap_per_container_second", "objective": objective}
            policies.append({**grow, "maximum": members + 2, "window": 2, "probe": 2, "cool": 2})
        elif scaling is not None:
            policies.append(scaling)
        topology = rng.choice(["tree", "tree", "star"])
        reference = self.judge(name)
        job = em.Job(
            em.CoCoA(
                loss=loss,
                l2=self.l2,
                gap_every=rng.choice([1, "auto"]),
                intercept=False,
                tolerance=0.0,
                scale="none",
            ),
            em.from_arrays(reference.X, reference.y),
            name=f"kills-{seed}",
            absent=absent,
            holders=holders,
            policies=policies,
            stop=em.Stop(gap=self.gap, rounds=100_000, seconds=self.limit_s - 30),
            members=em.Members(start=members),
            collective=em.Collective(
                topology=topology, fan_out=rng.randint(1, 2), deadline=1.0, stuck_factor=3.0
            ),
            evaluate=em.Evaluate(every=1),
            seed=seed,
        )
        return job, name, loss, f"{name} {loss} {absent} holders {holders} {topology} {policies}"

    def run(self, case: int) -> Verdict:
        """Run a seed."""
        job, name, loss, what = self.job(case)
        handle = job.start(self.client)
        chances = dataclasses.replace(EVERYTHING, seconds=self.options.disturb_s)
        disturber = Disturber(self.cluster, self.options.members, case, chances)
        # After the faults, replace workers only if the job lacks examples.
        disturber.absent = 0
        begin_s, wrong, hangs = time.monotonic(), [], 0
        if not is_over_in_time(handle, disturber, self.limit_s):
            hangs = 1
            wrong.append(f"hangs: {handle.status()}")
            handle.cancel()
        took_s = time.monotonic() - begin_s
        try:
            wrong += self.wrong_in(handle, name, loss)
            rounds = handle.status().round
        except ElasticmlError as error:
            wrong.append(f"{type(error).__name__}: {error}")
            rounds = -1
        if wrong and self.options.stories:
            path = Path(self.options.stories) / f"story-{case}.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in handle))
        handle.forget()
        faults = dict(disturber.counts)
        return Verdict(
            shown=f"{case}: {what}: {rounds} rounds, {took_s:.1f} s, {faults}",
            wrong=wrong,
            counts={**faults, "returns": disturber.returns, "hangs": hangs},
        )

    def wrong_in(self, handle: em.Handle, name: str, loss: str) -> list[str]:
        """List the reported values of the job's models that are wrong."""
        reference, outcome = self.judge(name), handle.outcome()
        wrong = reference.wrong_rows(loss, outcome.history, outcome.snapshots)
        story = list(handle)
        last = [r for r in story if r["event"] == "ExchangeEnded"][-1]
        if last["examples"] + last["absent_examples"] != len(reference.y):
            wrong.append(f"{last['examples']} and {last['absent_examples']} examples at the end")
        end, gap = story[-1], outcome.summary["gap"]
        if end["state"] != "done" or gap is None or gap > self.gap:
            wrong.append(f"{end['state']}, {end['reason']}, gap {gap}")
        elif reference.is_below(gap, loss, outcome.arrays["coef"][0]):
            wrong.append(f"final gap {gap}")
        return wrong


# --- planned faults -------------------------------------------------------------------------


class PlannedCocoaStudy(RealStudy):
    """CoCoA under SIGKILL in every phase: certificates, and tightness of the bounds."""

    defaults: ClassVar[dict[str, Any]] = {
        "members": 6,
        "sets": ["reuters"],
        "loss": "hinge",
        "gap": 1e-6,
    }
    columns = (
        "set",
        "absent",
        "phase",
        "killed",
        "rounds",
        "gap",
        "bounds (from, to)",
        "v off A alpha",
        "wrong",
    )
    phases = ("broadcast", "compute", "reduce", "move", "apply")

    def cases(self, totals: Counter[str]) -> Iterator[tuple[str, Any, Any, str, int]]:
        """Yield data set, absent rule, mode, phase and number of kills."""
        for name in self.options.sets:
            for absent, mode in (("auto", "default"), ("freeze", "default"), ("freeze", "paper")):
                # Nothing moves if chunks stay with their owners.
                for phase in [p for p in self.phases if absent == "auto" or p != "move"]:
                    for lose in sorted({1, 2, self.options.members // 2}):
                        yield name, absent, mode, phase, lose

    @staticmethod
    @functools.cache
    def data(name: str) -> Any:
        """Read a data set."""
        from support.cocoa_data import load

        return load(name)

    def run(self, case: tuple[str, Any, Any, str, int]) -> Verdict:
        """Run one job and judge it."""
        name, absent, mode, phase, lose = case
        job = em.Job(
            em.CoCoA(
                loss=self.options.loss,
                l2=0.01,
                gap_every=1,
                mode=mode,
                intercept=False,
                tolerance=0.0,
                scale="none",
            ),
            self.data(name),
            absent=absent,
            holders=2,
            # Chunks that change owners in every round have no share in the last certificate.
            policies=["redeal"] if absent == "auto" else [],
            faults=[
                {"round": 2, "phase": phase, "lose": lose, "how": "kill"},
                {"round": 12, "return": lose},
            ],
            stop=em.Stop(gap=self.options.gap, rounds=400, seconds=120),
            members=em.Members(start=self.options.members),
            evaluate=em.Evaluate(every=1),
        )
        result = job.run(self.client)
        summary, ratios, wrong = result.summary, [], []
        drift = max(float(row.get("drift") or 0.0) for row in result.history)
        if drift > 1e-10:
            wrong.append(f"v is off A alpha by {drift}")
        for row in result.history:
            full, objective, at = row.get("objective_full"), row.get("objective"), row["round"]
            if full is None or objective is None:
                continue
            if row["gap"] is not None and row["gap"] < 0:
                wrong.append(f"round {at}: gap {row['gap']}")
            if row.get("gap_is_bound"):
                if objective < full - SLACK:
                    wrong.append(f"round {at}: bound {objective} is below {full}")
                dual = objective - row["gap"]
                ratios.append(row["gap"] / max(full - dual, 1e-300))
            elif not math.isclose(objective, full, rel_tol=SLACK):
                wrong.append(f"round {at}: objective {objective} is not {full}")
        gap = summary["gap"]
        if gap is None or not 0 <= gap <= self.options.gap:
            wrong.append(f"ended at gap {gap}")
        if summary["lost"] != lose or summary["gap_is_bound"]:
            wrong.append(f"{summary['lost']} lost of {lose}, bound: {summary['gap_is_bound']}")
        bounds = f"{min(ratios):.4f}, {max(ratios):.4f} of {len(ratios)}" if ratios else "none"
        return Verdict(
            shown=(
                name,
                f"{absent}, {mode}",
                phase,
                summary["lost"],
                summary["rounds"],
                f"{gap:.2e}" if gap is not None else None,
                bounds,
                f"{drift:.0e}",
                len(wrong),
            ),
            wrong=wrong,
            counts={"lost": summary["lost"], "bounds": len(ratios)},
        )


class LocalSgdStudy(RealStudy):
    """Local SGD on Fashion-MNIST: every sample once in every epoch."""

    defaults: ClassVar[dict[str, Any]] = {
        "runs": 3,
        "first": 0,
        "members": 3,
        "epochs": 3,
        "rate": 5e-4,
    }
    columns = (
        "seed",
        "killed",
        "returned",
        "rounds",
        "samples of each epoch",
        "skipped",
        "accuracy",
    )
    batch, local_steps, n_samples = 8, 16, 60_000
    #: As a share of the rounds, number of members, and phase.
    losses = ((0.15, 1, "compute"), (0.4, 2, "reduce"), (0.7, 1, "broadcast"))

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.accuracy: dict[bool, list[float]] = {False: [], True: []}

    def cases(self, totals: Counter[str]) -> Iterator[tuple[int, bool]]:
        """Yield each seed undisturbed and with kills."""
        for seed in super().cases(totals):
            yield from ((seed, False), (seed, True))

    def faults(self) -> Iterator[dict[str, Any]]:
        """Plan losses and returns."""
        samples_a_round = self.options.members * self.batch * self.local_steps
        rounds = self.options.epochs * -(-self.n_samples // samples_a_round)
        for share, count, phase in self.losses:
            begin = round(share * rounds)
            yield {"round": begin, "lose": count, "how": "kill", "phase": phase}
            yield {"round": begin + max(2, rounds // 10), "return": count}

    def run(self, case: tuple[int, bool]) -> Verdict:
        """Run a seed, with kills or without."""
        seed, kills = case
        folder = harness.DATA / "fashion_mnist"
        job = em.Job(
            em.LocalSGD(
                batch=self.batch, local_steps=self.local_steps, learning_rate=self.options.rate
            ),
            em.read_images(str(folder / "train-images-idx3-ubyte.gz"), dtype="float32"),
            test=em.read_images(str(folder / "t10k-images-idx3-ubyte.gz"), dtype="float32"),
            stop=em.Stop(epochs=self.options.epochs),
            faults=list(self.faults()) if kills else [],
            threads=1,
            seed=seed,
        )
        result = job.run(self.client)
        summary, by_epoch = result.summary, Counter[int]()
        for row in result.history[:-1]:
            if row.get("samples"):
                by_epoch[int(row["epoch"])] += int(row["samples"])
        samples = [by_epoch[epoch] for epoch in sorted(by_epoch)]
        accuracy, skipped = summary["test"]["accuracy"], result.history[-2]["skipped"]
        self.accuracy[kills].append(accuracy)
        lost, back, rounds = summary["lost"], summary["returned"], len(result.history) - 1
        wrong = []
        if samples != [self.n_samples] * self.options.epochs:
            wrong.append(f"samples of each epoch: {samples}")
        if (lost > 0) != kills:
            wrong.append(f"{lost} members lost")
        return Verdict(
            shown=(seed, lost, back, rounds, samples, skipped, accuracy),
            wrong=wrong,
            counts={"lost": lost, "returned": back},
        )

    def final_check(self) -> list[str]:
        """Print the difference that kills make."""
        if min(map(len, self.accuracy.values())) > 1:
            spread = statistics.stdev(self.accuracy[False])
            means = {kills: statistics.mean(each) for kills, each in self.accuracy.items()}
            difference = means[True] - means[False]
            print(f"accuracy with kills - without: {difference:+.4f}; by seed {spread:.4f}")
        return []


@dataclass(frozen=True, kw_only=True)
class Model:
    """An algorithm for a tolerance, and whether its data are partitioned by columns."""

    make: Callable[[float], Any]
    by_columns: bool


L1, L2 = 2e-3, 1e-3


def dual(loss: Any) -> Model:
    """Dual coordinate ascent."""
    return Model(
        make=lambda gap: em.CoCoA(
            loss=loss, l2=L2, tolerance=gap, gap_every=1, intercept=False, scale="none"
        ),
        by_columns=False,
    )


def newton(loss: Any) -> Model:
    """Newton steps, by the gradient's norm: the objective is ``L2``-strongly convex."""
    return Model(
        make=lambda gap: em.BatchGradient(
            loss=loss,
            l2=L2,
            optimizer="tron",
            tolerance=min(1.0, np.sqrt(2.0 * L2 * gap)),
            intercept=False,
            scale="none",
        ),
        by_columns=False,
    )


def primal(loss: Any, l1: float, l2: float, gather: bool = True) -> Model:
    """Coordinate descent on columns."""
    return Model(
        make=lambda gap: em.PrimalCoCoA(loss=loss, l1=l1, l2=l2, tolerance=gap, gather=gather),
        by_columns=True,
    )


MODELS = {
    "svm, hinge": dual("hinge"),
    "svm, squared hinge": dual("squared_hinge"),
    "logistic": dual("logistic"),
    "logistic, Newton": newton("logistic"),
    "ridge": dual("squared"),
    "ridge, Newton": newton("squared"),
    "lasso": primal("squared", L1, 0.0),
    "lasso, not gathered": primal("squared", L1, 0.0, gather=False),
    "elastic net": primal("squared", L1, L2),
    "elastic net, not gathered": primal("squared", L1, L2, gather=False),
    "L1-logistic": primal("logistic", L1, 0.0),
    "L1-logistic, not gathered": primal("logistic", L1, 0.0, gather=False),
    "elastic-net logistic": primal("logistic", L1, L2),
    "L1 svm, squared hinge": primal("squared_hinge", L1, 0.0),
}


class ModelsStudy(RealStudy):
    """Every linear model: the gap at the end, against an undisturbed optimum."""

    defaults: ClassVar[dict[str, Any]] = {"members": 4, "gap": 1e-7, "models": list(MODELS)}
    columns = ("model", "rounds", "killed", "gap at the end", "above the optimum", "")
    phases = ("compute", "reduce", "broadcast")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        harness.one_thread()  # of the workers, which are started later
        X, y = harness.labelled("a9a/a9a.svm.gz")
        self.rows = X, np.where(y == 1, 1.0, -1.0)

    def cases(self, totals: Counter[str]) -> Iterator[str]:
        """Yield the models."""
        yield from self.options.models

    def trained(self, model: Model, gap: float, kills: bool) -> Any:
        """Run a job to its end; a worker killed in a round is replaced in the next one."""
        X, y = self.rows
        faults: list[dict[str, Any]] = []
        for round, phase in enumerate(self.phases, start=1):
            faults.append({"round": round, "lose": 1, "how": "kill", "phase": phase})
            faults.append({"round": round + 1, "return": 1})
        job = em.Job(
            model.make(gap),
            em.from_arrays(X, y, by="columns" if model.by_columns else "rows"),
            absent="reload",
            faults=faults if kills else [],
            stop=em.Stop(rounds=20_000, seconds=100),
            members=em.Members(start=self.options.members),
            chunk_size="256 KiB",
        )
        return job.run(self.client)

    def gap_of(self, model: Model, result: Any) -> float:
        """Return the certified gap; for batch gradient it is computed here."""
        if result.summary.get("gap") is not None:
            return float(result.summary["gap"])
        X, y = self.rows
        loss = model.make(self.options.gap).loss
        function = LinearObjective(
            RowBlocks(X, Serial()), y, None, loss=loss, l2=L2, intercept_scaling=None, is_free=False
        )
        return float(function.at(np.ravel(result.arrays["coef"])).gap)

    def run(self, case: str) -> Verdict:
        """Run a model undisturbed and with kills."""
        model, target = MODELS[case], self.options.gap
        undisturbed = self.trained(model, target / 100, False)
        result = self.trained(model, target, True)
        gap, least_gap = (self.gap_of(model, each) for each in (result, undisturbed))
        ends = [each.history[-1]["objective_full"] for each in (result, undisturbed)]
        above, lost, wrong = ends[0] - ends[1], result.summary["lost"], []
        if lost == 0:
            wrong.append("no member was killed")
        if not gap <= target:
            wrong.append(f"ended at gap {gap}")
        # Rounding differs between two orders of summing the same losses.
        if not -least_gap - 1e-12 <= above <= gap + 1e-12:
            wrong.append(f"{above} above the optimum, certified {gap} and {least_gap}")
        verdict = "WRONG" if wrong else "ok"
        rounds = result.summary["rounds"]
        return Verdict(
            shown=(case, rounds, lost, f"{gap:.1e}", f"{above:.1e}", verdict),
            wrong=wrong,
            counts={"lost": lost},
        )


# --- command line ---------------------------------------------------------------------------

#: By algorithm and by the switches that select among its studies.
STUDIES: dict[str, dict[str, type[Study]]] = {
    "toy": {"": MemoryToy, "real": SharedMemoryStudy},
    "batch_gradient": {"real": BatchGradientStudy},
    "cocoa": {"": MemoryCocoa, "real": RandomCocoaStudy, "planned": PlannedCocoaStudy},
    "local_sgd": {"planned": LocalSgdStudy},
    "async_sgd": {"real": AsyncSgdStudy},
    "models": {"planned": ModelsStudy},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "runs": {"type": int, "help": "seeds to run"},
    "first": {"type": int, "help": "first seed"},
    "kills": {"type": int, "help": "run until this many workers have been killed"},
    "members": {"type": int},
    "rounds": {"type": int, "help": "rounds of a run"},
    "seconds": {"type": float, "help": "length of a disturbed run"},
    "epochs": {"type": int},
    "rows": {"type": int, "help": "rows of data"},
    "transport": {"help": "of models and sums: auto, shm, ..."},
    "disturb_s": {"type": float, "help": "seconds of faults in each run"},
    "sets": {"nargs": "+", "help": "data sets of the CoCoA studies"},
    "models": {"nargs": "+", "choices": list(MODELS), "metavar": "MODEL"},
    "loss": {},
    "gap": {"type": float, "help": "certified gap at which a run ends"},
    "rate": {"type": float, "help": "learning rate"},
    "stories": {"help": "folder for the stories of runs that went wrong"},
}


def studies_of(arguments: list[str] | None = None) -> list[Study]:
    """Select studies by the command line."""
    parser = harness.parser(__doc__)
    parser.add_argument("algorithm", nargs="?", choices=list(STUDIES), help="all by default")
    parser.add_argument("--real", action="store_true", help="worker processes")
    parser.add_argument("--planned", action="store_true", help="faults by round and phase")
    for name, how in OPTIONS.items():
        parser.add_argument(flag(name), dest=name, default=argparse.SUPPRESS, **how)
    options = vars(parser.parse_args(arguments))
    algorithm, is_real, is_planned = (options.pop(key) for key in ("algorithm", "real", "planned"))
    if algorithm is None:
        if options or is_real or is_planned:
            parser.error("options need an algorithm")
        return [study(argparse.Namespace(**study.defaults)) for study in all_studies()]
    kinds = STUDIES[algorithm]
    kind = "planned" if is_planned else "real" if is_real else ""
    if len(kinds) == 1 and (kind in kinds or not is_planned):
        (kind,) = kinds
    if kind not in kinds:
        choices = " or ".join(f"--{each}" if each else "no switch" for each in kinds)
        parser.error(f"no such runs; choose {choices}")
    study = kinds[kind]
    for name in options:
        if name not in study.defaults:
            known = ", ".join(map(flag, study.defaults))
            parser.error(f"{flag(name)} means nothing here; there are {known}")
    return [study(argparse.Namespace(**{**study.defaults, **options}))]


def flag(name: str) -> str:
    """Return an option's flag."""
    return f"--{name.replace('_', '-')}"


def all_studies() -> list[type[Study]]:
    """List every study."""
    return [study for kinds in STUDIES.values() for study in kinds.values()]


def main() -> int:
    """Run the studies one after the other; return the exit code."""
    return max([kill_loop(study) for study in studies_of()])


if __name__ == "__main__":
    sys.exit(main())
