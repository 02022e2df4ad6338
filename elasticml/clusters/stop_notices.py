"""Notices that a stock Dask worker will be stopped: signals, lifetimes, SLURM and cloud metadata.

A source knows one protocol and answers :meth:`NoticeSource.poll`. A :class:`NoticeWatch` in the
worker polls all sources in threads and posts the earliest end to the scheduler, where the jobs
decide when to drain the worker. ``dask worker --preload elasticml.preload`` starts one.

Clocks: a deadline is a wall-clock time, because that is what the resource managers state. What is
posted is the number of seconds until then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

import urllib3

from elasticml.errors import ConfigError, one_line
from elasticml.protocol.notices import Reason

logger = logging.getLogger(__name__)

#: Longest wait for an answer of a metadata server; they answer within milliseconds.
ANSWER_S_MAX: Final = 3.0
#: A new notice replaces the former one if its deadline differs by more than this.
SAME_DEADLINE_S: Final = 2.0
#: Pause before a notice that could not be posted is posted again.
REPOST_S: Final = 5.0
#: Longest pause after failed polls.
PAUSE_S_MAX: Final = 60.0
#: Address of the metadata server of AWS and Azure; link-local, reachable from the machine only.
METADATA_URL: Final = "http://169.254.169.254"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotice:
    """A worker's process or machine will be stopped."""

    #: When it is stopped at the earliest, in seconds of ``time.time``.
    deadline_s: float
    reason: Reason
    #: Name of the source that reports it.
    source: str


class NoticeSource(Protocol):
    """Something that knows when this worker will be stopped."""

    #: As in ``--notices``.
    name: str
    #: Seconds between polls.
    every_s: float
    #: What ends as a whole: its workers share one poll. Empty if the notice is this worker's own.
    allocation: str

    def poll(self, now_s: float) -> StopNotice | None:
        """Return the notice that holds now, or None; called in a thread.

        Raises
        ------
        OSError, ValueError
            When the source does not answer, or not as documented; it is polled again later.
        """
        ...


# Metadata servers of clouds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a metadata server."""

    status: int
    body: str


def request(url: str, headers: Mapping[str, str], method: str = "GET") -> Answer:
    """Ask a metadata server, without a proxy.

    Raises
    ------
    OSError
        When it does not answer in :data:`ANSWER_S_MAX`.
    """
    try:
        answer = _pool().request(
            method, url, headers=dict(headers), timeout=ANSWER_S_MAX, retries=False
        )
    except urllib3.exceptions.HTTPError as error:
        raise OSError(f"{url} did not answer: {one_line(error)}") from error
    return Answer(status=answer.status, body=answer.data.decode(errors="replace"))


@cache
def _pool() -> urllib3.PoolManager:
    return urllib3.PoolManager()


def _expect(answer: Answer, url: str, *statuses: int) -> Answer:
    if answer.status not in statuses:
        raise ValueError(f"{url} answered {answer.status}, wanted one of {statuses}")
    return answer


class AwsSpot:
    """Interruption notices of an EC2 Spot Instance: two minutes ahead, from IMDSv2.

    A session token is fetched with PUT and renewed when it has expired (401). The item
    ``spot/instance-action`` is absent (404) until the instance is to be interrupted. An instance
    that will hibernate is stopped at once.

    Source: Amazon EC2 User Guide, "Spot Instance interruption notices" and "Use the Instance
    Metadata Service".

    Parameters
    ----------
    base_url : str, optional
        By default ``$AWS_EC2_METADATA_SERVICE_ENDPOINT``, as in the AWS SDKs, else the link-local
        address.
    """

    name = "aws"
    allocation = ""
    #: Amazon recommends 5 seconds.
    every_s = 5.0
    #: Longest life that a token may have, seconds.
    TOKEN_TTL_S: Final = 21_600

    def __init__(self, base_url: str | None = None) -> None:
        url = base_url or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or METADATA_URL
        self._url = url.rstrip("/")
        self._token = ""

    def poll(self, now_s: float) -> StopNotice | None:
        """Return the interruption notice, or None."""
        answer = self._get("/latest/meta-data/spot/instance-action")
        if answer.status == 404:
            return None
        action = json.loads(answer.body)
        at_s = datetime.strptime(action["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        is_immediate = action["action"] == "hibernate"
        return StopNotice(
            deadline_s=now_s if is_immediate else at_s.timestamp(),
            reason="preempted",
            source=self.name,
        )

    def _get(self, path: str) -> Answer:
        if self._token:
            answer = self._ask(path)
            if answer.status != 401:
                return _expect(answer, path, 200, 404)
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.TOKEN_TTL_S)}
        token_url = f"{self._url}/latest/api/token"
        self._token = _expect(request(token_url, ttl, "PUT"), token_url, 200).body
        return _expect(self._ask(path), path, 200, 404)

    def _ask(self, path: str) -> Answer:
        return request(self._url + path, {"X-aws-ec2-metadata-token": self._token})


