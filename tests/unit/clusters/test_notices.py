"""Notices from the agent's documents; the documents have the form that a real agent wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticml.clusters.yarn import application_spec
from elasticml.clusters.yarn.application_spec import agent_jar, with_agent
from elasticml.clusters.yarn.hadoop_conf import grace_settings
from elasticml.clusters.yarn.notice_parser import (
    EXITS,
    HELLO,
    MARKS,
    NODES,
    AgentSeen,
    NoticeParser,
    PreemptionTimes,
    exit_reason,
    preemption_times,
)
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import RemoteProtocolError
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, NodeChanged

ONE, TWO = (f"container_1763734000000_0003_01_00000{i}" for i in (2, 3))
NOW_S = 1_763_734_500.0
TIMES = PreemptionTimes(max_wait_s=5.0, interval_s=0.5, sigkill_delay_s=0.25)
RELEASED = "Container released by application"
LOST = "Container released on a *lost* node"
PREEMPTED = "Container preempted by scheduler"


def hello(heartbeat_ms: int = 1000) -> bytes:
    return json.dumps(
        {"v": 1, "t": 1, "heartbeat_ms": heartbeat_ms, "hadoop": "3.4.2", "java": "17.0.15"}
    ).encode()


def marks(*containers: tuple[str, float, int], seq: int = 1, at_s: float = NOW_S) -> bytes:
    """A document of marks: containers, when they were last marked, and how often."""
    listed = [
        {"id": id, "first": 1, "last": round(last_s * 1000), "count": count, "strict": False}
        for id, last_s, count in containers
    ]
    requests = [{"n": 1, "mib": 128, "vcores": 1, "where": "*"}]
    document = {
        "v": 1,
        "seq": seq,
        "t": round(at_s * 1000),
        "marks": listed,
        "resources": requests,
    }
    return json.dumps(document).encode()


def items(*parts: dict[str, Any], first: int = 1) -> bytes:
    listed = [{"seq": first + i, "t": 1, **part} for i, part in enumerate(parts)]
    return json.dumps({"v": 1, "items": listed}).encode()


def ended(container: str, status: int, message: str = "") -> dict[str, Any]:
    return {"id": container, "status": status, "message": message}


def marked(container: str, grace_s: float, life_s: float = 10.5, count: int = 1) -> ContainerMarked:
    return ContainerMarked(
        container=container,
        grace_s=pytest.approx(grace_s),  # type: ignore[arg-type]
        life_s=pytest.approx(life_s),  # type: ignore[arg-type]
        negotiable=True,
        count=count,
    )


@pytest.fixture
def parser() -> NoticeParser:
    """A parser that has seen the agent, and reads documents as soon as they are written."""
    parser = NoticeParser(TIMES)
    parser.read(HELLO, hello(), NOW_S)
    parser.follow()
    return parser


def test_the_agent_is_seen_once():
    parser = NoticeParser(TIMES)
    seen = [parser.read(HELLO, hello(500), NOW_S + i) for i in range(2)]
    assert seen == [[AgentSeen(heartbeat_ms=500)], []]


def test_a_mark_is_up_to_a_heartbeat_old_when_it_is_reported(parser):
    assert parser.read(MARKS, marks((ONE, NOW_S, 1)), NOW_S) == [marked(ONE, 4.0)]


def test_clocks_that_disagree_do_not_change_the_deadline_of_a_fresh_mark(parser):
    assert parser.read(MARKS, marks((ONE, NOW_S, 1)), NOW_S + 100) == [marked(ONE, 4.0)]


def test_documents_from_before_the_stream_began_leave_less_time():
    parser = NoticeParser(TIMES)
    parser.read(HELLO, hello(), NOW_S)
    document = marks((ONE, NOW_S - 3, 1), (TWO, NOW_S - 20, 1), at_s=NOW_S - 1)
    assert parser.read(MARKS, document, NOW_S) == [marked(ONE, 1.0, life_s=7.5)]


def test_no_time_is_left_if_the_heartbeat_is_longer_than_the_wait():
    parser = NoticeParser(PreemptionTimes(max_wait_s=2.0))
    parser.read(HELLO, hello(5000), NOW_S)
    assert parser.read(MARKS, marks((ONE, NOW_S, 1)), NOW_S) == [marked(ONE, 0.0, life_s=7.0)]


def test_a_document_that_repeats_marks_reports_only_new_ones(parser):
    parser.read(MARKS, marks((ONE, NOW_S, 1)), NOW_S)
    both = marks((ONE, NOW_S, 1), (TWO, NOW_S + 1, 1), seq=2, at_s=NOW_S + 1)
    assert parser.read(MARKS, both, NOW_S + 1) == [marked(TWO, 4.0)]
    assert parser.read(MARKS, both, NOW_S + 2) == []


def test_an_outdated_document_is_ignored(parser):
    parser.read(MARKS, marks((ONE, NOW_S, 2), seq=2), NOW_S)
    assert parser.read(MARKS, marks((ONE, NOW_S, 1), (TWO, NOW_S, 1), seq=1), NOW_S) == []


def test_a_mark_lives_for_twice_the_wait_and_one_check():
    assert TIMES.mark_life_s == 2 * 5.0 + 0.5


def test_a_second_mark_is_reported_and_lives_as_long_as_the_first(parser):
    parser.read(MARKS, marks((ONE, NOW_S, 1)), NOW_S)
    again = marks((ONE, NOW_S + 14, 2), seq=2, at_s=NOW_S + 14)
    assert parser.read(MARKS, again, NOW_S + 14) == [marked(ONE, 4.0, count=2)]


def test_marks_of_a_container_that_has_ended_are_ignored(parser):
    parser.read(MARKS, marks((ONE, NOW_S, 1)), NOW_S)
    notices = parser.read(EXITS, items(ended(ONE, -102, PREEMPTED)), NOW_S + 5)
    assert notices == [
        ContainerEnded(container=ONE, status=-102, reason="preempted", message=PREEMPTED)
    ]
    late = marks((ONE, NOW_S + 5, 2), seq=2, at_s=NOW_S + 5)
    assert parser.read(MARKS, late, NOW_S + 5) == []


def test_a_repeated_exit_counts_once(parser):
    parser.read(EXITS, items(ended(ONE, 0)), NOW_S)
    notices = parser.read(EXITS, items(ended(ONE, 0), ended(ONE, -106), ended(TWO, 3)), NOW_S)
    assert notices == [ContainerEnded(container=TWO, status=3, reason="exit", message="")]


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


def test_each_change_of_a_node_is_reported_once(parser):
    leaving = {"node": "b:1", "state": "DECOMMISSIONING", "timeout_s": 15, "health": ""}
    stays = {"node": "b:1", "state": "RUNNING", "timeout_s": 15, "health": ""}
    first = parser.read(NODES, items(leaving), NOW_S)
    second = parser.read(NODES, items(leaving, stays), NOW_S)
    assert first == [NodeChanged(node="b:1", state="decommissioning", grace_s=15.0)]
    assert second == [NodeChanged(node="b:1", state="running")]


def test_other_keys_are_ignored(parser):
    assert parser.read("dask.scheduler", b"tcp://here:1", NOW_S) == []
    assert parser.read("elasticml.agent.later", b"no JSON", NOW_S) == []


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"v": 2, "items": []}',
        b'{"v": 1, "items": null}',
        b'{"v": 1, "items": [{"seq": 1, "id": "c"}]}',
        b'{"v": 1, "items": [{"seq": "one", "id": "c", "status": 0, "message": ""}]}',
    ],
)
def test_a_document_of_another_format_is_refused_and_changes_nothing(parser, value):
    with pytest.raises(RemoteProtocolError, match="make agent") as caught:
        parser.read(EXITS, value, NOW_S)
    assert "\n" not in str(caught.value)
    assert len(parser.read(EXITS, items(ended(ONE, 0)), NOW_S)) == 1


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
