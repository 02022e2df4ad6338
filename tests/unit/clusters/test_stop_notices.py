"""Notices of the end of a stock worker, against servers that speak the documented protocols."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from elasticml.clusters.stop_notices import (
    AZURE_TAG,
    AwsSpot,
    AzureScheduledEvents,
    GcePreemption,
    Lifetime,
    NoticeWatch,
    SlurmJob,
    StopNotice,
    detected,
    source_of_name,
)
from elasticml.errors import ConfigError
from tests.http_server import closed_url, serving

NOW_S = datetime(2026, 11, 23, 3, 0, tzinfo=UTC).timestamp()


def notice(after_s, source, reason="preempted"):
    return StopNotice(deadline_s=NOW_S + after_s, reason=reason, source=source)


class Ec2:
    """An instance metadata service that insists on tokens (``HttpTokens: required``)."""

    def __init__(self):
        self.action = None
        self.tokens = []
        self.valid = set()
        self.asked = []

    def __call__(self, method, path, headers, body):
        self.asked.append((method, path))
        if (method, path) == ("PUT", "/latest/api/token"):
            ttl = headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            if ttl is None or not 1 <= int(ttl) <= 21600:
                return 400, {}, b""
            self.tokens.append(f"token-{len(self.tokens)}")
            self.valid = {self.tokens[-1]}
            return 200, {}, self.tokens[-1].encode()
        if headers.get("X-aws-ec2-metadata-token") not in self.valid:
            return 401, {}, b""
        if path == "/latest/meta-data/spot/instance-action" and self.action is not None:
            return 200, {"Content-Type": "application/json"}, json.dumps(self.action).encode()
        return 404, {}, b"<html>Not Found</html>"


def test_an_instance_that_is_not_interrupted_has_no_notice_of_aws():
    ec2 = Ec2()
    with serving(ec2) as url:
        source = AwsSpot(url)
        assert [source.poll(NOW_S), source.poll(NOW_S)] == [None, None]
    item = ("GET", "/latest/meta-data/spot/instance-action")
    assert ec2.asked == [("PUT", "/latest/api/token"), item, item]


def test_a_spot_instance_is_interrupted_at_the_time_that_aws_states():
    ec2 = Ec2()
    with serving(ec2) as url:
        source = AwsSpot(url)
        ec2.action = {"action": "terminate", "time": "2026-11-23T03:02:00Z"}
        assert source.poll(NOW_S) == notice(120.0, "aws")


def test_an_instance_that_hibernates_does_so_at_once():
    ec2 = Ec2()
    with serving(ec2) as url:
        ec2.action = {"action": "hibernate", "time": "2026-11-23T03:02:00Z"}
        assert AwsSpot(url).poll(NOW_S) == notice(0.0, "aws")


def test_an_expired_token_of_aws_is_renewed():
    ec2 = Ec2()
    with serving(ec2) as url:
        source = AwsSpot(url)
        source.poll(NOW_S)
        ec2.valid.clear()
        ec2.action = {"action": "stop", "time": "2026-11-23T03:02:00Z"}
        assert source.poll(NOW_S) == notice(120.0, "aws")
    assert ec2.tokens == ["token-0", "token-1"]


def test_the_endpoint_of_aws_comes_from_the_variable_of_its_sdks(monkeypatch):
    ec2 = Ec2()
    with serving(ec2) as url:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url + "/")
        assert AwsSpot().poll(NOW_S) is None


def test_a_metadata_server_is_not_asked_through_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", closed_url())
    monkeypatch.setenv("no_proxy", "")
    with serving(Ec2()) as url:
        assert AwsSpot(url).poll(NOW_S) is None


def gce(states):
    remaining = list(states)

    def answer(method, path, headers, body):
        if headers.get("Metadata-Flavor") != "Google":
            return 403, {}, b"Missing Metadata-Flavor:Google header."
        assert (method, path) == ("GET", "/computeMetadata/v1/instance/preempted")
        state = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return 200, {"Metadata-Flavor": "Google", "ETag": "41ac5b86cbf9fe3c"}, state.encode()

    return answer


def test_a_preempted_machine_of_gce_has_thirty_seconds_from_the_first_poll_that_says_so():
    with serving(gce(["FALSE", "TRUE"])) as url:
        source = GcePreemption(url)
        polls = [source.poll(NOW_S), source.poll(NOW_S + 1), source.poll(NOW_S + 9)]
    assert polls == [None, notice(31.0, "gce"), notice(31.0, "gce")]


def test_the_host_of_gce_comes_from_the_variable_of_its_libraries(monkeypatch):
    with serving(gce(["FALSE"])) as url:
        monkeypatch.setenv("GCE_METADATA_HOST", url.removeprefix("http://"))
        assert GcePreemption().poll(NOW_S) is None


def test_an_answer_that_gce_does_not_document_is_an_error():
    with serving(gce(["MAYBE"])) as url, pytest.raises(ValueError, match="'MAYBE', wanted TRUE"):
        GcePreemption(url).poll(NOW_S)


def azure(events, machine="worker_3"):
    def answer(method, path, headers, body):
        if headers.get("Metadata") != "true":
            return 400, {}, b'{"error": "Bad request. Required metadata header not specified"}'
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, {}, machine.encode()
        assert (method, path) == ("GET", "/metadata/scheduledevents?api-version=2020-07-01")
        return 200, {}, json.dumps({"DocumentIncarnation": 2, "Events": events()}).encode()

    return answer


def azure_event(kind, resources, not_before, status="Scheduled"):
    return {
        "EventId": "A1",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": resources,
        "EventStatus": status,
        "NotBefore": not_before,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def http_date(after_s):
    return format_datetime(datetime.fromtimestamp(NOW_S + after_s, UTC), usegmt=True)


def test_an_eviction_of_this_machine_of_azure_is_a_notice_and_others_are_not():
    events = [
        azure_event("Preempt", ["worker_1", "worker_2"], http_date(30)),
        azure_event("Freeze", ["worker_3"], http_date(10)),
        azure_event("Redeploy", ["worker_3"], http_date(600)),
        azure_event("Preempt", ["worker_2", "worker_3"], http_date(45)),
    ]
    with serving(azure(lambda: events)) as url:
        assert AzureScheduledEvents(url).poll(NOW_S) == notice(45.0, "azure")


def test_an_event_of_azure_without_a_time_has_begun():
    started = azure_event("Terminate", ["worker_3"], "", status="Started")
    with serving(azure(lambda: [started])) as url:
        source = AzureScheduledEvents(url)
        polls = [source.poll(NOW_S + 5), source.poll(NOW_S + 6)]
    assert polls == [notice(5.0, "azure")] * 2


def test_an_event_of_azure_that_is_cancelled_is_no_notice_any_more():
    answers = [[azure_event("Redeploy", ["worker_3"], http_date(600))], []]
    with serving(azure(lambda: answers.pop(0))) as url:
        source = AzureScheduledEvents(url)
        assert source.poll(NOW_S) == notice(600.0, "azure", "maintenance")
        assert source.poll(NOW_S) is None


def slurm(**fields):
    shown = {
        "JobId": "7",
        "JobName": "a job EndTime=2001-01-01T00:00:00 of mine",
        "UserId": "ada(1000)",
        "JobState": "RUNNING",
        "StartTime": "2026-11-23T02:55:00",
        "EndTime": "2026-11-23T04:00:00",
        "PreemptTime": "None",
        "Command": "/home/ada/my EndTime=Unknown job.sh",
        **fields,
    }
    return " ".join(f"{key}={text}" for key, text in shown.items()) + "\n"


def local(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


@pytest.mark.parametrize(
    ("fields", "end", "reason"),
    [
        ({}, "2026-11-23T04:00:00", "walltime"),
        (
            {"EndTime": "2026-11-23T03:10:20", "PreemptTime": "2026-11-23T03:10:00"},
            "2026-11-23T03:10:20",
            "preempted",
        ),
    ],
)
def test_a_job_of_slurm_ends_at_its_limit_or_after_the_grace_of_its_preemption(fields, end, reason):
    asked = []

    def show(job):
        asked.append(job)
        return slurm(**fields)

    told = SlurmJob("7", show).poll(NOW_S)
    assert told == StopNotice(deadline_s=local(end), reason=reason, source="slurm")
    assert asked == ["7"]


@pytest.mark.parametrize("fields", [{"EndTime": "Unknown"}, {"JobState": "COMPLETING"}])
def test_a_job_of_slurm_without_a_limit_or_that_ends_already_has_no_notice(fields):
    assert SlurmJob("7", lambda job: slurm(**fields)).poll(NOW_S) is None


@pytest.mark.parametrize(
    ("vendor", "tag", "job", "names"),
    [
        ("Amazon EC2", "", "", ["aws"]),
        ("Google", "", "12", ["slurm", "gce"]),
        ("Microsoft Corporation", AZURE_TAG, "", ["azure"]),
        ("Microsoft Corporation", "Hyper-V at home", "", []),
        ("QEMU", "", "12", ["slurm"]),
    ],
)
def test_sources_follow_from_the_maker_of_the_machine_and_the_job(
    tmp_path, vendor, tag, job, names
):
    (tmp_path / "sys_vendor").write_text(vendor + "\n")
    (tmp_path / "chassis_asset_tag").write_text(tag + "\n")
    assert detected({"SLURM_JOB_ID": job}, tmp_path) == names


def test_a_machine_that_does_not_show_its_maker_has_no_cloud(tmp_path):
    assert detected({}, tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("asw", "'asw' is unknown, wanted some of slurm, aws"), ("slurm", "in no SLURM job")],
)
def test_a_source_that_cannot_be_used_is_refused_with_the_reason(name, message):
    with pytest.raises(ConfigError, match=message):
        source_of_name(name, {})


class Scripted:
    """A source that says one thing after the other, and repeats the last."""

    every_s = 0.0
    allocation = ""

    def __init__(self, *answers, name="scripted"):
        self.name = name
        self._answers = list(answers)
        self.is_read = asyncio.Event()

    def poll(self, now_s):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Board:
    """Takes notices, after having refused some."""

    def __init__(self, refusals=0):
        self.refusals = refusals
        self.told = []
        self.has = asyncio.Event()

    async def ask(self, source):
        return source.poll(NOW_S)

    async def pause(self, source, seconds):
        await asyncio.sleep(0)

    async def post(self, notice):
        self.refusals -= 1
        if self.refusals >= 0:
            return False
        self.told.append(notice)
        self.has.set()
        return True

    async def withdraw(self, notice):
        self.told.append(("withdrawn", notice.source))
        self.has.set()
        return True


def watch_of(board, *sources):
    return NoticeWatch(sources, board, clock=lambda: NOW_S)


@pytest.mark.asyncio
async def test_the_earliest_end_of_all_sources_is_posted_once():
    board = Board()
    watch = watch_of(board)
    await watch.take("slurm", notice(3600, "slurm", "walltime"))
    await watch.take("slurm", notice(3601, "slurm", "walltime"))
    await watch.take("aws", notice(120, "aws"))
    await watch.take("slurm", notice(3600, "slurm", "walltime"))
    assert board.told == [notice(3600, "slurm", "walltime"), notice(120, "aws")]


@pytest.mark.asyncio
async def test_a_withdrawn_notice_leaves_the_next_one():
    board = Board()
    watch = watch_of(board)
    await watch.take("azure", notice(60, "azure"))
    await watch.take("slurm", notice(90, "slurm", "walltime"))
    await watch.take("azure", None)
    await watch.take("slurm", None)
    assert board.told[1:] == [notice(90, "slurm", "walltime"), ("withdrawn", "slurm")]


@pytest.mark.asyncio
async def test_a_notice_that_nobody_takes_is_posted_again():
    board = Board(refusals=2)
    watch = watch_of(board)
    for _ in range(4):
        await watch.take("gce", notice(30, "gce"))
    assert board.told == [notice(30, "gce")]


@pytest.mark.asyncio
async def test_a_source_is_polled_again_after_it_failed():
    board = Board()
    watch = watch_of(board, Scripted(OSError("down"), ValueError("odd"), notice(30, "scripted")))
    watch.start()
    async with asyncio.timeout(10):
        await board.has.wait()
    await watch.close()
    assert board.told == [notice(30, "scripted")]


@pytest.mark.asyncio
async def test_the_end_of_a_lifetime_is_known_from_the_start():
    board = Board()
    watch = watch_of(board, Lifetime(NOW_S + 600))
    watch.start()
    async with asyncio.timeout(10):
        await board.has.wait()
    await watch.close()
    assert board.told == [notice(600, "lifetime", "lifetime")]
