"""Query YARN for the status of an application, and end it on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticml.clusters.polling import until
from elasticml.clusters.yarn.application_spec import SCHEDULER
from elasticml.clusters.yarn.compat import import_skein
from elasticml.clusters.yarn.jobs.submission import CANCEL_KEY, Verdict, read_verdict
from elasticml.errors import ConfigError, SubmissionError, one_line

if TYPE_CHECKING:
    import skein

#: Seconds between two polls of an application that is ending.
LOOK_S = 1.0
#: Seconds for a job to end after a cancel request, including its report.
CANCEL_S_MAX = 120.0
#: The same if no scheduler is running whose driver could end it; the next one may still start.
UNHEARD_S_MAX = 20.0
#: Seconds for a driver to end its application after it has written the verdict. A successful one
#: first removes its checkpoints.
SETTLE_S_MAX, SETTLE_DONE_S_MAX = 10.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationStatus:
    """The status of an application, as reported by YARN."""

    #: SUBMITTED, ACCEPTED, RUNNING, FINISHED, FAILED, KILLED and the like.
    state: str
    #: UNDEFINED until it has ended, then SUCCEEDED, FAILED or KILLED.
    final_status: str
    queue: str
    user: str
    diagnostics: str
    progress: float
    containers: int
    vcores: int
    memory_mib: int
    #: Its web page at the resource manager.
    url: str

    @property
    def is_over(self) -> bool:
        """Whether the application has ended."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


@contextmanager
def _asking(application_id: str) -> Iterator[None]:
    try:
        yield
    except (import_skein().exceptions.SkeinError, ValueError, KeyError) as error:
        raise SubmissionError(
            f"YARN reports no status of {application_id}: {one_line(error)}; check the id, and run "
            "elasticml doctor --yarn"
        ) from error


def application_status(client: skein.Client, application_id: str) -> ApplicationStatus:
    """Query YARN for the status of an application.

    Raises
    ------
    SubmissionError
        When YARN does not know it, or cannot be reached.
    """
    with _asking(application_id):
        report = client.application_report(application_id)
    usage = report.usage
    return ApplicationStatus(
        state=str(report.state),
        final_status=str(report.final_status),
        queue=report.queue,
        user=report.user,
        diagnostics=" ".join((report.diagnostics or "").split()),
        progress=report.progress,
        containers=max(0, usage.num_used_containers),
        vcores=max(0, usage.used_resources.vcores),
        memory_mib=max(0, usage.used_resources.memory),
        url=report.tracking_url,
    )


def cancel(client: skein.Client, application_id: str, place: str | None) -> None:
    """Cancel a job through its driver, which keeps the partial results; else kill the application.

    Parameters
    ----------
    place : str or None
        Path or URL of its run, if known.

    Raises
    ------
    SubmissionError
        When YARN does not know the application.
    """
    now = application_status(client, application_id)
    if now.is_over:
        return
    if now.state == "RUNNING":
        with _asking(application_id):
            is_heard = _ask_to_end(client, application_id)
        wait_s = CANCEL_S_MAX if is_heard else UNHEARD_S_MAX

        def is_over() -> bool:
            return application_status(client, application_id).is_over

        until(lambda: is_over() or _verdict(place) is not None, wait_s=wait_s, every_s=LOOK_S)
        verdict = _verdict(place)
        settle_s = 0.0
        if verdict is not None:
            settle_s = SETTLE_DONE_S_MAX if verdict.state == "done" else SETTLE_S_MAX
        # Without the agent, skein's application master unregisters only after a successful job;
        # after every other end YARN starts it again until no attempts are left.
        if until(is_over, wait_s=settle_s, every_s=LOOK_S):
            return
    kill(client, application_id)


def _verdict(place: str | None) -> Verdict | None:
    with suppress(ConfigError):
        return None if place is None else read_verdict(place)
    return None


def _ask_to_end(client: skein.Client, application_id: str) -> bool:
    """Ask the driver to end the job; return whether a scheduler, its process, is running."""
    try:
        with client.connect(application_id, wait=False) as application:
            application.kv[CANCEL_KEY] = b"1"
            return bool(application.get_containers(services=[SCHEDULER], states=["RUNNING"]))
    except (import_skein().ConnectionError, import_skein().ApplicationNotRunningError):
        return False  # the application master is between two attempts, or has just ended


def kill(client: skein.Client, application_id: str) -> None:
    """Kill an application."""
    with _asking(application_id):
        client.kill_application(application_id)
