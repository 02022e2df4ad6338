"""The page ``/elasticml`` on the scheduler's HTTP server: the running jobs, live and read-only.

Figures are computed on request, at most once a second whatever the number of
viewers, and from the new records of the stories only. While no page is open, it costs nothing.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Protocol

from distributed import Scheduler
from tornado.ioloop import IOLoop
from tornado.web import HTTPError, RedirectHandler, RequestHandler

from elasticml.protocol.job_record import JobRecord
from elasticml.report.live import LiveJob
from elasticml.report.markup import style_sheet
from elasticml.runtime.web.metrics import Reading, exposition, families, register_collector
from elasticml.story.journal import Journal

NAME: Final = "elasticml"
#: Least seconds between two updates of the figures.
UPDATE_S: Final = 1.0
#: Most records of a story that are read at once, and the pause before the next ones: a page that is
#: opened late must not keep the scheduler from its work.
READ_MAX: Final = 2048
PAUSE_S: Final = 0.1
#: States of jobs that have not ended.
RUNNING: Final = ("loading", "running")

#: Everything comes from this server; no other page may embed it or send its forms.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class ShownJob(Protocol):
    """What the page reads of a job, running or finished."""

    @property
    def record(self) -> JobRecord:
        """The job record."""
        ...

    @property
    def journal(self) -> Journal:
        """Story and history."""
        ...

    @property
    def state(self) -> str:
        """Return "loading", "running", "done", "failed" or "cancelled"."""
        ...

    def now_s(self) -> float:
        """Return the seconds since the start of the job."""
        ...


@dataclass(slots=True)
class _Story:
    """A job's figures, and how far its story has been read."""

    live: LiveJob
    n_read: int = 0
    #: The next records will be read after a pause.
    is_pausing: bool = False