class GcePreemption:
    """Preemption of a Compute Engine Spot VM: 30 seconds ahead.

    Source: Compute Engine documentation, "Spot VMs" and "About VM metadata".

    Parameters
    ----------
    base_url : str, optional
        By default ``$GCE_METADATA_HOST``, as in Google's libraries, else the server's name.
    """

    name = "gce"
    allocation = ""
    every_s = 1.0
    #: Compute Engine forces the machine off this long after the preemption notice.
    GRACE_S: Final = 30.0

    def __init__(self, base_url: str | None = None) -> None:
        host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._url = (base_url or f"http://{host}").rstrip("/")
        self._deadline_s: float | None = None

    def poll(self, now_s: float) -> StopNotice | None:
        """Return a notice once the machine is being preempted; that is never withdrawn."""
        if self._deadline_s is None:
            url = f"{self._url}/computeMetadata/v1/instance/preempted"
            answer = _expect(request(url, {"Metadata-Flavor": "Google"}), url, 200)
            state = answer.body.strip()
            if state not in ("TRUE", "FALSE"):
                raise ValueError(f"{url} answered {state!r}, wanted TRUE or FALSE")
            if state == "FALSE":
                return None
            self._deadline_s = now_s + self.GRACE_S
        return StopNotice(deadline_s=self._deadline_s, reason="preempted", source=self.name)


class AzureScheduledEvents:
    """Scheduled Events of an Azure VM: Spot evictions at least 30 seconds ahead.

    Events that stop this machine or take its memory count: Preempt, Terminate, Redeploy, Reboot.
    The server lists events of other machines of the same set, too; a cancelled event disappears.
    Events are not acknowledged: Azure would start them at once.

    Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".

    Parameters
    ----------
    base_url : str, optional
    machine : str, optional
        Name of this machine in the events; by default it is asked for.
    """

    name = "azure"
    allocation = ""
    #: Azure recommends a poll a second.
    every_s = 1.0
    _VERSION: Final = "2020-07-01"
    _REASONS: Final[Mapping[str, Reason]] = {
        "Preempt": "preempted",
        "Terminate": "preempted",
        "Redeploy": "maintenance",
        "Reboot": "maintenance",
    }

    def __init__(self, base_url: str | None = None, machine: str | None = None) -> None:
        self._url = (base_url or METADATA_URL).rstrip("/")
        self._machine = machine
        #: When events without a time were first seen: they begin at once.
        self._seen_s: dict[str, float] = {}

    def poll(self, now_s: float) -> StopNotice | None:
        """Return the earliest event of this machine, or None."""
        if self._machine is None:
            query = "api-version=2021-02-01&format=text"
            self._machine = self._get(f"/metadata/instance/compute/name?{query}").strip()
        body = json.loads(self._get(f"/metadata/scheduledevents?api-version={self._VERSION}"))
        notices = [
            StopNotice(deadline_s=self._time_of(event, now_s), reason=reason, source=self.name)
            for event in body["Events"]
            if (reason := self._REASONS.get(event["EventType"])) is not None
            and self._machine in event["Resources"]
        ]
        return min(notices, key=lambda notice: notice.deadline_s, default=None)

    def _time_of(self, event: Mapping[str, Any], now_s: float) -> float:
        if event.get("NotBefore"):
            return parsedate_to_datetime(event["NotBefore"]).timestamp()
        return self._seen_s.setdefault(event["EventId"], now_s)

    def _get(self, path: str) -> str:
        url = self._url + path
        return _expect(request(url, {"Metadata": "true"}), url, 200).body


