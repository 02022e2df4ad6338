"""Submitted jobs from the client's side: where their runs are, how they stand, how they end."""

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

from elasticml.clusters.on_yarn.hadoop_conf import require_conf
from elasticml.data import places
from elasticml.data.hadoop_sites import HadoopConf
from elasticml.errors import ConfigError, JobFailedError, SubmissionError
from elasticml.jobs.container_logs import why_no_driver
from elasticml.jobs.follow import Watcher
from elasticml.jobs.run_directory import run_name
from elasticml.jobs.standing import Standing, kill, standing
from elasticml.jobs.status import JobStatus
from elasticml.jobs.submission import Verdict, read_attempt, read_verdict

if TYPE_CHECKING:
    import skein

#: Seconds between two looks at the run, and between two at the application.
LOOK_S = 1.0
#: Seconds without an answer after which nobody is asked any more.
TROUBLE_S_MAX = 60.0
#: Looking takes at most this share of the time: a long story is read less often.
SHARE_MAX = 0.2
#: Where in a user's home directory it is written which application runs what.
_INDEX = (".elasticml", "applications")
_RUNS = ("elasticml", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application that runs a job, as the client that submitted it wrote it down."""

    id: str
    #: The job's name.
    name: str
    #: Where the run directory is.
    place: str


def home_place(conf: HadoopConf) -> str:
    """Name the user's home directory on the file system of a cluster."""
    system = conf.text("fs.defaultFS", "file:///")
    if system.startswith("file:"):
        return str(Path.home())
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return places.join(system, "user", user)


def default_result(conf: HadoopConf, name: str, now: datetime) -> str:
    """Name the place of a run where none is given: below the user's home directory, and free."""
    stem = places.join(home_place(conf), *_RUNS, run_name(name, now))
    place, count = stem, 2
    while places.names(place):
        place, count = f"{stem}-{count}", count + 1
    return place


def check_vacant(place: str) -> None:
    """Prove that there is nothing yet where a run is to be.

    Raises
    ------
    ConfigError
        When there is.
    """
    if places.names(place):
        raise ConfigError(
            f"cluster.result: {place} holds something already; name another place", path=place
        )


def check_result(place: str) -> None:
    """Prove that a run can be written to a place, by writing to it.

    Raises
    ------
    ConfigError
        When it cannot, or holds a run already.
    """
    check_vacant(place)
    trial = places.join(place, f".elasticml-trial-{secrets.token_hex(4)}")
    places.write_whole(trial, b"written to see whether that works\n")
    places.remove(trial)
    places.remove_empty(place)  # another job may have claimed it meanwhile


def remember(conf: HadoopConf, application: Application) -> None:
    """Write down which application runs what, for ``elasticml status`` and the like.

    Raises
    ------
    ConfigError
        When the user's home directory cannot be written.
    """
    content = json.dumps(asdict(application), indent=2).encode() + b"\n"
    places.write_whole(_index(conf, application.id), content)


def recall(application_id: str, conf: HadoopConf | None = None) -> Application:
    """Find what an application runs.

    Raises
    ------
    ConfigError
        When this user has submitted no job as that application.
    """
    conf = conf or require_conf(os.environ)
    try:
        return Application(**json.loads(places.read_bytes(_index(conf, application_id))))
    except FileNotFoundError:
        raise ConfigError(
            f"{application_id}: no job of yours runs as that application; elasticml submit prints "
            "the id, and yarn application -list -appStates ALL lists all applications"
        ) from None


def place_of(application_id: str) -> str | None:
    """Name the place of an application's run; None where that cannot be told."""
    with suppress(ConfigError):
        return recall(application_id).place
    return None


def _index(conf: HadoopConf, application_id: str) -> str:
    return places.join(home_place(conf), *_INDEX, f"{application_id}.json")


class StoryReader:
    """Reads a story that grows at a place, and that an attempt may have begun anew from a point."""

    def __init__(self, place: str) -> None:
        self._place = places.join(place, "story.jsonl")
        self._lines: list[bytes] = []

    def news(self) -> list[Mapping[str, Any]]:
        """Return the records that were not there before, or are others than before."""
        try:
            lines = places.read_bytes(self._place).splitlines()
        except FileNotFoundError:
            return []
        same = 0
        for before, now in zip(self._lines, lines, strict=False):
            if before != now:
                break
            same += 1
        self._lines = lines
        return [json.loads(line) for line in lines[same:]]


def status_at(place: str) -> JobStatus:
    """Return how a job stands, by what its driver has written so far."""
    status = JobStatus(job="")
    for record in StoryReader(place).news():
        status = status.after(record)
    return status


def follow_application(
    client: skein.Client,
    application: Application,
    watchers: Sequence[Watcher],
    say: Callable[[str], None],
) -> Verdict:
    """Follow a job to the end of its application.

    Parameters
    ----------
    watchers : sequence of Watcher
        Told the story as it grows.
    say : callable
        Is told the states of the application.

    Raises
    ------
    SubmissionError
        When YARN cannot be reached, or the driver does not start.
    """
    reader = StoryReader(application.place)
    told, is_told, has_begun = "", False, False
    trouble_s: float | None = None
    while True:
        began_s = time.monotonic()
        try:
            now = standing(client, application.id)
            news = reader.news()
            has_begun = has_begun or bool(news) or read_attempt(application.place).number > 0
            verdict = verdict_of(application, now) if now.is_over else None
            if verdict is None and has_begun:
                verdict = _last_word(application)
        except (ConfigError, SubmissionError) as error:
            # The job goes on; what tells of it may be back in a while.
            trouble_s = began_s if trouble_s is None else trouble_s
            if began_s - trouble_s > TROUBLE_S_MAX:
                raise type(error)(
                    f"nothing is heard of {application.id} since {TROUBLE_S_MAX:g} s, it may well "
                    f"go on: {error.message}; then elasticml status {application.id}",
                    **error.fields,
                ) from error
            time.sleep(LOOK_S)
            continue
        trouble_s = None
        if now.state != told:
            told = now.state
            say(f"{application.id} is {told} in queue {now.queue}")
        is_told = is_told or any(record["event"] == "JobEnded" for record in news)
        # What follows the story's end is its evaluation, of which there is nothing to tell.
        for watcher in watchers if news or not is_told else ():
            watcher.record(news)
        if verdict is not None:
            return verdict
        why = None if has_begun else why_no_driver(client, application.id)
        if why is not None:
            kill(client, application.id)
            raise SubmissionError(
                f"{application.id}: its scheduler does not start: {why}; have the environment on "
                "every node, or submit with --pack",
                application=application.id,
            )
        took_s = time.monotonic() - began_s
        time.sleep(max(LOOK_S, took_s * (1 / SHARE_MAX - 1)))


def _last_word(application: Application) -> Verdict | None:
    """Say how a job has ended whose application YARN may begin again: skein's master lets it.

    Only of a job that is done does the master leave the queue, whichever attempt it is.
    """
    verdict = read_verdict(application.place)
    return None if verdict is None or verdict.state == "done" else verdict


def verdict_of(application: Application, now: Standing) -> Verdict:
    """Say how an application that is over has ended: as its driver says, else as YARN does."""
    verdict = read_verdict(application.place)
    if verdict is not None:
        return verdict
    how = "was killed" if now.final_status == "KILLED" else f"ended as {now.final_status}"
    why = now.diagnostics.rstrip(".") or "YARN does not say why"
    return Verdict.of_error(JobFailedError(f"{application.id} {how}: {why}"))
