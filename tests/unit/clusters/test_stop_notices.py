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
    """An instance metadata service that insists on tokens (``HttpTokens: required``).

    Parameters
    ----------
    action : mapping, optional
        What is to happen to the instance.
    polls_max : int
        How often a token is valid.
    """

    def __init__(self, action=None, polls_max=100):
        self.action, self.polls_max = action, polls_max
        self.n_tokens = self.n_polls = 0

    def __call__(self, method, path, headers, body):
        if (method, path) == ("PUT", "/latest/api/token"):
            ttl = headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            if ttl is None or not 1 <= int(ttl) <= 21600:
                return 400, {}, b""
            self.n_tokens, self.n_polls = self.n_tokens + 1, 0
            return 200, {}, f"token-{self.n_tokens}".encode()
        self.n_polls += 1
        is_valid = self.n_polls <= self.polls_max
        if headers.get("X-aws-ec2-metadata-token") != f"token-{self.n_tokens}" or not is_valid:
            return 401, {}, b""
        if path == "/latest/meta-data/spot/instance-action" and self.action is not None:
            return 200, {"Content-Type": "application/json"}, json.dumps(self.action).encode()
        return 404, {}, b"<html>Not Found</html>"


def gce(*states):
    remaining = list(states)

    def answer(method, path, headers, body):
        if headers.get("Metadata-Flavor") != "Google":
            return 403, {}, b"Missing Metadata-Flavor:Google header."
        assert (method, path) == ("GET", "/computeMetadata/v1/instance/preempted")
        state = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return 200, {"Metadata-Flavor": "Google", "ETag": "41ac5b86cbf9fe3c"}, state.encode()

    return answer


def azure(*answers, machine="worker_3"):
    """A service that lists events, one answer after the other."""
    remaining = list(answers)

    def answer(method, path, headers, body):
        if headers.get("Metadata") != "true":
            return 400, {}, b'{"error": "Bad request. Required metadata header not specified"}'
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, {}, machine.encode()
        assert (method, path) == ("GET", "/metadata/scheduledevents?api-version=2020-07-01")
        events = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return 200, {}, json.dumps({"DocumentIncarnation": 2, "Events": events}).encode()

    return answer


