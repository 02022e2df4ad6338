"""A campaign resumes a job whose scheduler was lost with its container, and no other failed job."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from elasticml.chaos import processes
from elasticml.chaos.temporary_faults import Undo
from elasticml.clusters.local.cluster import LocalCluster, LocalWorker
from elasticml.errors import JobFailedError

pytestmark = pytest.mark.cluster

#: Seed of a job of CoCoA whose driver is not killed by the campaign itself.
SEED = 0


class Machines:
    """Stands for a mini YARN: local processes, and the end of the scheduler's machine."""

    def __init__(self) -> None:
        self.started = 0

    @contextlib.contextmanager
    def world(self, kind: str, folder: Path, seed: int, yarn: Any) -> Generator[Any]:
        assert (kind, yarn) == ("yarn", self)
        self.started += 1
        with (
            LocalCluster(2, workers_max=3, log_dir=folder) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            pid = cluster.scheduler_pid

            def end_machine(_: random.Random, __: Sequence[LocalWorker]) -> Undo:
                if any(Path(folder).parent.glob("checkpoint/checkpoint-*")):
                    os.kill(pid, signal.SIGKILL)
                return lambda: None

            yield processes._World(
                cluster=cluster,
                client=client,
                scheduler_pid=pid,
                temporary={"node": end_machine},
            )


def run_of(monkeypatch: pytest.MonkeyPatch) -> tuple[processes._Run, Machines]:
    machines = Machines()
    for name, value in {"JOB_S": 3.0, "_YARN_KINDS": ("node",), "_world": machines.world}.items():
        monkeypatch.setattr(processes, name, value)
    stand_in: Any = machines
    return processes._Run("yarn", SEED, None, stand_in), machines


@pytest.mark.slow
def test_a_job_whose_scheduler_s_machine_ended_is_resumed_and_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, machines = run_of(monkeypatch)
    assert run.play() == []
    assert machines.started == 2
    assert run.faults["driver's container"] == 1
    assert run.faults["node"] >= 1
    assert run.rows_checked > 0


def test_a_job_that_fails_while_its_scheduler_lives_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, _ = run_of(monkeypatch)
    attempts = []

    def fail(*_: object, **__: object) -> list[str]:
        attempts.append(run.has_lost_driver)
        raise JobFailedError("the sum is wrong")

    monkeypatch.setattr(run, "_attempt", fail)
    assert run.play() == ["JobFailedError: the sum is wrong"]
    assert attempts == [False]