class JobsPage:
    """Serves the jobs of a scheduler.

    Parameters
    ----------
    jobs : mapping of str to ShownJob
        The scheduler's jobs by id; it may change.
    clock : callable
        Monotonic time in seconds.
    """

    def __init__(
        self, jobs: Mapping[str, ShownJob], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs = jobs
        self._clock = clock
        self._stories: dict[str, _Story] = {}
        #: Time of the last update of each job.
        self._read_s: dict[str, float] = {}
        #: Replies since the last update, by job and token.
        self._replies: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._unregister: Callable[[], None] = lambda: None

    def start(self, scheduler: Scheduler) -> None:
        """Add the page to the scheduler's HTTP server, to Dask's navigation, and to its metrics."""
        application = getattr(scheduler, "http_application", None)
        if application is None:
            return
        path = f"{http_prefix(application)}/{NAME}"
        css = files("elasticml.runtime.web").joinpath("watch.css").read_text(encoding="utf-8")
        texts = {
            "": ("text/html", _asset("index.html")),
            "/watch.js": ("text/javascript", _asset("watch.js")),
            "/watch.css": ("text/css", (style_sheet() + css).encode()),
        }
        application.add_handlers(
            r".*",
            [
                *(
                    (path + name, _Asset, {"kind": kind, "content": content})
                    for name, (kind, content) in texts.items()
                ),
                (f"{path}/", RedirectHandler, {"url": f"../{NAME}", "permanent": False}),
                (f"{path}/jobs.json", _Jobs, {"page": self}),
                (f"{path}/metrics", _Metrics, {"page": self}),
            ],
        )
        # Not imported here: without Bokeh, or without its dashboard, there is no navigation.
        dashboard = sys.modules.get("distributed.dashboard.scheduler")
        if dashboard is not None:
            pages = dashboard.template_variables(scheduler)["pages"]
            if NAME not in pages:
                pages.append(NAME)
        self._unregister = register_collector(self.live_jobs)

    def forget(self, job: str) -> None:
        """Drop the figures of a job that the scheduler has forgotten."""
        self._stories.pop(job, None)
        self._read_s.pop(job, None)
        self._replies = {}

    def close(self) -> None:
        """Withdraw the metrics."""
        self._unregister()

    # --- figures ---------------------------------------------------------------------------------

    def live_jobs(self) -> list[Reading]:
        """Return what is known of all jobs."""
        readings = []
        for job, agent in list(self._jobs.items()):
            story = self._up_to_date(job)
            readings.append(
                Reading(
                    live=story.live,
                    now_s=agent.now_s(),
                    is_running=agent.state in RUNNING,
                    is_behind=story.is_pausing,
                )
            )
        return readings

    def _up_to_date(self, job: str) -> _Story:
        """Return a job's figures; read further records at most once in :data:`UPDATE_S`."""
        story = self._stories.setdefault(job, _Story(LiveJob(job)))
        now_s = self._clock()
        if now_s - self._read_s.get(job, -UPDATE_S) >= UPDATE_S:
            self._read_s[job] = now_s
            self._stories = {j: s for j, s in self._stories.items() if j in self._jobs}
            if not story.is_pausing:
                self._read_on(job)
        return story

    def _read_on(self, job: str) -> None:
        """Read the next records; if there are many more, continue after a pause."""
        story, agent = self._stories.get(job), self._jobs.get(job)
        if story is None or agent is None:
            return
        story.is_pausing = False
        records = agent.journal.story
        further = records[story.n_read : story.n_read + READ_MAX]
        if further:
            story.n_read += len(further)
            story.live.read(further)
            self._replies = {}
        if story.n_read < len(records):
            story.is_pausing = True
            IOLoop.current().call_later(PAUSE_S, self._read_on, job)

    def reply(self, job: str, since: str) -> tuple[str, Callable[[], bytes]]:
        """Return the tag of the reply to a viewer, and a function that makes its JSON.

        Parameters
        ----------
        job : str
            The job to show; another one is chosen if it is not known: the last that runs.
        since : str
            The ``token`` of the viewer's last figures of this job.
        """
        listed = self._listing()
        running = [entry[0] for entry in listed if entry[2] in RUNNING]
        if job not in self._jobs and listed:
            job, since = (running or [listed[-1][0]])[-1], ""
        state = zlib.crc32(repr(listed).encode())
        if job not in self._jobs:
            return f"{state:x}", lambda: _json({"jobs": listed})
        story = self._up_to_date(job)
        behind = len(self._jobs[job].journal.story) - story.n_read
        tag = f"{state:x}.{job}.{story.live.token}"

        def make() -> bytes:
            known = self._replies.get((job, since))
            if known is None or known[0] != state:
                body = {"jobs": listed, "shown": job, **story.live.to_json(since)}
                body["behind"] = behind if story.is_pausing else 0
                body["now"] = round(self._jobs[job].now_s(), 3)
                known = self._replies[job, since] = (state, _json(body))
            return known[1]

        return tag, make

    def _listing(self) -> list[list[Any]]:
        """Return id, name and state of each job, oldest first."""
        return [[job, agent.record.name or job, agent.state] for job, agent in self._jobs.items()]


def serve_page(scheduler: Scheduler, jobs: Mapping[str, ShownJob]) -> JobsPage:
    """Serve the page of a scheduler's jobs; ``close`` ends it."""
    page = JobsPage(jobs)
    page.start(scheduler)
    return page


def http_prefix(application: Any) -> str:
    """Return ``distributed.scheduler.http.prefix`` as the server was started with, without slash.

    The scheduler does not keep it; its routes have it.
    """
    for rule in application.wildcard_router.rules:
        pattern = getattr(getattr(rule.matcher, "regex", None), "pattern", "")
        for known in ("/health", "/info"):
            if pattern.removesuffix("$").endswith(known):
                prefix: str = pattern.removesuffix("$").removesuffix(known)
                return prefix
    return ""


def _asset(name: str) -> bytes:
    return files("elasticml.runtime.web").joinpath(name).read_bytes()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class _ReadOnly(RequestHandler):
    """Answers GET and HEAD; Tornado answers all other methods with 405."""

    def set_default_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def head(self) -> None:
        self.get()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the status alone: nothing of the request is repeated."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {self._reason}\n")


class _Asset(_ReadOnly):
    def initialize(self, kind: str, content: bytes) -> None:
        self._kind, self._content = kind, content

    def get(self) -> None:
        self.set_header("Content-Type", f"{self._kind}; charset=utf-8")
        self.write(self._content)


class _Jobs(_ReadOnly):
    def initialize(self, page: JobsPage) -> None:
        self._page = page

    def get(self) -> None:
        job, since = self.get_query_argument("job", ""), self.get_query_argument("since", "")
        if len(job) > 1000 or len(since) > 1000:
            raise HTTPError(400)
        tag, make = self._page.reply(job, since)
        self.set_header("Etag", f'"{tag}"')
        if self.check_etag_header():
            self.set_status(304)
            return
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.write(make())


class _Metrics(_ReadOnly):
    def initialize(self, page: JobsPage) -> None:
        self._page = page

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.write(exposition(families(self._page.live_jobs())))
