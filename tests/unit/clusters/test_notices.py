"""Notices from the agent's documents; the documents have the form that a real agent wrote."""

from __future__ import annotations

import pytest

from elasticml.clusters.yarn import application_spec
from elasticml.clusters.yarn.application_spec import agent_jar, with_agent
from elasticml.clusters.yarn.hadoop_conf import grace_settings
from elasticml.clusters.yarn.notice_parser import (
    EXITS,
    AgentSeen,
    NoticeParser,
    PreemptionTimes,
    exit_reason,
    preemption_times,
)
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import RemoteProtocolError
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, NodeChanged
from tests.fake_yarn import FakeAgent

ONE, TWO = (f"container_1763734000000_0003_01_00000{i}" for i in (2, 3))
NOW_S = 1_763_734_500.0
TIMES = PreemptionTimes(max_wait_s=5.0, interval_s=0.5, sigkill_delay_s=0.25)
RELEASED = "Container released by application"
LOST = "Container released on a *lost* node"
PREEMPTED = "Container preempted by scheduler"


def marked(container: str, grace_s: float, life_s: float = 10.5, count: int = 1) -> ContainerMarked:
    return ContainerMarked(
        container=container,
        grace_s=pytest.approx(grace_s),  # type: ignore[arg-type]
        life_s=pytest.approx(life_s),  # type: ignore[arg-type]
        negotiable=True,
        count=count,
    )


class Agent(FakeAgent):
    """An agent whose documents are read at once by a parser; ``news`` are the notices of the last.

    Parameters
    ----------
    is_following : bool
        Whether the parser has seen the agent, and reads documents as soon as they are written.
    """

    def __init__(self, times: PreemptionTimes = TIMES, is_following: bool = True) -> None:
        super().__init__(self)
        self.parser, self.now_s, self.news = NoticeParser(times), NOW_S, []
        if is_following:
            self.hello()
            self.parser.follow()

    def put(self, key: str, value: bytes) -> None:
        self.news = self.parser.read(key, value, self.now_s)


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_the_agent_is_seen_once_and_other_keys_are_ignored():
    agent = Agent(is_following=False)
    for expected in ([AgentSeen(heartbeat_ms=500)], []):
        agent.hello(500)
        assert agent.news == expected
        agent.put("elasticml.agent.later", b"no JSON")
        assert agent.news == []


def test_the_grace_of_a_mark_is_what_is_left_of_the_wait(agent):
    # A fresh mark is up to a heartbeat old, whatever the clocks say.
    agent.now_s = NOW_S + 100
    agent.mark((ONE, NOW_S, 1), at_s=NOW_S)
    assert agent.news == [marked(ONE, 4.0)]
    # Documents from before the stream began leave less time.
    agent = Agent(is_following=False)
    agent.hello()
    agent.mark((ONE, NOW_S - 3, 1), (TWO, NOW_S - 20, 1), at_s=NOW_S - 1)
    assert agent.news == [marked(ONE, 1.0, life_s=7.5)]
    # No time is left if the heartbeat is longer than the wait.
    agent = Agent(PreemptionTimes(max_wait_s=2.0), is_following=False)
    agent.hello(5000)
    agent.mark((ONE, NOW_S, 1), at_s=NOW_S)
    assert agent.news == [marked(ONE, 0.0, life_s=7.0)]


def test_a_document_that_repeats_marks_reports_only_new_ones(agent):
    agent.mark((ONE, NOW_S, 1), at_s=NOW_S)
    both = (ONE, NOW_S, 1), (TWO, NOW_S + 1, 1)
    agent.mark(*both, at_s=NOW_S + 1)
    assert agent.news == [marked(TWO, 4.0)]
    agent.mark(*both, at_s=NOW_S + 1)
    assert agent.news == []
    agent.mark((ONE, NOW_S, 2), (TWO, NOW_S, 2), at_s=NOW_S, seq=2)  # outdated
    assert agent.news == []


def test_a_second_mark_is_reported_and_lives_as_long_as_the_first(agent):
    assert TIMES.mark_life_s == 2 * 5.0 + 0.5
    agent.mark((ONE, NOW_S, 1), at_s=NOW_S)
    agent.mark((ONE, NOW_S + 14, 2), at_s=NOW_S + 14)
    assert agent.news == [marked(ONE, 4.0, count=2)]


