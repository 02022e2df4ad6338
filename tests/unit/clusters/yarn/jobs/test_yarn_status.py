"""Ending an application on request: by its driver if possible, else by YARN."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

from elasticml.clusters.yarn.jobs import yarn_status
from elasticml.clusters.yarn.jobs.submission import CANCEL_KEY, Verdict, write_verdict
from elasticml.clusters.yarn.jobs.yarn_status import cancel

APPLICATION = "application_1_0001"


class Cluster:
    """A client of a cluster on which a driver ends its job on request.

    Parameters
    ----------
    place : str
        Where the driver writes how the job has ended.
    state : str
        What it writes.
    looks : int or None
        How many further requests report the application as running; None if it never ends.
    """

    def __init__(self, place, state, looks):
        self.place, self.state, self.looks = place, state, looks
        self.kv = {}
        self.is_killed = False

    def application_report(self, application_id):
        is_over = self.is_killed
        if CANCEL_KEY in self.kv:
            if self.kv[CANCEL_KEY] != b"heard":
                write_verdict(self.place, Verdict(state=self.state, reason="5 rounds"))
                self.kv[CANCEL_KEY] = b"heard"
            elif self.looks is not None:
                self.looks -= 1
                is_over = is_over or self.looks < 0
        used = SimpleNamespace(memory=0, vcores=0)
        return SimpleNamespace(
            state="FINISHED" if is_over else "RUNNING",
            final_status="UNDEFINED",
            queue="ml",
            user="me",
            diagnostics="",
            progress=0.0,
            tracking_url="",
            usage=SimpleNamespace(num_used_containers=1, used_resources=used),
        )

    @contextmanager
    def connect(self, application_id, wait):
        yield SimpleNamespace(kv=self.kv, get_containers=lambda services, states: ["a scheduler"])

    def kill_application(self, application_id):
        self.is_killed = True


@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_a_job_that_has_written_its_end_may_end_its_application(tmp_path, monkeypatch, state):
    # It was killed between writing its end and exiting: YARN reported a finished job as KILLED.
    monkeypatch.setattr(yarn_status, "LOOK_S", 0.0)
    cluster = Cluster(str(tmp_path), state, looks=3)
    cancel(cluster, APPLICATION, str(tmp_path))
    assert not cluster.is_killed
    assert cluster.looks < 0


def test_an_application_that_survives_its_job_is_killed(tmp_path, monkeypatch):
    # Without the agent YARN would restart it.
    monkeypatch.setattr(yarn_status, "LOOK_S", 0.0)
    monkeypatch.setattr(yarn_status, "SETTLE_S_MAX", 0.05)
    cluster = Cluster(str(tmp_path), "cancelled", looks=None)
    cancel(cluster, APPLICATION, str(tmp_path))
    assert cluster.is_killed
