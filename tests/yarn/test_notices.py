"""Notices of a real ResourceManager, as they reach Python through the agent.

One application of shell scripts in the queue ``ml`` goes through all tests. With its master and
that of the application in ``prod`` it fills the cluster, so that each container for ``prod`` costs
one.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticml.clusters.yarn.application_spec import with_agent
from elasticml.clusters.yarn.hadoop_conf import grace_settings
from elasticml.clusters.yarn.notice_parser import AgentNotice, preemption_times
from elasticml.clusters.yarn.notice_stream import NoticeStream
from elasticml.clusters.yarn.skein_client import SkeinApplication
from elasticml.data.storage.hadoop_sites import hadoop_conf
from elasticml.protocol.marks import MarkStore
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, NodeChanged
from tests.waiting import until

pytestmark = [pytest.mark.yarn, pytest.mark.slow]

WORKERS = 10
HEARTBEAT_MS = 500
WAIT_S = 90.0
#: Records when SIGTERM came, then ends.
SCRIPT = """
stamp="$STAMPS/$CONTAINER_ID"
trap 'date +%s.%N > "$stamp.new"; mv "$stamp.new" "$stamp"; exit 0' TERM
touch "$stamp.ready"
sleep infinity & wait
"""


class NoticeLog:
    """The notices of a stream, with their times."""

    def __init__(self) -> None:
        self.all: list[tuple[float, AgentNotice]] = []
        self._new: queue.SimpleQueue[tuple[float, AgentNotice]] = queue.SimpleQueue()

    def __call__(self, notice: AgentNotice) -> None:
        self._new.put((time.time(), notice))

    def until(self, is_over: Callable[[list[AgentNotice]], bool], what: str) -> None:
        """Wait until the notices so far fulfil a condition."""
        deadline_s = time.monotonic() + WAIT_S
        while not is_over([notice for _, notice in self.all]):
            try:
                self.all.append(self._new.get(timeout=max(0.0, deadline_s - time.monotonic())))
            except queue.Empty:
                pytest.fail(f"{what}: notices {self.all}")

    def until_marks_expire(self) -> set[str]:
        """Wait until the marks so far have expired; return their containers."""
        marks, expired = MarkStore(), set[str]()
        for at_s, notice in self.all:
            if isinstance(notice, ContainerMarked):
                marks.add(notice, at_s)

        def have_expired() -> bool:
            expired.update(lifted.container for lifted in marks.expire(time.time()))
            return expired >= set(self.of(ContainerMarked))

        until(have_expired, "the marks to expire", WAIT_S)
        while not self._new.empty():
            self.all.append(self._new.get())
        return expired

    def clear(self) -> None:
        self.all.clear()

    def of(self, kind: type[Any]) -> dict[str, Any]:
        """Return the notices of a kind, by container."""
        return {n.container: n for _, n in self.all if isinstance(n, kind)}

    def at_s(self, kind: type[Any], container: str) -> float:
        return next(
            t
            for t, n in self.all
            if isinstance(n, kind) and getattr(n, "container", "") == container
        )


def count(kind: type[Any]) -> Callable[[list[AgentNotice]], int]:
    return lambda notices: sum(isinstance(notice, kind) for notice in notices)


class Application:
    """The application in ``ml``, and its notices."""

    def __init__(self, client: Any, stamps: Path) -> None:
        import skein

        self._stamps = stamps
        spec = skein.ApplicationSpec(
            name="notices",
            queue="ml",
            master=skein.Master(resources=skein.Resources(memory="1 GiB", vcores=1)),
            services={
                "work": skein.Service(
                    instances=WORKERS,
                    max_restarts=-1,
                    resources=skein.Resources(memory="1 GiB", vcores=1),
                    env={"STAMPS": str(stamps)},
                    script=SCRIPT,
                )
            },
        )
        self.app = client.submit_and_connect(with_agent(spec, HEARTBEAT_MS))
        conf = hadoop_conf(os.environ)
        self.notices = NoticeLog()
        self.stream = NoticeStream(
            SkeinApplication(self.app), preemption_times(grace_settings(conf, conf))
        )

    def running(self) -> dict[str, str]:
        """skein's ids of the running containers, by YARN's."""
        # For skein a container runs as soon as its node has been told to start it.
        started = {path.stem for path in self._stamps.glob("*.ready")}
        containers = self.app.get_containers(states=["RUNNING"])
        return {c.yarn_container_id: c.id for c in containers if c.yarn_container_id in started}

    def restore(self) -> None:
        """Wait until all containers run, and forget the notices so far."""
        self.app.scale("work", WORKERS)
        until(lambda: len(self.running()) >= WORKERS, f"{WORKERS} running containers")
        self.notices.clear()

    def sigterm_s(self, container: str) -> float:
        """Return when a container got SIGTERM; its end may be reported before that."""
        stamp = self._stamps / container
        until(stamp.exists, f"SIGTERM of {container}")
        return float(stamp.read_text())


@pytest.fixture(scope="module")
def started(skein_client, prod, tmp_path_factory):
    application = Application(skein_client, tmp_path_factory.mktemp("stamps"))
    application.stream.start(application.notices)
    yield application
    application.stream.close()
    application.app.shutdown()


@pytest.fixture
def application(started):
    """The application with all its containers."""
    started.restore()
    return started


def test_every_pre_empted_container_has_a_notice_before_its_sigterm(application, prod):
    log = application.notices
    prod.take(3)
    log.until(lambda notices: count(ContainerEnded)(notices) == 3, "nothing was taken")
    prod.wait(3, WAIT_S)
    exits = log.of(ContainerEnded)
    assert {exit.reason for exit in exits.values()} == {"preempted"}
    assert set(exits) <= set(log.of(ContainerMarked))
    for container in exits:
        assert log.at_s(ContainerMarked, container) < application.sigterm_s(container)


def test_a_mark_lapses_when_the_other_queue_stops_asking(application, prod):
    notices = application.notices
    prod.take(1)
    notices.until(count(ContainerMarked), "nothing was marked")
    prod.give_back()
    assert notices.until_marks_expire() <= set(application.running())
    assert notices.of(ContainerEnded) == {}


def test_a_marked_container_survives_if_another_is_released_for_it(application, prod):
    notices = application.notices
    prod.take(1)
    notices.until(count(ContainerMarked), "nothing was marked")
    (marked,) = notices.of(ContainerMarked)
    others = {yarn: name for yarn, name in application.running().items() if yarn != marked}
    value = min(others)
    application.app.kill_container(others[value])
    prod.wait(1, WAIT_S)
    notices.until_marks_expire()
    assert {n.container: n.reason for n in notices.of(ContainerEnded).values()} == {
        value: "released"
    }
    assert marked in application.running()


def test_a_decommissioned_node_is_reported_with_its_time_and_when_it_stays(application, mini_yarn):
    log = application.notices
    mini_yarn.decommission(1, 3600)
    log.until(count(NodeChanged), "no node left")
    mini_yarn.recommission()
    log.until(lambda notices: count(NodeChanged)(notices) == 2, "no node stayed")
    changes = [notice for _, notice in log.all if isinstance(notice, NodeChanged)]
    assert [(n.state, n.grace_s) for n in changes] == [
        ("decommissioning", 3600.0),
        ("running", 0.0),
    ]
    assert len({n.node for n in changes}) == 1
    assert log.of(ContainerEnded) == {}