def _scontrol(job: str) -> str:
    """Return what ``scontrol`` says of a job, in one line."""
    # The user's format of times would not be parsed.
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    shown = subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job],
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * ANSWER_S_MAX,
        check=False,
    )
    if shown.returncode != 0:
        raise OSError(f"scontrol show job {job} failed: {shown.stderr.strip()}")
    return shown.stdout


class SlurmJob:
    """The end of this worker's SLURM job: its time limit, or the end of a preemption's grace.

    SLURM states the end of a running job from its start. When the job is preempted, EndTime becomes
    the end of the partition's GraceTime and PreemptTime is set, whatever signals the job asked for.
    Measured on SLURM 22.05: a batch script gets no signal at the beginning of that grace, unless
    the job has ``--signal=B:...`` and the cluster sets ``preempt_send_user_signal``. At the end of
    the grace come SIGCONT and SIGTERM, and SIGKILL after KillWait.

    Parameters
    ----------
    job : str
        ``$SLURM_JOB_ID``.
    show : callable, optional
        Returns the output of ``scontrol --oneliner show job``.
    """

    name = "slurm"
    #: Every poll is a message to the one slurmctld of the cluster.
    every_s = 10.0

    def __init__(self, job: str, show: Callable[[str], str] = _scontrol) -> None:
        self.allocation = f"slurm {job}"
        self._job = job
        self._show = show

    def poll(self, now_s: float) -> StopNotice | None:
        """Return when the job ends; None if it has no limit, or does not run."""
        # The job's name before UserId and the paths behind the times may hold anything.
        words = self._show(self._job).partition(" UserId=")[2].split()
        fields: dict[str, str] = {}
        for word in words:
            key, _, text = word.partition("=")
            fields.setdefault(key, text)
        if fields.get("JobState") != "RUNNING":
            return None
        end_s = _slurm_time(fields.get("EndTime", ""))
        if end_s is None:
            return None
        is_preempted = _slurm_time(fields.get("PreemptTime", "")) is not None
        reason: Reason = "preempted" if is_preempted else "walltime"
        return StopNotice(deadline_s=end_s, reason=reason, source=self.name)


