"""Submitted jobs from the client's side: locate their runs, follow them, learn how they ended."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticml.clusters.yarn.hadoop_conf import require_conf
from elasticml.clusters.yarn.jobs.container_logs import why_no_driver
from elasticml.clusters.yarn.jobs.submission import Verdict, read_attempt, read_verdict
from elasticml.clusters.yarn.jobs.yarn_status import application_status, kill
from elasticml.data.storage import filesystem
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, JobFailedError, SubmissionError
from elasticml.jobs.run_directory import run_name
from elasticml.report.status import JobStatus
from elasticml.story.reader import parse_line
from elasticml.story.records import JobEnded, records_of

if TYPE_CHECKING:
    from elasticml.clusters.yarn.yarn_client import ApplicationStatus, YarnClient

#: Seconds between two polls of the run and of the application.
LOOK_S = 1.0
#: Seconds without a reply after which following gives up.
TROUBLE_S_MAX = 60.0
#: Polling takes at most this share of the time, so a long story is read less often.
SHARE_MAX = 0.2
#: Directory in the user's home that maps applications to their runs.
_INDEX = (".elasticml", "applications")
_RUNS = ("elasticml", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application that runs a job, as recorded by the client that submitted it."""

    id: str
    #: The job's name.
    name: str
    #: Path or URL of the run directory.
    place: str


def home_place(conf: HadoopConf) -> str:
    """Return the user's home directory on the cluster's file system."""
    system = conf.text("fs.defaultFS", "file:///")
    if system.startswith("file:"):
        return str(Path.home())
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return filesystem.join(system, "user", user)


def default_result(conf: HadoopConf, name: str, now: datetime) -> str:
    """Return an unused default path for a run, below the user's home directory."""
    stem = filesystem.join(home_place(conf), *_RUNS, run_name(name, now))
    place, count = stem, 2
    while filesystem.names(place):
        place, count = f"{stem}-{count}", count + 1
    return place


def check_vacant(place: str) -> None:
    """Check that the destination of a run is empty.

    Raises
    ------
    ConfigError
        When it is not.
    """
    if filesystem.names(place):
        raise ConfigError(f"cluster.result: {place} is not empty; name another directory")


def check_result(place: str) -> None:
    """Check that a run can be written to a destination, by writing a file there.

    Raises
    ------
    ConfigError
        When it cannot, or is not empty.
    """
    check_vacant(place)
    trial = filesystem.join(place, f".elasticml-trial-{secrets.token_hex(4)}")
    filesystem.write_whole(trial, b"written to check that writing works\n")
    filesystem.remove(trial)
    filesystem.remove_empty(place)  # another job may have claimed it meanwhile


def save_application(conf: HadoopConf, application: Application) -> None:
    """Record an application in the user's home, for ``elasticml status`` and other commands.

    Raises
    ------
    ConfigError
        When the user's home directory cannot be written.
    """
    content = json.dumps(asdict(application), indent=2).encode() + b"\n"
    filesystem.write_whole(_index(conf, application.id), content)


def load_application(application_id: str, conf: HadoopConf | None = None) -> Application:
    """Load the record of an application.

    Raises
    ------
    ConfigError
        When this user has submitted no job with that application id.
    """
    conf = conf or require_conf(os.environ)
    try:
        return Application(**json.loads(filesystem.read_bytes(_index(conf, application_id))))
    except FileNotFoundError:
        raise ConfigError(
            f"{application_id}: no job of yours runs as that application; elasticml submit prints "
            "the id, and yarn application -list -appStates ALL lists all applications"
        ) from None


def place_of(application_id: str) -> str | None:
    """Return the path or URL of an application's run; None if it is unknown."""
    with suppress(ConfigError):
        return load_application(application_id).place
    return None


def _index(conf: HadoopConf, application_id: str) -> str:
    return filesystem.join(home_place(conf), *_INDEX, f"{application_id}.json")


