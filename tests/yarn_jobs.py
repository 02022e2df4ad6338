"""For tests on a real YARN: a cluster, data, and a job that runs until it is stopped."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em

GAP = 1e-6
ROWS = 1800
WAIT_S = 150.0

_rng = np.random.default_rng(3)
_X = _rng.normal(size=(ROWS, 12)) / np.sqrt(12)
DATA = em.from_arrays(_X, np.sign(_X @ _rng.normal(size=12) + 0.1 * _rng.normal(size=ROWS)))

#: The parts of a story that tests read.
EVENTS = (
    "ExchangeEnded",
    "RoundEnded",
    "MemberJoined",
    "MemberLost",
    "MemberNoticed",
    "Reclaimed",
    "ContainerEnded",
    "NodeChanged",
    "ChunksAbsent",
    "MembersRefused",
    "JobEnded",
)

Story = list[dict[str, Any]]


def make_cluster(skein_client: Any, n_workers: int, **options: Any) -> em.YarnCluster:
    return em.YarnCluster(
        environment=f"venv://{sys.prefix}",
        n_workers=n_workers,
        worker_memory="1 GiB",
        scheduler_memory="1 GiB",
        queue="ml",
        skein_client=skein_client,
        **options,
    )


class Running:
    """A job that runs until it is stopped, and its records so far."""

    def __init__(self, client: Client, name: str, **changes: Any) -> None:
        settings = {"stop": em.Stop(rounds=10**6), "chunk_size": 2048, "holders": 2, **changes}
        # Steps far too short to converge: the events of the job matter, not its result.
        slow = em.BatchGradient(
            loss="logistic",
            optimizer="gd",
            step="constant",
            step_size=1e-7,
            intercept=False,
            tolerance=0.0,
            scale="none",
        )
        job = em.Job(settings.pop("algorithm", slow), DATA, name=name, **settings)
        #: Without the records of every round.
        self.story: Story = []
        #: Members in the last round, and whether they had all examples between them.
        self.members, self.is_whole = 0, False
        #: The last certified gap, if the algorithm has one; None since examples went missing.
        self.gap: float | None = None
        self._handle = job.start(client)
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for record in self._handle:
            if record["event"] in EVENTS:
                self._records.put(record)
        self._records.put(None)

    def _note(self, record: dict[str, Any]) -> None:
        match record["event"]:
            case "ExchangeEnded":
                self.is_whole = (record["examples"], record["absent_examples"]) == (ROWS, 0)
            case "RoundEnded":
                self.members = record["members"]
                if record["gap"] is not None:
                    self.gap = None if record["gap_is_bound"] else record["gap"]
            case _:
                self.story.append(record)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Follow the story until a condition holds."""
        deadline_s = time.monotonic() + WAIT_S
        while not is_so():
            left_s = deadline_s - time.monotonic()
            try:
                record = self._records.get(timeout=max(0.0, left_s))
            except queue.Empty:
                record, left_s = None, 0.0
            if record is None or left_s <= 0.0:
                pytest.fail(f"not within {WAIT_S:g} s: {what}; {self.members}, {self.story}")
            self._note(record)

    def until_whole(self, members: int) -> None:
        """Follow the story until this many members have all examples between them."""
        self.members = 0
        self.until(
            lambda: self.members == members and self.is_whole, f"{members} with all examples"
        )

    def until_certified(self) -> None:
        """Follow the story until a new certificate reaches the target."""
        self.gap = None
        self.until(lambda: self.gap is not None and self.gap <= GAP, f"a gap of {GAP:g}")

    def until_recorded(self, event: str, count: int = 1) -> None:
        """Follow the story until a record has appeared this often."""
        self.until(lambda: len(self.of(event)) >= count, f"{count} x {event}")

    def stop(self) -> dict[str, Any]:
        """End the job; return the last row of its history."""
        self._handle.cancel()
        return dict(self._handle.result().history[-1])

    def of(self, *events: str) -> Story:
        return [record for record in self.story if record["event"] in events]

    def processes(self) -> dict[str, int]:
        """The members so far, with their process ids."""
        return {record["member"]: record["pid"] for record in self.of("MemberJoined")}