def azure_event(kind, resources, after_s, status="Scheduled", now_s=NOW_S):
    """An event; one that has started has no time."""
    begins = datetime.fromtimestamp(now_s + (after_s or 0), UTC)
    return {
        "EventId": "A1",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": resources,
        "EventStatus": status,
        "NotBefore": "" if after_s is None else format_datetime(begins, usegmt=True),
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


STATED = "2026-11-23T03:02:00Z"
REDEPLOYED = azure_event("Redeploy", ["worker_3"], 600)


@pytest.mark.parametrize(
    ("source", "server", "polls"),
    [
        (AwsSpot, Ec2(), [None, None]),
        (AwsSpot, Ec2({"action": "terminate", "time": STATED}), [notice(120, "aws")]),
        # A token that has expired is renewed.
        (AwsSpot, Ec2({"action": "stop", "time": STATED}, polls_max=1), [notice(120, "aws")] * 2),
        # An instance that hibernates does so at once.
        (AwsSpot, Ec2({"action": "hibernate", "time": STATED}), [notice(0, "aws")]),
        # Thirty seconds from the first poll that says so.
        (GcePreemption, gce("FALSE", "TRUE"), [None, notice(31, "gce"), notice(31, "gce")]),
        (
            AzureScheduledEvents,
            azure(
                [
                    azure_event("Preempt", ["worker_1", "worker_2"], 30),
                    azure_event("Freeze", ["worker_3"], 10),
                    REDEPLOYED,
                    azure_event("Preempt", ["worker_2", "worker_3"], 45),
                ]
            ),
            [notice(45, "azure")],
        ),
        (
            AzureScheduledEvents,
            azure([azure_event("Terminate", ["worker_3"], None, status="Started")]),
            [notice(0, "azure")] * 2,
        ),
        # One that is cancelled is no notice any more.
        (
            AzureScheduledEvents,
            azure([REDEPLOYED], []),
            [notice(600, "azure", "maintenance"), None],
        ),
    ],
)
def test_a_cloud_says_when_a_machine_ends(source, server, polls):
    with serving(server) as url:
        asked = source(url)
        times = (NOW_S, NOW_S + 1, NOW_S + 9)
        assert [asked.poll(now_s) for now_s, _ in zip(times, polls, strict=False)] == polls


@pytest.mark.parametrize(
    ("source", "server", "variable", "prefix"),
    [
        (AwsSpot, Ec2(), "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://"),
        (GcePreemption, gce("FALSE"), "GCE_METADATA_HOST", ""),
    ],
)
def test_the_endpoint_comes_from_the_variable_of_the_clouds_libraries_and_uses_no_proxy(
    monkeypatch, source, server, variable, prefix
):
    monkeypatch.setenv("http_proxy", closed_url())
    monkeypatch.setenv("no_proxy", "")
    with serving(server) as url:
        monkeypatch.setenv(variable, prefix + url.removeprefix("http://"))
        assert source().poll(NOW_S) is None


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
        (None, "", "", []),
    ],
)
def test_sources_follow_from_the_maker_of_the_machine_and_the_job(
    tmp_path, vendor, tag, job, names
):
    if vendor is not None:  # the machine shows its maker
        (tmp_path / "sys_vendor").write_text(vendor + "\n")
        (tmp_path / "chassis_asset_tag").write_text(tag + "\n")
    assert detected({"SLURM_JOB_ID": job}, tmp_path) == names


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


@pytest.mark.asyncio
async def test_the_earliest_end_of_all_sources_is_posted_once():
    board = Board()
    watch = NoticeWatch([], board, clock=lambda: NOW_S)
    await watch.take("slurm", notice(3600, "slurm", "walltime"))
    await watch.take("slurm", notice(3601, "slurm", "walltime"))
    await watch.take("aws", notice(120, "aws"))
    await watch.take("slurm", notice(3600, "slurm", "walltime"))
    assert board.told == [notice(3600, "slurm", "walltime"), notice(120, "aws")]


@pytest.mark.asyncio
async def test_a_withdrawn_notice_leaves_the_next_one():
    board = Board()
    watch = NoticeWatch([], board, clock=lambda: NOW_S)
    await watch.take("azure", notice(60, "azure"))
    await watch.take("slurm", notice(90, "slurm", "walltime"))
    await watch.take("azure", None)
    await watch.take("slurm", None)
    assert board.told[1:] == [notice(90, "slurm", "walltime"), ("withdrawn", "slurm")]


@pytest.mark.asyncio
async def test_a_notice_that_nobody_takes_is_posted_again():
    board = Board(refusals=2)
    watch = NoticeWatch([], board, clock=lambda: NOW_S)
    for _ in range(4):
        await watch.take("gce", notice(30, "gce"))
    assert board.told == [notice(30, "gce")]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("source", "told"),
    [
        # It is polled again after it failed.
        (Scripted(OSError("down"), ValueError("odd"), notice(30, "gce")), notice(30, "gce")),
        (Lifetime(NOW_S + 600), notice(600, "lifetime", "lifetime")),
    ],
)
async def test_what_a_source_says_is_posted(source, told):
    board = Board()
    watch = NoticeWatch([source], board, clock=lambda: NOW_S)
    watch.start()
    async with asyncio.timeout(10):
        await board.has.wait()
    await watch.close()
    assert board.told == [told]


def test_an_answer_that_gce_does_not_document_is_an_error():
    with serving(gce("MAYBE")) as url, pytest.raises(ValueError, match="'MAYBE', wanted TRUE"):
        GcePreemption(url).poll(NOW_S)
