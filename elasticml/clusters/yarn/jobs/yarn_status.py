"""Query YARN for the status of an application, and end it on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from elasticml.clusters.polling import until
from elasticml.clusters.yarn.application_spec import SCHEDULER
from elasticml.clusters.yarn.jobs.submission import CANCEL_KEY, Verdict, read_verdict
from elasticml.clusters.yarn.yarn_client import (
    ApplicationLostError,
    ApplicationStatus,
    YarnCallError,
)
from elasticml.errors import ConfigError, SubmissionError, one_line

if TYPE_CHECKING:
    from elasticml.clusters.yarn.yarn_client import YarnClient

#: Seconds between two polls of an application that is ending.
LOOK_S = 1.0
#: Seconds for a job to end after a cancel request, including its report.
CANCEL_S_MAX = 120.0
#: The same if no scheduler is running whose driver could end it; the next one may still start.
UNHEARD_S_MAX = 20.0
#: Seconds for a driver to end its application after it has written the verdict. A successful one
#: first removes its checkpoints.
SETTLE_S_MAX, SETTLE_DONE_S_MAX = 10.0, 30.0


@contextmanager
def _asking(application_id: str) -> Iterator[None]:
    try:
        yield
    except YarnCallError as error:
        raise SubmissionError(
            f"YARN reports no status of {application_id}: {one_line(error)}; check the id, and run "
            "elasticml doctor --yarn"
        ) from error


def application_status(client: YarnClient, application_id: str) -> ApplicationStatus:
    """Query YARN for the status of an application.

    Raises
    ------
    SubmissionError
        When YARN does not know it, or cannot be reached.
    """
    with _asking(application_id):
        return client.status(application_id)


def cancel(client: YarnClient, application_id: str, place: str | None) -> None:
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


def _ask_to_end(client: YarnClient, application_id: str) -> bool:
    """Ask the driver to end the job; return whether a scheduler, its process, is running."""
    try:
        with client.connect(application_id) as application:
            application.store.put(CANCEL_KEY, b"1")
            return bool(application.containers(services=[SCHEDULER], states=["running"]))
    except ApplicationLostError:
        return False  # the application master is between two attempts, or has just ended


def kill(client: YarnClient, application_id: str) -> None:
    """Kill an application."""
    with _asking(application_id):
        client.kill(application_id)
