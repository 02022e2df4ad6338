"""Adaptive stock clusters during training: seconds, members over time, chunks that were absent.

    python tests/bench/adaptive.py [--interval 1s] [--only cocoa|batch] [--kind 3..1..3]

``LocalCluster(n_workers=0)`` with ``cluster.adapt`` of 0..3, of 1..3, and of 3, then 1, then 3
workers; CoCoA to a gap of 1e-6 and batch gradients (L-BFGS) until they have converged, on rows of
noise and signal in equal parts. For 3..1..3 the maximum changes when 5 rounds have ended with that
number of members, and each frame takes 100 ms, so that new workers come before the end. Nothing of
elasticml builds the cluster.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import elasticml as em

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elasticml.jobs.handle import workers_of
from tests.bench import harness
from tests.waiting import until

MEMBERS = 3
ROWS, FEATURES = 20_000, 30
#: Rounds with the members of one phase before the next one begins.
ROUNDS = 5


def data() -> Any:
    """Return rows with noisy labels."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(ROWS, FEATURES))
    return em.from_arrays(X, np.sign(X @ rng.normal(size=FEATURES) + 3 * rng.normal(size=ROWS)))


def jobs(latency_s: float | None) -> dict[str, em.Job]:
    """Return a job of each algorithm, to its target."""
    members, source = em.Members(max=MEMBERS), data()
    cocoa = em.CoCoA(loss="logistic", l2=1e-4, intercept=False, tolerance=0.0, scale="none")
    batch = em.BatchGradient(loss="logistic", l2=1e-6, intercept=False, tolerance=0.0, scale="none")
    more: dict[str, Any] = {"members": members, "chunk_size": "64 KiB"}
    more["collective"] = em.Collective(latency_s=latency_s)
    return {
        "cocoa": em.Job(cocoa, source, stop=em.Stop(gap=1e-6, rounds=5000), **more),
        "batch": em.Job(batch, source, stop=em.Stop(rounds=5000), **more),
    }


class Run:
    """A job on an adaptive cluster.

    Parameters
    ----------
    job : Job
    phases : list
        Minimum and maximum of the cluster, one after the other.
    interval : str
        Of ``cluster.adapt``.
    """

    def __init__(self, job: em.Job, phases: list[tuple[int, int]], interval: str) -> None:
        self.phases = list(phases)
        self.interval = interval
        self.course: list[tuple[float, int]] = []
        self._over = threading.Event()
        with (
            LocalCluster(
                n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs=50
            ) as self.cluster,
            Client(self.cluster, set_as_default=False) as self.client,
        ):
            self._adapt()
            self.began_s = time.perf_counter()
            watching = threading.Thread(target=self._watch)
            watching.start()
            handle = job.start(self.client)
            self.story = self._follow(handle)
            self.seconds = time.perf_counter() - self.began_s
            self._over.set()
            watching.join()
            self.summary = handle.outcome().summary
            self.last = handle.outcome().history[-1]
            ended_s = time.perf_counter()
            until(
                lambda: len(workers_of(self.client)) <= self.minimum,
                "the workers of the job are closed",
                look_s=0.05,
            )
            self.closed_s = time.perf_counter() - ended_s

    def _adapt(self) -> None:
        self.minimum, self.maximum = self.phases.pop(0)
        self.cluster.adapt(minimum=self.minimum, maximum=self.maximum, interval=self.interval)

    def _follow(self, handle: em.Handle) -> list[dict[str, Any]]:
        story, members, rounds = [], 0, 0
        for record in handle:
            story.append(record)
            members += record["event"] == "MemberActive"
            members -= record["event"] == "MemberLost"
            rounds += record["event"] == "RoundEnded" and members == self.maximum
            if rounds >= ROUNDS and self.phases:
                rounds = 0
                self._adapt()
        return story

    def _watch(self) -> None:
        with Client(self.cluster, set_as_default=False) as client:
            while not self._over.wait(0.05):
                count = len(workers_of(client))
                if not self.course or self.course[-1][1] != count:
                    self.course.append((time.perf_counter() - self.began_s, count))

    def count(self, event: str) -> int:
        """Return the number of records of one kind."""
        return sum(record["event"] == event for record in self.story)


def main() -> None:
    """Run all, and print a table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--only", choices=("cocoa", "batch"))
    parser.add_argument("--kind", choices=("0..3", "1..3", "3..1..3"))
    options = parser.parse_args()
    kinds = {
        "0..3": [(0, MEMBERS)],
        "1..3": [(1, MEMBERS)],
        "3..1..3": [(0, MEMBERS), (0, 1), (0, MEMBERS)],
    }
    harness.head(
        *("algorithm", "adapt", "seconds", "rounds", "gap or objective", "workers over time"),
        *("retired", "lost", "absent", "closed after (s)"),
    )
    for name in ("cocoa", "batch"):
        for kind, phases in kinds.items():
            if options.only not in (None, name) or options.kind not in (None, kind):
                continue
            job = jobs(0.1 if len(phases) > 1 else None)[name]
            run = Run(job, phases, options.interval)
            course = ", ".join(f"{count} at {at_s:.1f}" for at_s, count in run.course)
            end = run.last.get("gap") if name == "cocoa" else run.summary["objective"]
            harness.row(
                *(name, kind, f"{run.seconds:.1f}", run.summary["rounds"], f"{end:.10g}", course),
                *(run.summary["retired"], run.summary["lost"], run.count("ChunksAbsent")),
                f"{run.closed_s:.1f}",
            )


if __name__ == "__main__":
    main()
