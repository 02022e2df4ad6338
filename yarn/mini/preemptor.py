"""Pre-empt a job's containers in a demonstration, and kill one of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from elasticml.clusters.yarn.jobs.applications import StoryReader
from elasticml.clusters.yarn.yarn_client import YarnClient
from elasticml.errors import ElasticmlError
from elasticml.report.preemptions import containers
from elasticml.story.records import RoundEnded, StoryRecord, records_from_json
from yarn.mini.daemons import environment_of
from yarn.mini.mini_yarn import MiniYarn
from yarn.mini.tenant import Tenant

#: Seconds between two polls of the job's story.
LOOK_S = 0.5
#: Seconds for a job to start, and for the other queue to get its containers.
WAIT_S_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPlan:
    """How many containers are taken from a job, and when."""

    containers: int
    #: Seconds of training before they are taken.
    begin_s: float
    #: Seconds until they are released.
    hold_s: float


class ContainerKiller:
    """Kill a worker container of an application on a mini YARN, without notice.

    Parameters
    ----------
    client : YarnClient
    yarn : MiniYarn
    name : str
        Name of the application.
    """

    def __init__(self, client: YarnClient, yarn: MiniYarn, name: str) -> None:
        self._client = client
        self._yarn = yarn
        self._name = name

    def kill(self) -> str:
        """Send SIGKILL to all processes of the youngest container; return its id."""
        (app_id,) = self._client.running(self._name)
        with self._client.connect(app_id) as application:
            workers = application.containers(["dask.worker"], ["running"])
        # The youngest: it has not been marked for pre-emption.
        container = max(workers, key=lambda worker: worker.instance).container
        pids = [
            pid
            for pid in self._yarn.processes()
            if environment_of(pid).get("CONTAINER_ID") == container
        ]
        # Collect all first, then kill the worker before its parent shell: if the shell dies first,
        # the NodeManager sends SIGTERM to the worker, which then announces its departure.
        for pid in sorted(pids, reverse=True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return container


class ContainerPreemptor:
    """Take containers from a job while it trains, release them, then kill one.

    A context manager around the job; it acts in a thread of its own.

    Parameters
    ----------
    tenant : Tenant
        The application in another queue that takes the containers.
    killer : ContainerKiller
    place : str
        Place of the job's run directory.
    plan : PreemptionPlan
    say : callable
        Called with progress messages of one line.
    """

    def __init__(
        self,
        tenant: Tenant,
        killer: ContainerKiller,
        place: str,
        plan: PreemptionPlan,
        say: Callable[[str], None],
    ) -> None:
        self._tenant = tenant
        self._killer = killer
        self._reader = StoryReader(place)
        self._plan = plan
        self._say = say
        self._story: list[StoryRecord] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._act, name="elasticml-preemptor")
        self._error: Exception | None = None

    def __enter__(self) -> ContainerPreemptor:
        """Start following the job."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop acting on the job."""
        self._is_over.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that kept containers from being taken, if any."""
        if self._error is not None:
            raise self._error

    def _act(self) -> None:
        count = self._plan.containers
        try:
            if not self._until(lambda: self._trained_s() > self._plan.begin_s):
                return
            self._say(f"prod requests {count} containers")
            self._tenant.take(count)
            self._tenant.wait(count, WAIT_S_MAX)
            self._say(f"prod has {count} containers")
            self._is_over.wait(self._plan.hold_s)
            self._tenant.give_back()
            self._say("prod releases them")
            if self._until(self._is_whole_again):
                self._say(f"killed {self._killer.kill()} with SIGKILL")
        except ElasticmlError as error:
            self._error = error

    def _until(self, is_so: Callable[[], bool]) -> bool:
        """Poll a condition; return False if the job ends first, or after ``WAIT_S_MAX`` seconds."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline_s and not self._is_over.wait(LOOK_S):
            self._story += records_from_json(self._reader.news())
            if is_so():
                return True
        return False

    def _trained_s(self) -> float:
        """Return the job's time at the end of its last round, in seconds."""
        return max((r.t for r in self._story if isinstance(r, RoundEnded)), default=0.0)

    def _is_whole_again(self) -> bool:
        """Return whether every lost member has been replaced."""
        lost = [c for c in containers(self._story) if c.lost_s is not None]
        return bool(lost) and all(c.return_s is not None for c in lost)