def _slurm_time(text: str) -> float | None:
    """Return a local time of SLURM in seconds of ``time.time``; None for "None" or "Unknown"."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


class Lifetime:
    """The end of a worker that was started with ``--lifetime``.

    Dask retires the worker then. With the notice its chunks have moved by that time.

    Parameters
    ----------
    deadline_s : float
        Seconds of ``time.time``.
    """

    name = "lifetime"
    allocation = ""
    every_s = 3600.0

    def __init__(self, deadline_s: float) -> None:
        self._notice = StopNotice(deadline_s=deadline_s, reason="lifetime", source=self.name)

    def poll(self, now_s: float) -> StopNotice | None:
        """Return the notice."""
        return self._notice


# Which sources a worker has.

#: Where Linux shows the maker of the machine; also in containers.
DMI: Final = Path("/sys/class/dmi/id")
#: A maker, as in ``sys_vendor``, and the source for its machines.
CLOUDS: Final = {
    "Amazon EC2": "aws",
    "Google": "gce",
    "Microsoft Corporation": "azure",
}
#: Tag of a machine of Azure, other than Hyper-V elsewhere.
AZURE_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
NAMES: Final = ("slurm", "aws", "gce", "azure")


def detected(environment: Mapping[str, str], dmi: Path = DMI) -> list[str]:
    """Return the names of the sources of the place where this process runs; nothing is asked."""
    names = ["slurm"] if environment.get("SLURM_JOB_ID") else []
    cloud = CLOUDS.get(_line(dmi / "sys_vendor"))
    if cloud == "azure" and _line(dmi / "chassis_asset_tag") != AZURE_TAG:
        cloud = None
    return names if cloud is None else [*names, cloud]


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def source_of_name(
    name: str, environment: Mapping[str, str], url: str | None = None
) -> NoticeSource:
    """Return the source of a name.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    environment : mapping
        Environment variables of this process.
    url : str, optional
        Metadata server; by default the cloud's.

    Raises
    ------
    ConfigError
        When there is none of this name, or it cannot be used here.
    """
    match name:
        case "aws":
            return AwsSpot(url)
        case "gce":
            return GcePreemption(url)
        case "azure":
            return AzureScheduledEvents(url)
        case "slurm":
            job = environment.get("SLURM_JOB_ID")
            if not job:
                raise ConfigError(
                    "--notices slurm: this process is in no SLURM job, $SLURM_JOB_ID is not set; "
                    "leave slurm out, or start the worker in a job"
                )
            return SlurmJob(job)
    raise ConfigError(f"--notices: {name!r} is unknown, wanted some of {', '.join(NAMES)}")


# Watching them.


class NoticeHost(Protocol):
    """What a watch needs of its worker."""

    async def ask(self, source: NoticeSource) -> StopNotice | None:
        """Return the notice of a source that holds now."""
        ...

    async def pause(self, source: NoticeSource, seconds: float) -> None:
        """Wait until a source is to be asked again."""
        ...

    async def post(self, notice: StopNotice) -> bool:
        """Post a notice in place of the last one; return whether it has been taken."""
        ...

    async def withdraw(self, notice: StopNotice) -> bool:
        """Withdraw the last notice; return whether that has been taken."""
        ...


class NoticeWatch:
    """Polls sources and posts the earliest deadline of all, whenever it changes.

    A notice that is not taken is posted again at the next poll: the scheduler may not have
    elasticml's plugin yet.

    Parameters
    ----------
    sources : sequence of NoticeSource
    host : NoticeHost
    clock : callable
        Wall clock.
    """

    def __init__(
        self,
        sources: Sequence[NoticeSource],
        host: NoticeHost,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sources = list(sources)
        self._host = host
        self._clock = clock
        #: What each source says, by its name.
        self._current: dict[str, StopNotice] = {}
        self._posted: StopNotice | None = None
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to poll, on the running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(source)) for source in self._sources]

    async def close(self) -> None:
        """Stop polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, source: NoticeSource) -> None:
        failures = 0
        while True:
            try:
                await self.take(source.name, await self._host.ask(source))
            except Exception as error:
                # A server may be slow to start, or answer what its documentation does not say.
                failures += 1
                level = logging.WARNING if failures == 3 else logging.DEBUG
                logger.log(level, "notices of %s: %s", source.name, error)
            else:
                failures = 0
            pause_s = min(source.every_s * 2 ** min(failures, 6), max(PAUSE_S_MAX, source.every_s))
            if not self._is_settled():
                pause_s = min(pause_s, REPOST_S)
            await self._host.pause(source, pause_s)

    async def take(self, name: str, notice: StopNotice | None) -> None:
        """Record what a source says, and post what has changed."""
        async with self._turn:
            if notice is None:
                self._current.pop(name, None)
            else:
                self._current[name] = notice
            if self._is_settled():
                return
            earliest, posted = self._earliest(), self._posted
            if earliest is not None and await self._host.post(earliest):
                grace_s = earliest.deadline_s - self._clock()
                logger.info("%s: %s in %.0f s", earliest.source, earliest.reason, grace_s)
                self._posted = earliest
            elif earliest is None and posted is not None and await self._host.withdraw(posted):
                logger.info("the notice of %s no longer holds", posted.source)
                self._posted = None

    def _earliest(self) -> StopNotice | None:
        return min(self._current.values(), key=lambda notice: notice.deadline_s, default=None)

    def _is_settled(self) -> bool:
        """Whether what was posted last is what holds now."""
        earliest, posted = self._earliest(), self._posted
        if earliest is None or posted is None:
            return earliest is posted
        is_same_time = abs(posted.deadline_s - earliest.deadline_s) <= SAME_DEADLINE_S
        return is_same_time and posted.reason == earliest.reason
