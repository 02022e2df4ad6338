"""Ending an application on request: by its driver if possible, else by YARN."""

from __future__ import annotations

import pytest

from elasticml.clusters.yarn.jobs import yarn_status
from elasticml.clusters.yarn.jobs.submission import CANCEL_KEY, Verdict, write_verdict
from elasticml.clusters.yarn.jobs.yarn_status import cancel
from elasticml.clusters.yarn.yarn_client import ServiceContainer
from tests.fake_yarn import FakeYarn, application_status

APPLICATION = "application_1_0001"


class EndingYarn(FakeYarn):
    """A cluster on which a driver ends its job on request.

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
        super().__init__()
        self.place, self.end, self.looks = place, state, looks
        scheduler = ServiceContainer(
            name="dask.scheduler_0", service="dask.scheduler", instance=0, state="running"
        )
        self.application.listed.append(scheduler)

    def status(self, app_id):
        cancelled = self.application.store.get(CANCEL_KEY)
        if cancelled == b"1":
            write_verdict(self.place, Verdict(state=self.end, reason="5 rounds"))
            self.application.store.put(CANCEL_KEY, b"heard")
        elif cancelled is not None and self.looks is not None:
            self.looks -= 1
            if self.looks < 0:
                return application_status(state="FINISHED")
        return super().status(app_id)


@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_a_job_that_has_written_its_end_may_end_its_application(tmp_path, monkeypatch, state):
    # It was killed between writing its end and exiting: YARN reported a finished job as KILLED.
    monkeypatch.setattr(yarn_status, "LOOK_S", 0.0)
    cluster = EndingYarn(str(tmp_path), state, looks=3)
    cancel(cluster, APPLICATION, str(tmp_path))
    assert not cluster.is_killed
    assert cluster.looks < 0


def test_an_application_that_survives_its_job_is_killed(tmp_path, monkeypatch):
    # Without the agent YARN would restart it.
    monkeypatch.setattr(yarn_status, "LOOK_S", 0.0)
    monkeypatch.setattr(yarn_status, "SETTLE_S_MAX", 0.05)
    cluster = EndingYarn(str(tmp_path), "cancelled", looks=None)
    cancel(cluster, APPLICATION, str(tmp_path))
    assert cluster.is_killed