def test_an_exit_counts_once_and_ends_the_marks_of_its_container(agent):
    agent.mark((ONE, NOW_S, 1), at_s=NOW_S)
    agent.end(ONE, -102, PREEMPTED)
    assert agent.news == [
        ContainerEnded(container=ONE, status=-102, reason="preempted", message=PREEMPTED)
    ]
    agent.mark((ONE, NOW_S + 5, 2), at_s=NOW_S + 5)
    assert agent.news == []
    agent.end(ONE, -106)
    assert agent.news == []
    agent.end(TWO, 3)
    assert agent.news == [ContainerEnded(container=TWO, status=3, reason="exit", message="")]


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (0, "", "success"),
        (3, "", "exit"),
        (137, "", "killed"),
        (143, "", "killed"),
        (-100, RELEASED, "released"),
        (-100, LOST, "node"),
        (-100, "Container expired since it was unused", "aborted"),
        (-101, "", "node"),
        (-102, PREEMPTED, "preempted"),
        (-103, "", "memory"),
        (-104, "", "memory"),
        (-105, "", "killed"),
        (-106, "", "killed"),
        (-108, "", "preempted"),
        (-1000, "", "aborted"),
    ],
)
def test_the_reason_of_a_containers_end(status, message, reason):
    assert exit_reason(status, message) == reason


def test_each_change_of_a_node_is_reported_once(agent):
    agent.change("b:1", "DECOMMISSIONING", 15)
    assert agent.news == [NodeChanged(node="b:1", state="decommissioning", grace_s=15.0)]
    agent.change("b:1", "RUNNING", 15)
    assert agent.news == [NodeChanged(node="b:1", state="running")]


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"[]",
        b'{"v": 2, "items": []}',
        b'{"v": 1, "items": [{"seq": 1, "id": "c"}]}',
        b'{"v": 1, "items": [{"seq": "one", "id": "c", "status": 0, "message": ""}]}',
    ],
)
def test_a_document_of_another_format_is_refused_and_changes_nothing(agent, value):
    with pytest.raises(RemoteProtocolError, match="make agent") as caught:
        agent.put(EXITS, value)
    assert "\n" not in str(caught.value)
    agent.end(ONE, 0)
    assert len(agent.news) == 1


def test_the_times_are_those_of_the_clusters_configuration():
    policy = "yarn.resourcemanager.monitor.capacity.preemption."
    conf = HadoopConf(
        values={
            policy + "max_wait_before_kill": "2000",
            policy + "monitoring_interval": "500",
            "yarn.nodemanager.sleep-delay-before-sigkill.ms": "5000",
        }
    )
    expected = PreemptionTimes(max_wait_s=2.0, interval_s=0.5, sigkill_delay_s=5.0)
    assert preemption_times(grace_settings(conf, conf)) == expected
    assert preemption_times(grace_settings(HadoopConf(), HadoopConf())) == PreemptionTimes()


class TestSpecifications:
    """The agent in a skein specification."""

    @pytest.fixture
    def spec(self, monkeypatch, tmp_path):
        skein = pytest.importorskip("skein", reason="elasticml[yarn] is not installed")
        monkeypatch.setattr(application_spec, "__file__", str(tmp_path / "notices.py"))
        return skein.ApplicationSpec(
            master=skein.Master(script="true", env={"JAVA_TOOL_OPTIONS": "-Xmx1g", "A": "1"})
        )

    def test_without_a_jar_nothing_is_added(self, spec):
        assert agent_jar() is None
        assert with_agent(spec).to_dict() == spec.to_dict()

    def test_the_master_gets_the_jar_and_keeps_its_options(self, spec, tmp_path):
        jar = tmp_path / "elasticml-agent.jar"
        jar.write_bytes(b"")
        before = spec.to_dict()
        once = with_agent(spec, heartbeat_ms=500)
        options = "-Xmx1g -javaagent:$PWD/elasticml-agent.jar="
        assert once.master.env == {"JAVA_TOOL_OPTIONS": options + "500", "A": "1"}
        assert once.master.files["elasticml-agent.jar"].source == jar.as_uri()
        assert spec.to_dict() == before
        assert with_agent(once).master.env["JAVA_TOOL_OPTIONS"] == options + "1000"