class StoryReader:
    """Reads a growing story; a new attempt may have rewritten its last records."""

    def __init__(self, place: str) -> None:
        self._place = filesystem.join(place, "story.jsonl")
        self._lines: list[bytes] = []

    def news(self) -> list[Mapping[str, Any]]:
        """Return the records that are new or changed since the last call."""
        try:
            lines = filesystem.read_bytes(self._place).splitlines()
        except FileNotFoundError:
            return []
        same = 0
        for before, now in zip(self._lines, lines, strict=False):
            if before != now:
                break
            same += 1
        self._lines = lines
        parsed = (parse_line(line.decode("utf-8", "replace")) for line in lines[same:])
        return [values for values in parsed if values is not None]


def status_at(place: str) -> JobStatus:
    """Return a job's status from the story that its driver has written so far."""
    status = JobStatus(job="")
    for record in StoryReader(place).news():
        status = status.after(record)
    return status


def follow_application(
    client: YarnClient,
    application: Application,
    show: Callable[[Sequence[Mapping[str, Any]]], None],
    say: Callable[[str], None],
) -> Verdict:
    """Follow a job to the end of its application.

    Parameters
    ----------
    show : callable
        Receives the story's new records.
    say : callable
        Receives a line for each new state of the application.

    Raises
    ------
    SubmissionError
        When YARN cannot be reached, or the driver does not start.
    """
    reader = StoryReader(application.place)
    last_state, story_ended, has_begun = "", False, False
    trouble_s: float | None = None
    while True:
        began_s = time.monotonic()
        try:
            now = application_status(client, application.id)
            news = reader.news()
            has_begun = has_begun or bool(news) or read_attempt(application.place).number > 0
            verdict = verdict_of(application, now) if now.is_over else None
            if verdict is None and has_begun:
                verdict = _failure_verdict(application)
        except (ConfigError, SubmissionError) as error:
            # The job continues; YARN or the file system may recover.
            trouble_s = began_s if trouble_s is None else trouble_s
            if began_s - trouble_s > TROUBLE_S_MAX:
                raise type(error)(
                    f"no reply about {application.id} for {TROUBLE_S_MAX:g} s, it may still be "
                    f"running: {error.message}; later, use elasticml status {application.id}",
                    **error.fields,
                ) from error
            time.sleep(LOOK_S)
            continue
        trouble_s = None
        if now.state != last_state:
            last_state = now.state
            say(f"{application.id} is {last_state} in queue {now.queue}")
        story_ended = story_ended or any(True for _ in records_of(JobEnded, news))
        # After the end of the story the models are evaluated, without further records.
        if news or not story_ended:
            show(news)
        if verdict is not None:
            return verdict
        why = None if has_begun else why_no_driver(client, application.id)
        if why is not None:
            kill(client, application.id)
            raise SubmissionError(
                f"{application.id}: its scheduler does not start: {why}; install the environment "
                "on every node, or submit with --pack",
                application=application.id,
            )
        took_s = time.monotonic() - began_s
        time.sleep(max(LOOK_S, took_s * (1 / SHARE_MAX - 1)))


def _failure_verdict(application: Application) -> Verdict | None:
    """Return the verdict of a job that did not succeed, although its application still exists.

    Without the agent, skein's application master unregisters only after a successful job; after
    every other end YARN starts it again.
    """
    verdict = read_verdict(application.place)
    return None if verdict is None or verdict.state == "done" else verdict


def verdict_of(application: Application, now: ApplicationStatus) -> Verdict:
    """Return how an ended application's job ended: the driver's verdict, else YARN's status."""
    verdict = read_verdict(application.place)
    if verdict is not None:
        return verdict
    how = "was killed" if now.final_status == "KILLED" else f"ended as {now.final_status}"
    why = now.diagnostics.rstrip(".") or "YARN does not say why"
    return Verdict.of_error(JobFailedError(f"{application.id} {how}: {why}"))
